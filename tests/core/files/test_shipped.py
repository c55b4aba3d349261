"""Shipped YAML: found by its path from anywhere, and by short names; the working folder's own files come first."""

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import ROOT, check_file, shipped_file


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind", "file"),
    [
        ("yolov7-tiny", "cfg", "cfg/training/yolov7-tiny.yaml"),
        ("yolov7-tiny-silu", "cfg", "cfg/deploy/yolov7-tiny-silu.yaml"),
        ("tiny", "hyp", "data/hyp.scratch.tiny.yaml"),
        ("tiny.noota", "hyp", "data/hyp.scratch.tiny.noota.yaml"),
        ("small", "hyp", "data/hyp.small.yaml"),
        ("data/hyp.shapes.yaml", "hyp", "data/hyp.small.yaml"),  # its name in older versions
        ("coco320", "data", "data/coco320.yaml"),
        ("tiny_smoke", "run file", "configs/tiny_smoke.yaml"),
        ("lr_bs", "experiment", "experiments/lr_bs.json"),
        ("cfg/training/yolov7.yaml", "", "cfg/training/yolov7.yaml"),
        ("data/coco.yaml", "data", "data/coco.yaml"),
    ],
)
def test_shipped_files_are_found_from_any_folder(elsewhere, name, kind, file):
    assert check_file(name, kind) == str(ROOT / file)


def test_the_working_folder_comes_first(elsewhere):
    own = elsewhere / "data" / "coco.yaml"
    own.parent.mkdir()
    own.touch()
    assert check_file("data/coco.yaml", "data") == "data/coco.yaml"
    assert check_file("coco.yaml", "data") == "data/coco.yaml"


@pytest.mark.parametrize(
    ("name", "kind", "nearest"),
    [
        ("yolov7tiny", "cfg", "shipped: yolov7-tiny"),
        ("data/hyp.tinny.yaml", "hyp", "shipped: .*tiny"),
        ("coco300.yaml", "data", "shipped: coco320"),
    ],
)
def test_a_missing_file_suggests_the_nearest_shipped_ones(elsewhere, name, kind, nearest):
    with pytest.raises(UserError, match=f"{name} does not exist.*{nearest}"):
        check_file(name, kind)


@pytest.mark.parametrize("name", ["../train.py", "/etc/passwd", "README.md", "train.py", "pyproject.toml"])
def test_nothing_else_of_the_checkout_ships(elsewhere, name):
    assert shipped_file(name, "cfg") is None
