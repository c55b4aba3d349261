"""Machines that share a study on a PostgreSQL server, which these tests start on loopback.

No trial is done twice, those of a killed machine are retried, and a restart of the server is waited for.
"""

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest

from tests.search.fake_runs import column, searched
from tests.search.fake_trials import ROOT
from yolov7fast.search.study import numbered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HEARTBEAT = "1 2"  # seconds between beats, and without one until a trial is retried


class Server:
    """PostgreSQL on a free port of loopback, its data in a folder of its own; root runs it as the user `postgres`."""

    def __init__(self, programs: Path, folder: Path):
        self.programs, self.folder = programs, folder
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(folder, self.user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql+psycopg://study@127.0.0.1:{self.port}/postgres"
        self.call("initdb", "-A", "trust", "-U", "study", "--no-sync")

    def call(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *arguments]
        subprocess.run(command, cwd=self.folder, user=self.user, check=True, stdout=subprocess.DEVNULL, timeout=120)

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder} -c fsync=off"
        self.call("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self.call("pg_ctl", "-w", "-m", "fast", "stop")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="needs the driver of requirements-search.txt")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("needs PostgreSQL's programs: apt-get install postgresql")
    if os.geteuid() == 0 and "postgres" not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("root needs the user postgres to run PostgreSQL as")
    folder = Path(tempfile.mkdtemp(prefix="postgresql_"))  # pytest's own folders are closed to other users
    try:
        server = Server(found[-1].parent, folder)
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def worker(
    folder: Path, server: Server, trials: int, *extra: str, fake: dict | None = None
) -> Iterator[subprocess.Popen]:
    """A machine: a process with an output folder of its own; its output goes to `folder`/log."""
    flags = searched(folder, "--trials", str(trials), "--pruner", "none", "--storage", server.url, *extra)
    command = [sys.executable, str(ROOT / "tests" / "search" / "fake_trials.py"), *flags]
    environment = {**os.environ, "HEARTBEAT": HEARTBEAT, "FAKE": json.dumps(fake or {})}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen, folder: Path) -> int:
    code = process.wait(timeout=300)
    assert code <= 0, (folder / "log").read_text()
    return code


def wait_for(condition: Callable[[], object], process: subprocess.Popen | None = None) -> None:
    """Wait until something is so; a process that ends before it is a failure."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline and (process is None or process.poll() is None)
        time.sleep(0.1)


def done_in(folder: Path) -> set[str]:
    return {path.name for path in (folder / "out").glob("trial_*") if path.is_dir()}


def test_two_machines_share_trials_without_doing_one_twice(tmp_path, server):
    a, b = tmp_path / "a", tmp_path / "b"
    with worker(a, server, 8, "--study", "shared") as one, worker(b, server, 8, "--study", "shared") as other:
        assert ended(one, a) == ended(other, b) == 0
    assert not done_in(a) & done_in(b) and done_in(a) and done_in(b)
    assert done_in(a) | done_in(b) == {f"trial_{k:03d}" for k in range(1, 9)}
    assert max((column(folder, "status") for folder in (a, b)), key=len) == ["completed"] * 8
    study = optuna.load_study(study_name="shared", storage=server.url)
    assert [trial.state.name for trial in study.trials if "surplus" not in trial.user_attrs] == ["COMPLETE"] * 8


def test_the_trial_of_a_killed_machine_is_retried_by_another(tmp_path, server):
    a, b = tmp_path / "a", tmp_path / "b"
    with worker(a, server, 3, "--study", "killed", fake={"trial_001": "kill runner"}) as one:
        assert ended(one, a) == -9
    storage = optuna.storages.RDBStorage(server.url, heartbeat_interval=1, grace_period=int(HEARTBEAT.split()[1]))
    study = optuna.load_study(study_name="killed", storage=storage)
    wait_for(lambda: storage._get_stale_trial_ids(study._study_id))
    with worker(b, server, 3, "--study", "killed") as other:
        assert ended(other, b) == 0
    assert column(b, "setting") == ["1", "2", "3"] and column(b, "status") == ["completed"] * 3
    states = [(setting, trial.state.name) for setting, trial in numbered(study.trials)]
    assert states == [(1, "FAIL"), (1, "COMPLETE"), (2, "COMPLETE"), (3, "COMPLETE")]
    with worker(a, server, 3, "--study", "killed", "--resume") as one:  # what was its own is another's now
        assert ended(one, a) == 0
    assert column(a, "status") == ["completed"] * 3 and done_in(a) == {"trial_001"}


def test_a_restart_of_the_server_is_waited_for(tmp_path, server):
    with worker(tmp_path, server, 3, "--study", "restarted") as process:
        wait_for(lambda: "trial_001" in done_in(tmp_path), process)
        server.stop()
        try:
            wait_for(lambda: "the database does not answer" in (tmp_path / "log").read_text(), process)
        finally:
            server.start()
        assert ended(process, tmp_path) == 0
    assert column(tmp_path, "status") == ["completed"] * 3
