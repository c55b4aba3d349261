"""scripts/vast_setup.sh: what can run without a rented machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "vast_setup.sh"
WINDOWS = ["train", "cpu", "gpu", "terminal", "tensorboard"]


def setup(*options: str, script: Path = SCRIPT, **environment: str) -> subprocess.CompletedProcess:
    inherited = {k: v for k, v in os.environ.items() if k not in ("TMUX", "REPO_URL", "PROJECT_DIR", "TORCH_INDEX")}
    env = {**inherited, "PYTHON": sys.executable, **environment}
    return subprocess.run(["bash", str(script), *options], env=env, capture_output=True, text=True)


@pytest.fixture
def alone(tmp_path) -> Path:
    """The script by itself, as downloaded to a machine that has nothing else."""
    (tmp_path / "bare").mkdir()
    return Path(shutil.copy(SCRIPT, tmp_path / "bare" / "vast_setup.sh"))


def stub(folder: Path, name: str, text: str) -> str:
    """A shell script that stands in for a program; returns a PATH that finds it first."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def shellcheck() -> str | None:
    """That of tests/requirements.txt lies next to the interpreter, which need not be on the PATH."""
    beside = Path(sys.executable).with_name("shellcheck")
    return str(beside) if beside.is_file() else shutil.which("shellcheck")


def bare_python(folder: Path) -> str:
    """An interpreter that finds no installed package."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda p: p.name)
def test_scripts_parse_and_pass_shellcheck(script):
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    if not shellcheck():
        pytest.skip("shellcheck is not installed (pip install -r tests/requirements.txt)")
    done = subprocess.run([shellcheck(), script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_health_check_prints_versions_and_resources():
    done = setup("--health")
    assert done.returncode == 0, done.stderr
    for what in (r"python      \d", r"torch       \d", "CUDA  ", r"CPU         \d+ cores", r"memory      \d",
                 r"shared mem  \d+ GB", r"disk        \d+ GB free"):  # fmt: skip
        assert re.search(f"^{what}", done.stdout, re.M), what
    assert "tmux" not in done.stdout


def test_a_broken_driver_or_df_is_told_and_ends_nothing(alone, tmp_path):
    bare = {"script": alone, "PYTHON": bare_python(alone.parent)}
    broken = "echo NVIDIA-SMI has failed because it could not communicate with the driver; exit 9"
    path = stub(tmp_path / "bin", "nvidia-smi", broken)
    done = setup("--health", **bare, PATH=path)
    assert done.returncode == 0, done.stderr
    assert "driver      not readable\n" in done.stdout and re.search(r"^disk        \d+ GB free", done.stdout, re.M)
    stub(tmp_path / "bin", "df", "exit 1")
    stub(tmp_path / "bin", "nvidia-smi", "echo 570.1; echo 570.1")
    done = setup("--health", **bare, PATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["shared mem  not readable", "disk        not readable"]
    assert done.stdout.count("driver      570.1\n") == 1
    stub(tmp_path / "bin", "df", "echo nonsense; echo df: no such thing")
    assert "disk        not readable" in setup("--health", **bare, PATH=path).stdout


def test_an_old_python_is_refused_before_anything_is_installed(alone, tmp_path):
    """The stub says what 3.10 would: its version, and that it is too old."""
    stub(tmp_path / "bin", "old", 'case "$2" in *exit*) exit 1;; *print*) echo 3.10;; esac')
    options = {"script": alone, "PROJECT_DIR": str(tmp_path / "project"), "REPO_URL": "https://example.org/copy.git"}
    done = setup("--dry-run", PYTHON=str(tmp_path / "bin" / "old"), **options)
    assert done.returncode == 2
    assert "old is Python 3.10, but 3.11 or newer is needed: give a newer one by PYTHON=" in done.stderr
    assert "git clone" not in done.stdout
    (tmp_path / "project/.venv/bin").mkdir(parents=True)
    shutil.copy(tmp_path / "bin" / "old", tmp_path / "project/.venv/bin/python")
    done = setup("--dry-run", **options)
    assert done.returncode == 2 and f"remove {tmp_path}/project/.venv and give a newer one" in done.stderr


def test_health_check_without_torch_says_what_to_do(alone):
    done = setup("--health", script=alone, PYTHON=bare_python(alone.parent))
    assert done.returncode == 0, done.stderr
    assert "torch       missing" in done.stderr and "without --no-install" in done.stderr
    assert "disk  " in done.stdout  # the rest is still printed


def test_dry_run_lists_every_step_and_does_none(alone, tmp_path):
    target = tmp_path / "project"
    done = setup("--dry-run", script=alone, REPO_URL="https://example.org/copy.git", PROJECT_DIR=str(target))
    assert done.returncode == 0, done.stderr
    steps = [line[2:] for line in done.stdout.splitlines() if line.startswith("+ ")]
    assert f"git clone https://example.org/copy.git {target}" in steps
    pip, constraints = f"{target}/.venv/bin/python -m pip", f"{target}/.venv/torch-constraints.txt"
    assert f"{sys.executable} {target}/scripts/choose_torch.py --venv {target}/.venv" in steps
    assert f"{pip} install -r {target}/requirements.txt -c {constraints}" in steps
    named = [re.search(r"tmux new-(?:session|window).* -n (\w+)", step) for step in steps]
    assert [m.group(1) for m in named if m] == WINDOWS
    assert any("tensorboard.main" in step and "--host 127.0.0.1 --port 6006" in step for step in steps)
    assert not target.exists()


def test_without_project_and_address_it_asks_for_the_address(alone, tmp_path):
    done = setup("--no-install", "--no-tmux", script=alone, PROJECT_DIR=str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: REPO_URL is not set") and done.stderr.count("\n") == 1


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_project_is_cloned_once(alone, tmp_path):
    origin, target = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    (origin / "requirements.txt").write_text("numpy\n")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *command], cwd=origin, check=True)
    options = ("--no-install", "--no-tmux")
    first = setup(*options, script=alone, REPO_URL=str(origin), PROJECT_DIR=str(target))
    assert first.returncode == 0, first.stderr
    assert (target / "requirements.txt").is_file() and "clone into" in first.stdout
    again = setup(*options, script=alone, REPO_URL=str(origin), PROJECT_DIR=str(target))
    assert again.returncode == 0 and "clone into" not in again.stdout


@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")
def test_tmux_session_has_the_five_windows_and_is_kept(tmp_path):
    project = tmp_path / "project"
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "activate").write_text("")
    (project / "requirements.txt").write_text("")
    (project / "models").mkdir()
    (project / "scripts").mkdir()
    script = Path(shutil.copy(SCRIPT, project / "scripts"))
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("htop", "watch", "nvidia-smi", "python"):  # so that no window starts anything heavy
        (stubs / name).write_text("#!/bin/sh\nexec cat\n" if name in ("htop", "python") else "#!/bin/sh\n:\n")
        (stubs / name).chmod(0o755)
    own = {"TMUX_TMPDIR": str(tmp_path), "PATH": f"{stubs}:{os.environ['PATH']}", "SHELL": "/bin/sh"}
    environment = {**{k: v for k, v in os.environ.items() if k != "TMUX"}, **own}

    def tmux(*words: str) -> str:
        return subprocess.run(["tmux", *words], env=environment, capture_output=True, text=True).stdout

    try:
        done = setup("--no-install", script=script, **own)
        assert done.returncode == 0, done.stderr
        assert tmux("list-windows", "-t", "vast", "-F", "#W").split() == WINDOWS
        again = setup("--no-install", script=script, **own)
        assert again.returncode == 0 and "is there already" in again.stdout
        assert len(tmux("list-windows", "-t", "vast", "-F", "#W").split()) == 5
    finally:
        tmux("kill-server")  # the server of this test's own socket folder


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
@pytest.mark.parametrize("guide", ["VAST_SETUP.md", "VAST_SETUP.zh-TW.md"])
def test_the_block_to_paste_installs_git_clones_once_and_may_be_pasted_again(guide, tmp_path):
    origin, project, tools = tmp_path / "origin", tmp_path / "workspace" / "yolov7-fast", tmp_path / "bin"
    (origin / "scripts").mkdir(parents=True)
    (origin / "scripts" / "vast_setup.sh").write_text("echo set up\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=origin, check=True)
    tools.mkdir()
    for name in ("bash", "touch", "cat", "ln"):  # a machine without git
        (tools / name).symlink_to(shutil.which(name))
    stub(tools, "tmux", "echo tmux $@")
    stub(tools, "apt-get", f"cat; echo apt-get $@; [ $1 = update ] || ln -sf {shutil.which('git')} {tools}/git")
    blocks = (ROOT / guide).read_text(encoding="utf-8").split("```bash\n")[1:]
    (block,) = (block.split("```")[0] for block in blocks if block.startswith("export REPO_URL="))
    block = block.replace("https://github.com/YOU/YOUR-COPY.git", str(origin)).replace(
        "/workspace", f"{tmp_path}/workspace"
    )

    def paste() -> list[str]:  # as a terminal gets it: line by line, on standard input
        environment = {"PATH": str(tools), "HOME": str(tmp_path)}
        done = subprocess.run([tools / "bash"], input=block, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert paste() == ["apt-get update -qq", "apt-get install -y -qq git", "set up", "tmux attach -t vast"]
    (project / "mine").write_text("")
    assert paste() == ["set up", "tmux attach -t vast"]
    assert (project / "mine").is_file()


def test_guides_hold_no_private_host_key_or_address():
    private = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b|BEGIN [A-Z ]*PRIVATE KEY|ssh-(rsa|ed25519) AAAA")
    allowed = {"127.0.0.1", "0.0.0.0"}
    for path in [*(ROOT / "scripts").iterdir(), ROOT / "VAST_SETUP.md", ROOT / "VAST_SETUP.zh-TW.md"]:
        found = {match.group(0) for match in private.finditer(path.read_text(encoding="utf-8"))}
        assert found <= allowed, f"{path.name}: {found - allowed}"
