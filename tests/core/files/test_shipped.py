"""Shipped YAML: found by its path from anywhere, and by short names; the working folder's own files come first."""

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import KINDS, ROOT, check_file, shipped_by_name, shipped_file
from yolov7fast.training.hyperparameters import load_hyp


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


def test_inside_a_checkout_the_path_stays_short(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert check_file("yolov7x", "cfg") == "cfg/training/yolov7x.yaml"


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


def test_no_file_is_of_two_kinds():
    files = [path for kind in KINDS for path in shipped_by_name(kind).values()]
    assert len(files) == len(set(files)) > 40


def test_hyper_parameters_load_by_short_name(elsewhere):
    assert load_hyp("tiny")["loss_ota"] == 1 and load_hyp("tiny.noota")["loss_ota"] == 0
    assert load_hyp({"base": "tiny", "lr0": 0.5})["lr0"] == 0.5
