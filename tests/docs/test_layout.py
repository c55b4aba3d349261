"""CLAUDE.md: the layout names every package, and the files where behaviours are said to live exist and hold them."""

import re
from collections import Counter

import pytest

from tests.conftest import ROOT

TEXT = (ROOT / "CLAUDE.md").read_text()
LAYOUT = re.search(r"## Layout\n```\n(.*?)```", TEXT, re.S)[1]
CELLS = [cell.strip() for line in TEXT.splitlines() if line.startswith("| ") for cell in line.strip("| ").split("|")]
BEHAVIOURS = {what: where.split("`")[1] for what, where in zip(CELLS[::2], CELLS[1::2]) if "`" in where}
PACKAGE = ROOT / "yolov7fast"
MODULES, LINES = 16, 500  # in a folder; of a module

# a text that the file named in CLAUDE.md contains: if the behaviour moves, the table has to follow
HOLDS = {
    "a flag's default and limits": "class Flag",
    "what `--resume` may change": "fixed: bool",
    "keys of a run file": "def read_run_file",
    "mosaic of four or nine images": "def draw_nine",
    "letterbox": "def letterbox",
    "start or resume a run": "def start_or_resume",
    "what a label line must be": "def _value_faults",
    "`--cache-images disk`": "class PackedImages",
    "batches in shared memory": "class SharedMemoryLoader",
    "candidate anchors of a box": "def find_candidates",
    "SimOTA": "class SimOTA",
    "the OTA loss": "class ComputeLossOTA",
    "one training step": "class TrainStep",
    "when an epoch ends, validates, saves": "class Trainer",
    "what a checkpoint stores for resume": "def collect_state",
    "learning rate of a step": "def rates",
    "reading an untrusted `.pt`": "class RestrictedUnpickler",
    "names of classes in `.pt` files": "PATHS_IN_FILES",
    "non-maximum suppression": "def non_max_suppression",
    "the table test.py prints": "def print_table",
    "EMA decay": "class ModelEMA",
    "`--batch-size auto`, memory of a step": "def choose_batch",
    "fitness and AP": "def fitness",
    "test-time augmentation": "def _forward_augmented",
    "copies by `--mirror`": "class Mirror",
    "`--on-save`, `--on-end`": "class RunHooks",
    "`yolov7fast status`": "def run_status",
    "CUDA graphs": "class GraphedNet",
}


def files_of(where: str) -> list:
    paths = [path for path in PACKAGE.glob(where) if path.exists()]
    return [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]


def test_the_table_has_a_text_for_every_behaviour():
    assert len(BEHAVIOURS) >= 20 and set(HOLDS) == set(BEHAVIOURS)


@pytest.mark.parametrize("what", HOLDS)
def test_a_behaviour_lives_where_the_table_says(what):
    files = files_of(BEHAVIOURS[what])
    assert files, f"{BEHAVIOURS[what]} does not exist"
    assert any(HOLDS[what] in file.read_text() for file in files), f"no file of {BEHAVIOURS[what]} has {HOLDS[what]}"


def test_the_layout_names_every_package_and_no_other():
    drawn = set(re.findall(r"(?:^  |\s{2,})(\w+)/ ", LAYOUT, re.M))
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= drawn, f"not drawn: {packages - drawn}"
    inside = set(re.findall(r"^  (\w+)/ ", LAYOUT, re.M))
    assert inside <= packages, f"drawn, but not there: {inside - packages}"


@pytest.mark.parametrize("path", re.findall(r"(?<![\w/])(\w+\.py|\w+/)(?= )", LAYOUT))
def test_what_the_layout_draws_exists(path):
    assert (ROOT / path).exists() or (PACKAGE / path).exists() or list(PACKAGE.glob(f"*/{path}")), path


@pytest.mark.parametrize("folder", ["yolov7fast", "benchmarks"])
def test_packages_and_modules_stay_small(folder):
    modules = [path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"]
    held = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules)
    assert len(held) > 5 and {name: count for name, count in held.items() if count > MODULES} == {}
    lines = {path.relative_to(ROOT).as_posix(): path.read_text().count("\n") for path in modules}
    assert {name: count for name, count in lines.items() if count > LINES} == {}
