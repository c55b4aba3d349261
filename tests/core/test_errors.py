"""Values in error messages: one line, short, in a bounded time, whatever they are."""

import resource
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from yolov7fast.core import errors
from yolov7fast.core.errors import run_command, shown
from yolov7fast.core.torch_build import Gpu

ROOT = Path(__file__).resolve().parents[2]


def bomb(depth: int) -> list:
    """As YAML aliases make it: 2**depth leaves if anyone writes it out."""
    value: list = ["x"]
    for _ in range(depth):
        value = [value, value]
    return value


def endless() -> list:
    value: list = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [bomb(60), {"a": bomb(60)}, endless(), 10**400, -(10**5000), "x" * 10**6, OrderedDict(a=bomb(40)), nn.ReLU()],
    ids=["aliases", "mapping", "recursive", "400 digits", "5000 digits", "long text", "subclass", "module"],
)
def test_anything_is_shown_in_a_few_characters(value):
    assert 0 < len(shown(value)) <= 90


def test_plain_values_are_shown_as_they_are():
    assert [shown(v) for v in (1, -2.5, True, None, "a b", [1, "x"], {"k": (1,)})] == [
        *("1", "-2.5", "True", "None", "'a b'", "[1, 'x']", "{'k': (1,)}")
    ]
    assert "a/b" in shown(Path("a/b"))
    assert shown(10**400) == "<integer of about 401 digits>"


def test_control_characters_are_written_as_escapes():
    assert shown("a\x1b[31m\n") == r"'a\x1b[31m\n'" and "\n" not in shown(["\n\n"])


def no_thread():
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("greedy", [lambda: torch.empty(1 << 50), lambda: np.empty(1 << 50), no_thread])
def test_memory_that_ran_out_ends_a_command_with_one_line(greedy, capsys):
    with pytest.raises(SystemExit) as end:
        run_command(greedy)
    printed = capsys.readouterr().err
    assert end.value.code == 2 and printed.startswith("error: out of memory (") and printed.count("\n") == 1
    assert "raise the limit (ulimit -v)" in printed


def test_a_build_of_torch_without_code_for_the_gpu_is_named_with_the_build_that_has_it(capsys, monkeypatch):
    def no_code():
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors")

    monkeypatch.setattr(errors, "nvidia_gpus", lambda: [Gpu("NVIDIA GeForce RTX 5090", "570.124.06")])
    with pytest.raises(SystemExit) as end:
        run_command(no_code)
    printed = capsys.readouterr().err
    assert end.value.code == 2 and "holds no code for this GPU" in printed and printed.count("\n") == 1
    assert printed.rstrip().endswith("--index-url https://download.pytorch.org/whl/cu128")


def test_other_errors_keep_their_traceback():
    with pytest.raises(RuntimeError, match="a fault of this program"):
        run_command(lambda: (_ for _ in ()).throw(RuntimeError("a fault of this program")))


def test_a_program_that_has_no_memory_for_its_imports_ends_with_one_line():
    limit = 500_000 << 10  # less than torch's libraries
    ended = subprocess.run(
        [sys.executable, ROOT / "train.py"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert ended.returncode == 2 and ended.stderr.startswith("error: out of memory ("), ended.stderr
    assert ended.stderr.count("\n") == 1
