"""When workers die, run out of memory or meet a broken file: a sentence with a remedy, no hang, nothing left behind."""

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.data.loading.loader_fakes import FakeDataset
from yolov7fast.core.errors import UserError
from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.data.loading.create_dataloader import make_loader
from yolov7fast.data.loading.worker_processes import failure_of

ROOT = Path(__file__).resolve().parents[3]
LOADERS = [{}, {"seed": 1}, {"worker_tensor": True}, {"worker_tensor": True, "seed": 1}]


def run_to_the_end(workers=2, options=None, **fate):
    loader = make_loader(FakeDataset(24, seed=1, **fate), 4, workers, **(options or {}))
    try:
        for _ in range(2):
            list(loader)
    finally:
        loader.close()


@pytest.mark.parametrize("options", LOADERS)
def test_a_killed_worker_ends_the_run_with_a_remedy(options):
    with pytest.raises(UserError, match=r"data worker \d+ died \(.*[Kk]ill.*fewer --workers.*--shm-size"):
        run_to_the_end(options=options, fatal=(13, signal.SIGKILL))


@pytest.mark.parametrize("options, workers", [({}, 0), ({}, 2), ({"worker_tensor": True}, 2)])
def test_an_unreadable_file_is_named_in_one_sentence(options, workers):
    with pytest.raises(UserError) as caught:
        run_to_the_end(workers, options, broken=17)
    assert str(caught.value) == "image im17.jpg cannot be decoded"


def test_a_loader_that_is_forgotten_ends_its_workers():
    loader = make_loader(FakeDataset(24), 4, 2, worker_tensor=True)
    next(iter(loader))
    processes = list(loader._iterators[0]._workers)
    del loader
    assert all(p.exitcode is not None for p in processes)


def test_errors_are_put_into_words():
    assert "--shm-size" in failure_of(RuntimeError("unable to write to file </torch_1_2>: No space left (28)")).message
    assert "--shm-size" in failure_of(OSError(28, "No space left on device")).message
    assert "fewer --workers" in failure_of(MemoryError()).message
    assert "ulimit -n" in failure_of(OSError(24, "Too many open files")).message
    assert failure_of(UserError("image a.jpg")).message == "image a.jpg"
    assert failure_of(KeyError("x")) is None
    assert "ulimit -n" in failure_of(RuntimeError("Too many open files. Communication with ...")).message
    assert failure_of(RuntimeError("CUDA out of memory")) is None


def test_a_death_outside_the_loader_interrupts_nothing():
    """Torch would raise in the middle of whatever the caller does; here the next batch asked for says so."""
    loader = make_loader(FakeDataset(24), 4, 2)
    batches = iter(loader)
    next(batches)
    victim = loader._iterators[0]._workers[0]
    victim.kill()
    victim.join()
    signal.raise_signal(signal.SIGCHLD)  # torch's handler would raise here at the latest
    with pytest.raises(UserError, match=f"data worker {victim.pid} died"):
        next(batches)


def small_shm(command: list[str], size: str = "1m") -> list[str]:
    """The command with a /dev/shm of its own, of 1 MB."""
    return ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"', "sh", *command]


FULL = """
from tests.data.loading.loader_fakes import FakeDataset
from yolov7fast.data.loading.create_dataloader import make_loader
for options in ({"worker_tensor": True}, {}):
    loader = make_loader(FakeDataset(32, ((160, 160),)), 16, 2, **options)
    print(len(list(loader)), flush=True)
"""


@pytest.mark.parametrize("size, stdout", [("1m", "2\n"), ("32k", None)], ids=["batches", "locks of queues"])
def test_full_shared_memory_is_reported_and_shared_batches_need_none(size, stdout):
    if not shutil.which("unshare") or subprocess.run(small_shm(["true"]), capture_output=True).returncode:
        pytest.skip("needs the right to mount a small /dev/shm for one process")
    command = small_shm([sys.executable, "-c", FULL], size)
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert stdout is None or run.stdout == stdout  # shared batches are elsewhere; torch's do not fit
    assert "UserError: a data worker found /dev/shm full; start the container with a larger --shm-size" in run.stderr
    assert "Exception ignored" not in run.stderr


LEAVING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with it ignored
from tests.data.loading.loader_fakes import FakeDataset
from yolov7fast.data.loading.create_dataloader import make_loader
way, loaders, pids = sys.argv[1], [], []
for options in ({"worker_tensor": True, "seed": 1}, {}):
    loaders.append(make_loader(FakeDataset(24, seed=1), 4, 2, **options))
    next(iter(loaders[-1]))
    pids += [worker.pid for worker in loaders[-1]._iterators[0]._workers]
print(*pids, flush=True)
if way == "error":
    raise ValueError("an error of the caller")
if way in ("interrupted", "killed"):
    while True:
        for loader in loaders:
            list(loader)
"""


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def wait_until_gone(pid: int, seconds: float) -> bool:
    """Whether the process ends in time; one that is gone already counts."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


@pytest.mark.parametrize("way, code", [("error", 1), ("interrupted", -signal.SIGINT), ("killed", -9)])
def test_no_process_and_no_memory_is_left_behind(way, code):
    program = subprocess.Popen(
        [sys.executable, "-c", LEAVING, way],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
        start_new_session=True,
    )
    pids = [int(p) for p in program.stdout.readline().split()]
    if way == "interrupted":
        os.killpg(program.pid, signal.SIGINT)  # as Ctrl-C does: workers get it as well
    elif way == "killed":
        program.kill()
    _, errors = program.communicate()
    assert program.returncode == code, errors
    assert len(pids) == 4 and all(wait_until_gone(pid, 60) for pid in pids)
    left = [f.name for f in Path("/dev/shm").iterdir() if any(str(p) in f.name for p in (program.pid, *pids))]
    assert not left
    expected = {"error": 1, "interrupted": 1, "killed": 0}[way]
    assert errors.count("Traceback") == expected and "leaked" not in errors and "data worker" not in errors, errors


def test_memory_settings_of_the_user_are_kept(monkeypatch):
    options = []
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(mallopt=lambda *option: options.append(option)))
    keep_freed_memory()
    assert options or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    options.clear()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    keep_freed_memory()
    assert not options
