"""`yolov7fast check`: printed lines, exit code, and the Markdown file that is pasted into issues."""

import os
import re

import pytest

from yolov7fast.cli.commands import check
from yolov7fast.machine.gpu_check import CheckLine, judged


def passing(device, folder):
    yield judged("GPU memory", True, "31.0 GB free", "never shown")


def failing(device, folder):
    yield judged("/dev/shm", False, "0.06 GB free | <b>", "docker run --shm-size 8g")


def raising(device, folder):
    yield judged("first", True, "as it should be")
    raise RuntimeError("CUDA error: no kernel image\nis available")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command with these sections on a CPU; gives exit code, printed text and check.md."""

    def run(**sections):
        monkeypatch.setattr(check, "SECTIONS", {name.replace("_", "-"): made for name, made in sections.items()})
        code = check.main(["--device", "cpu", "--output", str(tmp_path / "out")])
        return code, capsys.readouterr().out, (tmp_path / "out" / "check.md").read_text()

    return run


def test_a_failed_check_has_its_remedy_and_an_exit_code(run):
    code, printed, page = run(environment=passing)
    assert code == 0 and "cpu: 1 ok" in page and "never shown" not in page
    code, printed, page = run(environment=passing, host_syncs=failing)
    assert code == 4 and "-> docker run --shm-size 8g" in printed and "cpu: 1 ok, 1 FAIL" in printed
    assert "| host-syncs | | |" in page
    assert "| FAIL | /dev/shm | 0.06 GB free \\| &lt;b> -> docker run --shm-size 8g |" in page


def test_an_exception_is_a_failed_line_with_its_place_and_the_other_sections_run(run):
    code, printed, page = run(speed=raising, environment=passing)
    assert code == 4 and "ok first" in printed and "ok GPU memory" in printed
    assert re.search(
        r"FAIL \| speed \| RuntimeError: CUDA error: no kernel image is available \(test_check.py:\d+\)", page
    )


@pytest.mark.parametrize(("visible", "chosen"), [(None, "0"), ("", ""), ("3,1", "3")])
def test_one_gpu_is_checked_and_its_children_see_the_same(visible, chosen, tmp_path, monkeypatch):
    seen = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(check, "SECTIONS", {"environment": lambda *_: iter([CheckLine(*"abc")])})
    monkeypatch.setattr(check, "machine_facts", lambda _: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]) or {})
    check.main(["--output", str(tmp_path)])
    assert seen == [chosen]
