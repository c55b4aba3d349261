"""Lines that C code prints to stderr are caught; everything else reaches the terminal."""

import os
import sys

import pytest

from yolov7fast.core.process.output import stderr_lines_caught


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
