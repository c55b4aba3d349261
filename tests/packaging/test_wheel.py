"""The wheel: one package, one command, the shipped YAML; it runs outside the checkout, without `models` and `utils`."""

import os
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.small_network import small_network
from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint

SHIPPED = ("cfg", "configs", "data", "experiments")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.Path:
    """Built from a copy, without network: an old build/ of the checkout must not get in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("yolov7fast", *SHIPPED):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "shapes", "*.cache"))
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*build, "-w", str(out), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("yolov7fast-*.whl")
    return zipfile.Path(path)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Its files as an installation lays them out."""
    folder = tmp_path_factory.mktemp("site-packages")
    wheel.root.extractall(folder)
    return folder


def run(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def test_it_adds_one_package_and_one_command(installed):
    entries = {path.name for path in installed.iterdir()}
    (info,) = (name for name in entries if name.endswith(".dist-info"))
    assert entries == {"yolov7fast", info}
    scripts = ConfigParser()
    scripts.read(installed / info / "entry_points.txt")
    assert dict(scripts["console_scripts"]) == {"yolov7fast": "yolov7fast.__main__:main"}


def test_every_module_and_every_shipped_file_is_in_it(installed):
    modules = {path.relative_to(ROOT) for path in (ROOT / "yolov7fast").rglob("*.py")}
    assert {path for path in modules if not (installed / path).is_file()} == set()
    tracked = subprocess.run(["git", "ls-files", *SHIPPED], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert len(tracked) > 50
    assert [name for name in tracked if not (installed / "yolov7fast" / "shipped" / name).is_file()] == []


def test_commands_run_from_it_and_find_the_shipped_files(installed, tmp_path):
    overview = run(installed, tmp_path, "-m", "yolov7fast", "--help")
    assert overview.returncode == 0 and "trials" in overview.stdout and "train-detr" in overview.stdout
    flags = run(installed, tmp_path, "-m", "yolov7fast", "train", "--help")
    assert flags.stdout.startswith("usage: yolov7fast train [flags]") and "--fast-dataloader" in flags.stdout
    drawn = run(installed, tmp_path, "-m", "yolov7fast", "data", "shapes", "--train", "2", "--val", "1", "--size", "96")
    assert drawn.returncode == 0 and (tmp_path / "data/shapes/images/val").is_dir()
    program = (
        "import sys; from yolov7fast.core.files.paths import check_file;"
        "from yolov7fast.data.data_yaml import load_data_yaml;"
        "from yolov7fast.core.programs import program; from yolov7fast.cli.parser import parser_for;"
        "print(check_file('yolov7-tiny', 'cfg')); print(check_file('data/hyp.scratch.p5.yaml', 'hyp'));"
        "print(load_data_yaml('shapes').nc); print(program('train').child()[1:]);"
        "print(parser_for('train').parse_args(['--config', 'tiny_smoke']).cfg); print('torch' in sys.modules)"
    )
    done = run(installed, tmp_path, "-c", program)
    shipped = installed / "yolov7fast" / "shipped"
    assert done.stdout.splitlines() == [
        str(shipped / "cfg/training/yolov7-tiny.yaml"),
        str(shipped / "data/hyp.scratch.p5.yaml"),
        "4",
        "['-m', 'yolov7fast', 'train']",
        "cfg/training/yolov7-tiny.yaml",
        "False",
    ], done.stderr


def test_a_foreign_program_loads_a_checkpoint(installed, tmp_path):
    """Its own `models` and `utils` are left alone, and none is needed."""
    save_checkpoint({"model": small_network(2, ["a", "b"]), "epoch": -1}, tmp_path / "a.pt")
    (tmp_path / "utils.py").write_text("mine = 1\n")
    program = (
        "import sys, utils, yolov7fast; early = 'torch' in sys.modules; detector = yolov7fast.load('a.pt');"
        "found = (early, type(detector).__name__, len(detector.names));"
        "print(*found, utils.mine, 'models' in sys.modules)"
    )
    done = run(installed, tmp_path, "-c", program)
    assert done.stdout.split() == ["False", "ImageDetector", "2", "1", "False"], done.stderr
