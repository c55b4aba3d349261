"""scripts/build_engine.sh with a trtexec that writes down what it was asked for."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPT = ROOT / "scripts" / "build_engine.sh"
FAKE = """#!/bin/sh
printf '%s\\n' "$@" > asked.txt
for word in "$@"; do case $word in --saveEngine=*) echo engine > "${word#--saveEngine=}";; esac; done
exit ${CODE:-0}
"""


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fake = tmp_path / "trtexec"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    (tmp_path / "best.onnx").write_text("graph")
    return tmp_path


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    env = os.environ | {"TRTEXEC": "./trtexec", **environment}
    return subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, env=env)


def test_it_asks_trtexec_for_an_engine_beside_the_file(workplace):
    done = run("best.onnx", "--fp16", SHAPES="images:1x3x64x64 images:2x3x64x64 images:4x3x64x64")
    assert done.returncode == 0 and "best.engine written" in done.stdout
    assert (workplace / "asked.txt").read_text().splitlines() == [
        "--onnx=best.onnx",
        "--saveEngine=best.engine.part",
        "--minShapes=images:1x3x64x64",
        "--optShapes=images:2x3x64x64",
        "--maxShapes=images:4x3x64x64",
        "--fp16",
    ]
    assert (workplace / "best.engine").read_text() == "engine\n"


def test_an_engine_that_fails_is_not_left_half(workplace):
    assert run("best.onnx", "mine.engine", CODE="3").returncode == 3
    assert sorted(p.name for p in workplace.iterdir()) == ["asked.txt", "best.onnx", "trtexec"]


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ((), {}, "scripts/build_engine.sh best.onnx [best.engine]"),
        (("nosuch.onnx",), {}, "error: nosuch.onnx is no .onnx file"),
        (("best.onnx",), {"TRTEXEC": "nosuch-trtexec"}, "error: nosuch-trtexec is not on PATH"),
    ],
)
def test_mistakes_are_named(workplace, arguments, environment, message):
    done = run(*arguments, **environment)
    assert done.returncode == 2 and message in done.stdout + done.stderr
