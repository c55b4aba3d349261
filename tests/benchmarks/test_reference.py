"""The comparison with a checkout of upstream, with this project itself in its place."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest

from benchmarks import reference
from yolov7fast.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--batch-size", "2", "--img-size", "64", "--targets", "3", "--classes", "3", "--runs", "1", "--rounds", "1"]


def checkout(folder: Path) -> Path:
    """A copy of what the comparison uses, standing in for another project's folder."""
    for name in ("models", "utils", "cfg", "yolov7fast"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def images(shapes_small, tmp_path) -> Path:
    """Photographs whose label folder holds nothing but labels."""
    for kind in ("images", "labels"):
        shutil.copytree(shapes_small / kind / "train", tmp_path / "data" / kind / "train")
    return tmp_path / "data" / "images" / "train"


def run(other: Path, images: Path, *options: str) -> dict[str, dict]:
    out = other.parent / "figures.json"
    arguments = ["--reference", str(other), *SMALL, "--images", str(images), "--json", str(out), *options]
    assert reference.main(arguments) == 0
    return {row["what"]: row for row in json.loads(out.read_text())["rows"]}


def test_equal_projects_agree_in_losses_samples_steps_and_batches(tmp_path, images):
    rows = run(checkout(tmp_path / "other"), images, "--workers", "0")
    loader = next(row for name, row in rows.items() if name.startswith("loader, "))
    for row in (rows["plain loss, forward"], rows["OTA loss, forward and backward"], rows["training, step with OTA"]):
        assert row["ours"] > 0 and row["reference"] > 0
        assert "items: within 0.0e+00" in row["parity"]
    assert "matched cells: 0 of" in rows["OTA loss, forward"]["parity"]
    for row in (loader, rows["samples, 16 samples"]):
        assert row["ours"] > 0 and row["reference"] > 0
        assert "pixels: within 0.0e+00; labels: within 0.0e+00" in row["parity"]
    left = {path.name for path in images.parents[1].rglob("*") if path.is_file()}
    assert not [name for name in left if "cache" in name], "the user's label folder was written to"


def test_a_broken_part_is_reported_and_the_rest_still_timed(tmp_path, images, capsys):
    other = checkout(tmp_path / "other")
    (other / "utils" / "datasets.py").write_text("import numpy as np\nnp.int_that_was_removed\n")
    rows = run(other, images)
    for part in ("samples", "loader"):
        assert "upstream failed in round 1: AttributeError" in rows[part]["error"]
        assert "int_that_was_removed" in rows[part]["error"]
    assert rows["plain loss, forward"]["reference"] > 0
    assert "upstream failed" in capsys.readouterr().out


def test_each_side_has_labels_of_its_own(images, tmp_path):
    (images.parents[1] / "labels" / "train.cache").write_bytes(b"another project's")
    (images / "deeper").mkdir()
    shutil.copy(sorted(images.glob("*.*"))[0], images / "deeper" / "unlabelled.jpg")
    sides = [Path(reference.own_data(images, tmp_path / name)) for name in ("ours", "theirs")]
    labels = sorted((images.parents[1] / "labels" / "train").glob("*.txt"))
    for side in sides:
        assert (side / "deeper" / "unlabelled.jpg").is_symlink()
        own = side.parents[1] / "labels" / "train"
        assert sorted(path.name for path in own.glob("*.txt")) == [path.name for path in labels]
        assert (own / labels[0].name).read_text() == labels[0].read_text()
        assert not (own / labels[0].name).is_symlink() and os.access(own.parent, os.W_OK)
        assert not list(own.parent.glob("*.cache"))


def part(seconds: float, error: str | None = None) -> dict:
    return {"loss": {"seconds": {} if error else {"run": seconds}, "parity": {"items": [1.0]}, "error": error}}


def test_medians_go_over_all_rounds_and_an_error_of_any_round_is_reported():
    rows = reference.compare([(part(1.0), part(4.0)), (part(2.0), part(5.0)), (part(9.0), part(9.0))])
    assert rows == [{"what": "loss, run", "ours": 2.0, "reference": 5.0, "parity": "items: within 0.0e+00"}]
    rows = reference.compare([(part(1.0), part(4.0)), (part(2.0), part(0.0, "KeyError: x"))])
    assert rows == [{"what": "loss", "error": "upstream failed in round 2: KeyError: x"}]
    rows = reference.compare([(part(1.0), part(4.0)), (part(2.0), {})])
    assert rows == [{"what": "loss", "error": "upstream failed in round 2: not run"}]


@pytest.mark.parametrize(
    "ours, theirs, difference",
    [
        ([1.0, [2.0]], [1.0, [2.5]], 0.2),
        ([1.0, 2.0], [1.0], math.inf),
        ([math.nan, 1.0], [1.0, 1.0], math.inf),
        ([1.0, math.nan], [1.0, math.nan], math.inf),
        ([1.0, 1.0], [1.0, math.nan], math.inf),
        ([math.inf], [math.inf], 0.0),
        (["abc"], ["abc"], 0.0),
        (["abc"], ["abd"], math.inf),
        ([1.0], [None], math.inf),
    ],
)
def test_what_is_no_number_or_of_another_shape_differs(ours, theirs, difference):
    assert reference.worst(ours, theirs) == pytest.approx(difference)
    if difference == math.inf:
        assert reference.parity({"items": ours}, {"items": theirs}) == "items: differ"


def test_a_result_of_the_round_before_does_not_stand_in_for_a_crash(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UserError, match=r"could not be run at all: .*No such file"):
        reference.run_side(tmp_path / "none", tmp_path, tmp_path / "inputs.npz")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--rounds", "0"], "--rounds is 0; it must be at least 1"),
        (["--runs", "0"], "--runs is 0"),
        (["--batch-size", "-2"], "--batch-size is -2"),
        (["--classes", "0"], "--classes is 0"),
        (["--img-size", "100"], "--img-size is 100; it must be a multiple of 32"),
    ],
)
def test_impossible_numbers_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        reference.main(["--reference", str(ROOT), *options])


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(UserError, match="is no checkout"):
        reference.main(["--reference", str(tmp_path)])
