"""--mirror: what arrives can be resumed, whatever interrupts it; a destination belongs to one run."""

import contextlib
import errno
import getpass
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.training.commands import ROOT, assert_same_weights, here, small_run
from tests.training.hooks.places import assert_same_detector, rclone, sshd
from yolov7fast.core.errors import UserError
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.hooks import destinations
from yolov7fast.training.hooks.destinations import CopyError, LocalFolder, destination, is_remote
from yolov7fast.training.hooks.mirror import Manifest, Mirror, TakenOver, check_mirror, fetch
from yolov7fast.training.yolo_family import YoloFamily

__all__ = ["sshd"]


def written(folder: Path, version: int) -> Path:
    """A run after so many checkpoints, of which every one was the best."""
    run = folder / "run"
    (run / "weights").mkdir(parents=True, exist_ok=True)
    for name in ("weights/last.pt", "weights/best.pt", "opt.yaml", "results.csv", "train.log", "index.html"):
        new = run / f"{name}.new"
        new.write_text(f"{version}" if name != "opt.yaml" else "the same")
        new.replace(run / name)
    (run / "events.out.tfevents.1").write_text("not copied")
    return run


def mirror_of(run: Path, text: str) -> Mirror:
    return Mirror(text, run, run / "weights" / "last.pt")


def copy(mirror: Mirror, step: int = 0) -> None:
    mirror.copy(*mirror.snapshot(Progress(global_step=step)))


@pytest.fixture(params=["folder", "ssh", "rclone"])
def there(request, tmp_path, monkeypatch) -> str:
    """A destination of each kind."""
    if request.param == "folder":
        return str(tmp_path / "a copy" / "run")
    if request.param == "rclone":
        rclone(tmp_path, monkeypatch)
        return "disk:copies/run"
    monkeypatch.setenv("RSYNC_RSH", request.getfixturevalue("sshd"))
    return f"{getpass.getuser()}@127.0.0.1:{tmp_path}/a copy/run"


def test_a_run_arrives_and_is_fetched_to_another_machine(there, tmp_path, monkeypatch):
    run = written(tmp_path, 1)
    assert fetch(there, tmp_path / "other") is None
    mirror = mirror_of(run, there)
    mirror.claim()
    copy(mirror, 1)
    sent: list[str] = []
    put = type(mirror.place).put

    def noted(self, part):
        sent.extend(destinations.files_below(part))
        put(self, part)

    monkeypatch.setattr(type(mirror.place), "put", noted)
    written(tmp_path, 2)
    copy(mirror, 2)
    assert sent == [
        "mirror.json",
        "index.html",
        "results.csv",
        "train.log",
        "weights/best.pt",
        "weights/last.pt",
        "mirror.json",
    ]
    found = fetch(there, tmp_path / "other")
    assert found == tmp_path / "other" / "run"
    files = {name: (found / name).read_text() for name in destinations.files_below(found)}
    assert files.pop(".mirror/run") == (run / ".mirror/run").read_text() and files.pop("opt.yaml") == "the same"
    assert set(files.values()) == {"2"} and len(files) == 5
    assert (run / ".mirror/verified").stat().st_mtime_ns == (run / "weights/last.pt").stat().st_mtime_ns
    with pytest.raises(UserError, match="holds the run run: choose another destination"):
        check_mirror(there, is_fresh=True)
    other = mirror_of(written(tmp_path / "third", 1), there)
    with pytest.raises(TakenOver, match="holds the run run"):
        other.claim()
    resumed = mirror_of(found, there)
    resumed.claim()
    with pytest.raises(TakenOver, match="another process"):
        copy(mirror, 3)
    copy(resumed, 3)


def test_whenever_a_copy_is_interrupted_the_mirror_can_be_resumed(tmp_path, monkeypatch):
    """Before each single file, with a new process after each: best weights are never older than the checkpoint."""
    left = [10**6]

    def interrupted(source, target):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return shutil.copyfile(source, target)

    run, text = written(tmp_path, 0), str(tmp_path / "copy")
    copy(mirror_of(run, text))
    pairs = set()
    for files in range(24):
        written(tmp_path, files + 1)
        monkeypatch.setattr(destinations, "shutil", SimpleNamespace(copyfile=interrupted))
        left[0] = files % 10
        with contextlib.suppress(KeyboardInterrupt):
            copy(mirror_of(run, text))
        left[0] = 10**6
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        found = fetch(text, tmp_path / "other")
        last, best = (int((found / "weights" / f"{name}.pt").read_text()) for name in ("last", "best"))
        assert last <= best <= files + 1
        pairs.add((files + 1 - last, files + 1 - best))
    assert len(pairs) > 3  # all kinds of interruptions have happened


def test_a_full_disk_fails_a_copy_and_leaves_the_one_before(tmp_path, monkeypatch):
    run, text = written(tmp_path, 1), str(tmp_path / "copy")
    mirror = mirror_of(run, text)
    copy(mirror)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    written(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(destinations, "shutil", SimpleNamespace(copyfile=full))
        with pytest.raises(CopyError, match="No space left on device"):
            copy(mirror)
    assert (fetch(text, tmp_path / "other") / "weights/last.pt").read_text() == "1"
    copy(mirror)
    assert Manifest.read(mirror.place).coming == {}


def test_a_file_that_was_not_verified_is_not_resumed(tmp_path):
    text = str(tmp_path / "copy")
    copy(mirror_of(written(tmp_path, 1), text))
    (tmp_path / "copy/weights/last.pt").write_text("3")
    with pytest.raises(UserError, match=r"weights/last.pt is not the file that was verified"):
        fetch(text, tmp_path / "other")
    assert not (tmp_path / "other" / "run").exists()


@pytest.mark.parametrize(
    "change", [{"files": {"../../x": "0"}}, {"name": "../x"}, {"run": 3}, {"copied": "now"}, {"files": 1}]
)
def test_a_hostile_mirror_is_refused(tmp_path, change):
    text = str(tmp_path / "copy")
    copy(mirror_of(written(tmp_path, 1), text))
    path = tmp_path / "copy" / "mirror.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=r"mirror.json is damaged|not the name of a run"):
        fetch(text, tmp_path / "other")


def test_names_of_destinations(tmp_path, monkeypatch):
    assert all(map(is_remote, ("me@host:runs/x", "disk:runs/x", "my disk:")))
    assert not any(map(is_remote, ("/mnt/x", "./a:b", "x/y:z", ":sftp,ssh=touch /tmp/x:y", "-oProxyCommand=x@host:y")))
    assert isinstance(destination("here"), LocalFolder)
    monkeypatch.setenv("PATH", str(tmp_path))
    for text, line in (("me@host:x", "apt-get install -y rsync"), ("disk:x", "apt-get install -y rclone")):
        with pytest.raises(UserError, match=line):
            check_mirror(text, is_fresh=True)


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_a_run_is_resumed_exactly_on_another_machine(tmp_path, shapes_small, monkeypatch, capsys):
    """Stopped inside an epoch, its folder deleted; then by --resume DEST, stopped again, and by --resume auto."""
    flags = ["--epochs", "3", "--seed", "5", "--notest"]
    assert here(*small_run(tmp_path, shapes_small, *flags)) == 0
    away = tmp_path / "away"
    away.mkdir()
    text = str(tmp_path / "copy")
    begun = [*small_run(away, shapes_small, *flags), "--mirror", text]
    rates = YoloFamily.rates

    def stopped(*arguments: str) -> None:
        """A run that gets SIGTERM in its fourth step, and whose folder is lost then."""
        steps = iter(range(100))

        def count(*given):
            if next(steps) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return rates(*given)

        with monkeypatch.context() as patch:
            patch.setattr(YoloFamily, "rates", count)
            assert here(*arguments) == 128 + signal.SIGTERM
        shutil.rmtree(away / "runs")

    stopped(*begun)
    stopped("--resume", text, "--project", str(away / "runs"))
    assert here(*begun, "--resume", "auto") == 0
    weights = Path("runs") / "run" / "weights"
    assert_same_weights(tmp_path / weights / "epoch_002.pt", away / weights / "epoch_002.pt")
    shutil.rmtree(away / "runs")
    with pytest.raises(UserError, match=r"holds the run run: give --name run"):
        here(*begun, "--name", "else", "--resume", "auto")
    assert not (away / "runs" / "else").exists()


def test_commands_are_taken_from_the_command_line_alone(tmp_path, shapes_small, capsys):
    """Run files and run folders may come from others."""
    file = tmp_path / "run.yaml"
    file.write_text(f"on_end: touch {tmp_path}/harm\n")
    with pytest.raises(SystemExit):
        here("--config", str(file))
    assert "--on-end runs commands: give it on the command line" in capsys.readouterr().err
    assert here(*small_run(tmp_path, shapes_small, "--epochs", "1", "--notest", "--on-end", "exit 3")) == 0
    options = tmp_path / "runs" / "run" / "opt.yaml"
    assert "on_end" not in options.read_text()
    options.write_text(f"{options.read_text()}on_end: touch {tmp_path}/harm\nmirror: {tmp_path}/harm\n")
    assert here("--resume", str(tmp_path / "runs" / "run"), "--epochs", "2") == 0
    assert not (tmp_path / "harm").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_and_deleted_folders_leave_the_same_weights(tmp_path, shapes_small):
    """`kill -9` to all processes at any moment, then the folder is deleted and the run resumed from its mirror."""
    flags = ["--epochs", "10", "--seed", "5", "--notest", "--save-every", "0.00001"]
    assert here(*small_run(tmp_path, shapes_small, *flags)) == 0
    seed = random.SystemRandom().randrange(2**32)
    times, kills, finished, is_done = random.Random(seed), 0, 0, False
    while not is_done:
        away = tmp_path / f"away{finished}"
        away.mkdir(exist_ok=True)
        manifest, run = away / "copy" / "mirror.json", away / "runs" / "run"

        def step(manifest: Path = manifest) -> int:
            return json.loads(manifest.read_text())["step"] if manifest.is_file() else 0

        begin = [*small_run(away, shapes_small, *flags), "--mirror", str(away / "copy")]
        again, before = ["--resume", str(away / "copy"), "--project", str(away / "runs")], step()
        with (tmp_path / "log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "train.py", *(again if before else begin)],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        while process.poll() is None and (kills == 20 or step() == before):
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=times.uniform(0, 0.5) if kills < 20 else 300)
        if process.poll() is None and kills < 20:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        else:
            said = (tmp_path / "log").read_text(errors="replace")[-3000:]
            assert process.returncode == 0 or "nothing to do" in said, said  # killed after its last copy
            assert_same_detector(tmp_path / "runs" / "run", run)
            assert (tmp_path / "runs" / "run" / "results.txt").read_text() == (run / "results.txt").read_text()
            finished, is_done = finished + 1, kills == 20
        print(f"seed {seed}: {kills} kills, the last at iteration {step()}; {finished} runs ended", flush=True)
        shutil.rmtree(away / "runs", ignore_errors=True)
