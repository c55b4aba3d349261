"""Two machines: network namespaces that a pair of virtual Ethernet devices joins, each with its own torchrun."""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.training.commands import ROOT, assert_same_weights, small_run, torchrun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CABLE = "cable"  # its end in each namespace
ADDRESSES = ("10.77.16.1", "10.77.16.2")


def ip(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Names of two namespaces, joined by a cable."""
    if not shutil.which("ip"):
        pytest.skip("needs iproute2: apt-get install iproute2")
    names = [f"machine{os.getpid()}{end}" for end in "ab"]
    try:
        for name in names:
            made = ip("netns", "add", name)
            if made.returncode:
                pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip() or 'run as root'}")
        ends = (["name", CABLE, "netns", name] for name in names)
        made = ip("link", "add", *next(ends), "type", "veth", "peer", *next(ends))
        if made.returncode:
            pytest.skip(f"virtual Ethernet devices cannot be made here: {made.stderr.strip()}")
        for name, address in zip(names, ADDRESSES):
            ip("-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            ip("-n", name, "link", "set", CABLE, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name)


def start(name: str, address: str, *arguments: str) -> subprocess.Popen:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1"]
    launcher += ["--rdzv_backend", "c10d", "--rdzv_id", "test", "--rdzv_endpoint", f"{ADDRESSES[0]}:29400"]
    launcher += ["--rdzv_conf", f"is_host={int(address == ADDRESSES[0])}"]  # it knows itself by its host name alone
    script = str(ROOT / "tests/training/agreeing_train.py")
    return subprocess.Popen(
        ["ip", "netns", "exec", name, *launcher, "--local_addr", address, script, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": CABLE, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
    )


def wait_for(text: bytes, processes: list[subprocess.Popen], enough: Callable[[Iterable], bool]) -> str:
    """Read what they print until enough (any, all) of them have printed this; returns what was seen."""
    seen = dict.fromkeys([process.stdout for process in processes], b"")
    running = list(seen)
    while not enough(text in found for found in seen.values()):
        for stream in select.select(running, [], [])[0]:
            more = os.read(stream.fileno(), 10_000)
            if more:
                seen[stream] = seen[stream][-20_000:] + more
            else:
                assert text in seen[stream], seen
                running.remove(stream)
    return "".join(found.decode(errors="replace") for found in seen.values())


def end(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_two_machines_train_as_two_processes_of_one(machines, tmp_path, shapes_small):
    folders = [tmp_path / "far", tmp_path / "near"]
    commands = []
    for folder in folders:
        folder.mkdir()
        commands.append(small_run(folder, shapes_small, "--epochs", "2", "--seed", "3"))
    processes = [start(name, address, *commands[0]) for name, address in zip(machines, ADDRESSES)]
    try:
        outputs = [process.communicate(timeout=400)[0] for process in processes]
    finally:
        end(processes)
    assert [process.returncode for process in processes] == [0, 0], outputs
    near = torchrun(*commands[1])
    assert near.returncode == 0, near.stderr[-3000:]
    assert_same_weights(*(folder / "runs/run/weights/epoch_001.pt" for folder in folders))


def test_a_cut_link_ends_both_sides_with_a_message(machines, tmp_path, shapes_small):
    command = small_run(tmp_path, shapes_small, "--epochs", "10000", "--seed", "3", "--notest", "--nosave")
    command += ["--dist-timeout", "0.2"]  # 12 seconds
    processes = [start(name, address, *command) for name, address in zip(machines, ADDRESSES)]
    log = tmp_path / "runs" / "run" / "train.log"
    try:
        wait_for(b" 1/9999 ", processes, any)  # the first epoch is over; which of them is rank 0 is not known
        ip("-n", machines[0], "link", "set", CABLE, "down")
        message = "another process of this run has ended or cannot be reached"
        seen = wait_for(message.encode(), processes, all)  # torchrun on the far side may wait minutes for its store
    finally:
        end(processes)
    for rank in (0, 1):
        assert f"error: rank {rank}: {message}" in seen
    assert message in log.read_text()
