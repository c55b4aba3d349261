"""Run folders, lookup of files in the working directory and among the shipped ones, image sizes."""

import os

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import ROOT, check_file, check_img_size, increment_path, latest_run, shipped_file


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


CORRECTED = {  # recorded answer that overwrites a run or counts a parent's number -> ours
    ("runs/v1.0", "runs/v1.02", True): "runs/v1.03",
    ("exp50/sub/exp", "exp50/sub/exp51", True): "exp50/sub/exp2",
}


def test_run_folders_are_named_as_recorded_but_for_two_faults(golden, in_empty_folder):
    for case in golden("eval_misc.json")["increment_path"]:
        for folder in case["existing"]:
            (in_empty_folder / folder).mkdir(parents=True, exist_ok=True)
        taken = (in_empty_folder / case["got"]).exists() or case["got"].endswith("51")
        want = CORRECTED.get((case["ask"], case["got"], taken), case["got"])
        assert increment_path(case["ask"], exist_ok=case["exist_ok"]).as_posix() == want


def test_a_file_is_found_as_given_or_below_the_working_directory(in_empty_folder):
    (in_empty_folder / "data").mkdir()
    (in_empty_folder / "data/a.yaml").touch()
    assert check_file("data/a.yaml") == "data/a.yaml"
    assert check_file("a.yaml") == os.path.join("data", "a.yaml")
    assert check_file("") == ""


def test_several_files_of_one_name_are_named(in_empty_folder):
    for folder in ("one", "two"):
        (in_empty_folder / folder).mkdir()
        (in_empty_folder / folder / "a.yaml").touch()
    with pytest.raises(UserError, match=r"one/a\.yaml, two/a\.yaml"):
        check_file("a.yaml")
    assert check_file("two/a.yaml") == "two/a.yaml"


@pytest.mark.parametrize("i", range(5))
def test_image_size_is_rounded_up_as_recorded_and_said(golden, caplog, i):
    size, stride, want = golden("eval_misc.json")["check_img_size"][i]
    assert check_img_size(size, s=stride) == want
    assert (str(want) in caplog.text) == (size != want)


def test_latest_run_is_the_newest_last_checkpoint(in_empty_folder, monkeypatch):
    assert latest_run() == ""
    times = {}
    for i, name in enumerate(("exp", "exp2", "exp3")):
        weights = in_empty_folder / "runs" / name / "weights"
        weights.mkdir(parents=True)
        (weights / "last.pt").touch()
        (weights / "best.pt").touch()
        times[name] = 100 if name == "exp2" else i
    monkeypatch.setattr(os.path, "getctime", lambda path: times[path.parts[-3]])
    assert latest_run() == os.path.join("runs", "exp2", "weights", "last.pt")


@pytest.mark.parametrize(
    ("name", "kind", "file"),
    [
        ("yolov7-tiny", "cfg", "cfg/training/yolov7-tiny.yaml"),
        ("tiny", "hyp", "data/hyp.scratch.tiny.yaml"),
        ("small", "hyp", "data/hyp.small.yaml"),
        ("data/hyp.shapes.yaml", "hyp", "data/hyp.small.yaml"),  # its name in older versions
        ("coco320", "data", "data/coco320.yaml"),
        ("tiny_smoke", "run file", "configs/tiny_smoke.yaml"),
        ("lr_bs", "experiment", "experiments/lr_bs.json"),
        ("cfg/training/yolov7.yaml", "", "cfg/training/yolov7.yaml"),
    ],
)
def test_shipped_files_are_found_from_any_folder(in_empty_folder, name, kind, file):
    assert check_file(name, kind) == str(ROOT / file)


def test_the_working_folder_comes_first(in_empty_folder):
    own = in_empty_folder / "data" / "coco.yaml"
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
def test_a_missing_file_suggests_the_nearest_shipped_ones(in_empty_folder, name, kind, nearest):
    with pytest.raises(UserError, match=f"{name} does not exist.*{nearest}"):
        check_file(name, kind)


@pytest.mark.parametrize("name", ["../train.py", "/etc/passwd", "README.md", "train.py", "pyproject.toml"])
def test_nothing_else_of_the_checkout_ships(in_empty_folder, name):
    assert shipped_file(name, "cfg") is None
