"""Which signals ask a run to stop, and what a second Ctrl-C does."""

import os
import signal
import subprocess
import sys

import pytest

from yolov7fast.core.process import signals
from yolov7fast.core.process.signals import StopRequest


@pytest.fixture(autouse=True)
def without_nohup():
    """Tests that nohup began have SIGHUP ignored, and a run would then outlive it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"])
def test_each_asks_for_a_stop_and_gives_its_exit_code(name, capsys):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop and stop.exit_code == 0
        os.kill(os.getpid(), number)
        assert stop and stop.exit_code == 128 + number
    assert signal.getsignal(number) == before
    assert f"{name}: finishing this step" in capsys.readouterr().out


STUBBORN = """
import atexit, os, signal, threading
from yolov7fast.core.process import signals
from yolov7fast.core.errors import run_command
class Ignoring:
    def __del__(self):  # here Python prints exceptions and ignores them
        os.kill(os.getpid(), signal.SIGINT)
        print("still here", flush=True)
def main():
    with signals.StopRequest(signals.second_interrupt):
        os.kill(os.getpid(), signal.SIGINT)
        Ignoring()
run_command(main)
"""


def test_the_second_interrupt_ends_a_command_at_once_without_a_traceback():
    done = subprocess.run([sys.executable, "-c", STUBBORN], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")
    assert "still here" not in done.stdout and "SIGINT: finishing this step" in done.stdout
    assert signals.second_interrupt is signals.raise_interrupt


EARLY = """
import os, signal, sys, time
from yolov7fast.core.errors import run_command
from yolov7fast.core.process.signals import end_on_signals
number = int(sys.argv[1])
end_on_signals()
if sys.argv[2] == "import":
    import importing_kills
def main():
    try:
        os.kill(os.getpid(), number)
    finally:
        print("cleaned up", flush=True)
run_command(main)
"""


@pytest.mark.parametrize("name, moment", [("SIGTERM", "import"), ("SIGINT", "work"), ("SIGHUP", "work")])
def test_a_signal_outside_the_training_loop_ends_a_command_with_one_line(name, moment, tmp_path):
    """While modules are imported at once, later in order: files that are being written are removed."""
    number = getattr(signal, name)
    (tmp_path / "importing_kills.py").write_text(f"import os\nos.kill(os.getpid(), {number})\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", EARLY, str(int(number)), moment]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    line = "interrupted\n" if name == "SIGINT" else f"stopped by {name}\n"
    assert (done.returncode, done.stderr) == (128 + number, line)
    assert done.stdout == ("cleaned up\n" if moment == "work" else "")


def test_the_end_of_the_launcher_asks_for_a_stop(monkeypatch, capsys):
    with StopRequest(launcher=os.getppid()) as stop:
        assert not stop
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert stop and stop.exit_code == 143
    assert "the process that started this one has ended: finishing this step" in capsys.readouterr().out
