"""Machines that share a study on a PostgreSQL server, which this test starts on loopback."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from tests.search.fake_runs import searched
from tests.search.fake_trials import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a PostgreSQL server on a free port of loopback; root runs it as the user `postgres`."""
    pytest.importorskip("psycopg", reason="needs the driver of tests/requirements.txt")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("needs PostgreSQL's programs: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="postgresql_"))  # pytest's own folders are closed to other users
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(program: str, *arguments: str) -> None:
        command = [str(found[-1] / program), "-D", str(folder / "data"), *arguments]
        subprocess.run(command, cwd=folder, user=user, check=True, stdout=subprocess.DEVNULL, timeout=120)

    try:
        call("initdb", "-A", "trust", "-U", "study", "--no-sync")
        options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
        call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        yield f"postgresql+psycopg://study@127.0.0.1:{port}/postgres"
        call("pg_ctl", "-w", "-m", "fast", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def worker(folder: Path, url: str) -> Iterator[subprocess.Popen]:
    """A machine: a process with a separate output folder; its output goes to `folder`/log."""
    flags = searched(folder, "--trials", "8", "--pruner", "none", "--storage", url, "--study", "shared")
    command = [sys.executable, str(ROOT / "tests" / "search" / "fake_trials.py"), *flags]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen, folder: Path) -> int:
    code = process.wait(timeout=300)
    assert code <= 0, (folder / "log").read_text()
    return code


def done_in(folder: Path) -> set[str]:
    return {path.name for path in (folder / "out").glob("trial_*") if path.is_dir()}


def test_two_machines_share_trials_without_doing_one_twice(tmp_path, server):
    a, b = tmp_path / "a", tmp_path / "b"
    with worker(a, server) as one, worker(b, server) as other:
        assert ended(one, a) == ended(other, b) == 0
    assert not done_in(a) & done_in(b) and done_in(a) and done_in(b)
    assert done_in(a) | done_in(b) >= {f"trial_{k:03d}" for k in range(1, 9)}
    assert len(done_in(a) | done_in(b)) <= 9  # both may draw the last one
    study = optuna.load_study(study_name="shared", storage=server)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * len(study.trials)
