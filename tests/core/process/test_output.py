"""What a run prints reaches its log whatever becomes of the terminal, and no lost stream is an error."""

import io
import os
import subprocess
import sys

import pytest
from tqdm import tqdm

from tests.conftest import ROOT
from yolov7fast.core.process import output as module
from yolov7fast.core.process.output import run_output, stderr_lines_caught


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


def test_the_log_has_what_was_printed_before_it_had_a_place(log, capsys):
    with run_output() as output:
        print("before")
        output.keep_log(log, "heading")
        print("after", file=sys.stderr)
        print("no end of line", end="")
    print("behind")
    assert log.read_text() == "heading\nbefore\nafter\nno end of line\n"
    assert capsys.readouterr().out == "before\nno end of linebehind\n"


def test_of_a_progress_bar_the_log_has_the_end(log, monkeypatch, capsys):
    with run_output() as output:
        output.keep_log(log)
        for _ in tqdm(range(50), desc="epoch", mininterval=0, ascii=True):
            pass
    (line,) = log.read_text().splitlines()
    assert line.startswith("epoch: 100%") and "50/50" in line
    assert capsys.readouterr().err.count("\r") > 10
    monkeypatch.setattr(module, "BAR_SECONDS", 0.0)
    with run_output() as output:
        output.keep_log(log)
        for _ in tqdm(range(5), desc="slow", mininterval=0, ascii=True):
            pass
    assert sum("slow" in line for line in log.read_text().splitlines()) >= 5  # as after a minute each


class Broken(io.StringIO):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device"), ValueError("closed file")]
)
def test_a_lost_stream_is_noted_in_the_log_and_missed_by_nobody(log, monkeypatch, error):
    monkeypatch.setattr(sys, "stdout", Broken(error))
    with run_output() as output:
        output.keep_log(log)
        print("one")
        print("two")
    reason = error.strerror if isinstance(error, OSError) else error
    lost = f"the output is lost ({reason}): the run continues, this log has everything"
    assert sorted(log.read_text().splitlines()) == sorted(["one", lost, "two"])


def test_a_log_that_cannot_be_written_yet_is_written_later(tmp_path, monkeypatch):
    folder = tmp_path / "later"
    with run_output() as output:
        output.keep_log(folder / "train.log")
        print("one")
        folder.mkdir()
        print("two")
    assert (folder / "train.log").read_text() == "one\ntwo\n"
    monkeypatch.setattr(module, "MOST_PENDING", 10)
    with run_output() as output:
        output.keep_log(tmp_path / "never" / "train.log")
        print("x" * 100)
        assert len(output.log._pending) == 10


def test_a_forked_process_prints_though_another_thread_held_the_lock(log):
    with run_output() as output:
        output.keep_log(log)
        module._LOCK.acquire()  # as another thread would hold it at the moment of the fork
        child = os.fork()
        if child == 0:
            print("child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        module._LOCK.release()
    assert log.read_text() == "child\n"


COMMAND = """
import sys
from yolov7fast.core.errors import UserError, run_command
def main():
    {action}
run_command(main)
"""


@pytest.mark.parametrize(
    ("redirection", "action", "code"),
    [
        ("| true", "[print('x' * 10_000) for _ in range(1000)]", 141),
        ("> /dev/full", "print('x')", 2),
        ("2> /dev/full", "raise UserError('x')", 2),
        ("2>&-", "raise UserError('x')", 2),
        (">&-", "print('x'); open(sys.argv[1], 'w').write(str(sys.stdout))", 0),
    ],
)
def test_commands_end_without_a_traceback_where_their_output_is_lost(tmp_path, redirection, action, code):
    program = tmp_path / "program.py"
    program.write_text(COMMAND.format(action=action))
    shell = f'"{sys.executable}" "{program}" "{tmp_path / "file"}" {redirection}; exit ${{PIPESTATUS[0]}}'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=environment)
    assert (done.returncode, "Traceback" in done.stderr, "Exception ignored" in done.stderr) == (code, False, False)
    if code == 0:  # no file has taken the place of the closed stream
        assert (tmp_path / "file").read_text() == "None"


def is_decoder(line: str) -> bool:
    return "JPEG" in line


def test_wanted_lines_are_caught_and_others_follow(capfd):
    with stderr_lines_caught(is_decoder) as lines:
        os.write(2, b"Premature end of JPEG file\n")
        print("a bar", file=sys.stderr)
    os.write(2, b"JPEG outside\n")
    assert lines == ["Premature end of JPEG file"]
    assert capfd.readouterr().err == "a bar\nJPEG outside\n"


def test_stderr_is_back_after_an_error_and_within_another_capture(capfd):
    with stderr_lines_caught(is_decoder) as outer:
        with pytest.raises(RuntimeError), stderr_lines_caught(is_decoder) as inner:
            os.write(2, b"JPEG inner\n")
            raise RuntimeError
        os.write(2, b"JPEG outer\n")
    os.write(2, b"after\n")
    assert (inner, outer) == (["JPEG inner"], ["JPEG outer"])
    assert capfd.readouterr().err == "after\n"
