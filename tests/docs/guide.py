"""Runs what a guide of docs/ shows: its lines of shell, in this process and at a reduced size, and its Python."""

import re
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import yaml

from tests.inference.detect_runs import cells
from tests.mini_network import NAMES, write_mini_weights
from yolov7fast.core.programs import program

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a document in one language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / document).read_text(), re.S)


def command_lines(document: str) -> list[list[str]]:
    """Every line of shell as its words, without comments."""
    lines = [line for block in blocks(document, "bash") for line in block.splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def run_line(words: Sequence[str], monkeypatch, *further: str) -> None:
    """Run `python SCRIPT ...` or `yolov7fast NAME ...` with further flags behind its own."""
    start, name, *flags = words
    monkeypatch.setattr(sys, "argv", [name, *flags, *further])
    if start == "python" and name.startswith("docs/"):
        runpy.run_path(str(ROOT / name))
    else:
        assert not program(Path(name).stem).run()


def write_workplace(folder: Path) -> None:
    """What the guides name: best.pt, my.yaml, folder/, and single images."""
    write_mini_weights(folder / "best.pt")
    for kind in ("images", "labels"):
        (folder / kind / "val").mkdir(parents=True)
    (folder / "folder").mkdir()
    for index in range(4):
        image = cells(index, 120, 160)
        for place in (f"images/val/{index}.png", f"folder/{index}.png"):
            cv2.imwrite(str(folder / place), image)
        (folder / f"labels/val/{index}.txt").write_text(f"{index % 3} 0.5 0.5 0.2 0.2\n")
    for name in ("image", "a", "b"):
        cv2.imwrite(str(folder / f"{name}.jpg"), cells(0, 120, 160))
    cv2.imwrite(str(folder / "large.jpg"), cells(5, 300, 700))
    data = {"train": str(folder / "images/val"), "val": str(folder / "images/val"), "nc": 3, "names": NAMES}
    (folder / "my.yaml").write_text(yaml.safe_dump(data))
