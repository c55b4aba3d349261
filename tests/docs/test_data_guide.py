"""The commands of docs/data.md run as they stand there, on a small data set."""

import re
import shutil
from pathlib import Path

import pytest

from tests.data.formats.drawn_sets import write_csv, write_yolo
from yolov7fast.cli.commands.data import main

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "data.md").read_text()


def commands() -> list[str]:
    """`yolov7fast data ...` lines, without their comments."""
    lines = [line.partition("#")[0].split() for line in TEXT.splitlines() if line.startswith("yolov7fast data ")]
    return [" ".join(words[2:]) for words in lines]


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_the_guide_run(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOLOV7FAST_CACHE", str(tmp_path / "cache"))
    root = write_yolo(tmp_path / "set")
    shutil.make_archive("export", "zip", root)
    shutil.copy(root / "data.yaml", "my.yaml")
    Path("my.yaml").write_text((root / "data.yaml").read_text().replace("../", f"{root}/"))
    if "boxes.csv" in command:
        shutil.rmtree(root)
        table = write_csv(tmp_path / "csv")
        rows = [row.rpartition(",")[0] for row in (table / "boxes.csv").read_text().splitlines()]  # without splits
        shutil.copytree(table / "images", "images")
        Path("boxes.csv").write_text("\n".join(rows))
    assert main(command.split()) in (0, 3)


def test_files_and_flags_of_the_guide_exist():
    from yolov7fast.cli.flags import flags_of

    known = {flag.name for flag in flags_of("train", "yolo").values()}
    known |= {"--to", "--images", "--boxes", "--fix", "--save-json", "--size", "--imgsz"}
    assert set(re.findall(r"--[a-z][a-z-]+", TEXT)) <= known
    for name in re.findall(r"cfg/training/[\w.-]+\.yaml", TEXT):
        assert (ROOT / name).is_file()
