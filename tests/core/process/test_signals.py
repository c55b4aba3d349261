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


def test_a_run_under_nohup_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_in_the_middle_of_a_print_is_obeyed(monkeypatch):
    class Busy:
        def write(self, text):
            raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

        flush = write

    monkeypatch.setattr(sys, "stdout", Busy())
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.exit_code == 143


def test_the_second_interrupt_reaches_a_caller_of_the_library():
    with pytest.raises(KeyboardInterrupt), StopRequest():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)


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
