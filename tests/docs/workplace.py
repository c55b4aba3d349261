"""A folder with what the documents name - my.yaml, best.pt, photos/, runs/train/exp - where commands run small."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import pytest
import yaml

from tests.docs.shell import ROOT, Block, Command, program_of_name, program_of_script
from tests.drawing import draw_nothing
from tests.inference.detect_runs import cells
from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint
from yolov7fast.core.programs import Program
from yolov7fast.data.shapes import NAMES
from yolov7fast.nn.model import Model

# what makes a command smaller, not different
CPU = ("--img-size", "64", "--workers", "0", "--device", "cpu")
SMALLER = {
    "train": (*CPU, "--epochs", "1", "--batch-size", "8", "--noautoanchor"),
    "test": CPU,
    "detect": ("--img-size", "64", "--device", "cpu"),
    "profile": ("--iters", "2", "--warm-iters", "1", "--img-size", "64", "--batch-size", "2", "--workers", "0"),
    "plan": ("--img-size", "64", "--batch-size", "2"),
}


class Workplace:
    """Runs commands in a folder of its own, each in this process."""

    def __init__(self, folder: Path, shapes: Path):
        self.folder = folder
        for kind in ("images", "labels"):
            shutil.copytree(shapes / kind, folder / "my" / kind)
        shutil.copytree(shapes, folder / "data" / "shapes", ignore=shutil.ignore_patterns("*.yaml", "*.cache"))
        for path in (ROOT / "data").glob("*.yaml"):
            shutil.copy(path, folder / "data")
        (folder / "narrow").mkdir()
        for path in (ROOT / "cfg" / "training").glob("*.yaml"):
            narrow = path.read_text().replace("width_multiple: 1.0", "width_multiple: 0.125")
            (folder / "narrow" / path.name).write_text(narrow)
        shutil.copy(folder / "narrow" / "yolov7-tiny.yaml", folder / "narrow" / "my-net.yaml")
        splits = {split: f"my/images/{split}" for split in ("train", "val")}
        (folder / "my.yaml").write_text(yaml.safe_dump({**splits, "names": list(NAMES)}))
        (folder / "photos").mkdir()
        cv2.imwrite(str(folder / "photos" / "a.jpg"), cells(0, 120, 160))
        network = Model(str(folder / "narrow" / "yolov7-tiny.yaml"), nc=len(NAMES))
        network.names = list(NAMES)
        for place in ("best.pt", "runs/train/exp/weights/best.pt", "weights/yolov7-tiny.pt"):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            save_checkpoint({"epoch": -1, "model": network}, folder / place)

    def run(self, block: Block) -> Iterator[Command]:
        """Run a block, command by command; gives what was run."""
        for command in block.commands:
            program, flags = self.program(command)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(self.folder)
                draw_nothing(patch)
                for name, value in command.environment.items():
                    patch.setenv(name, value)
                patch.setattr(sys, "argv", [program.name, *self.narrowed(flags), *SMALLER.get(program.name, ())])
                assert program.run() in (None, 0, 3), str(command)  # 3: the doctor's warnings
            yield command

    def program(self, command: Command) -> tuple[Program, list[str]]:
        first, name, *flags = command.words
        find = {"python": program_of_script, "yolov7fast": program_of_name}.get(first)
        assert find, f"{command.document}: `{command}` cannot be run here: put <!-- not run: WHY --> above its block"
        return find(name), flags

    def narrowed(self, flags: list[str]) -> list[str]:
        """The same flags with --cfg at an eighth of the channels."""
        if "--cfg" not in flags:
            return flags
        at = flags.index("--cfg") + 1
        return [*flags[:at], str(self.folder / "narrow" / f"{Path(flags[at]).stem}.yaml"), *flags[at + 1 :]]
