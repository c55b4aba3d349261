"""--fix writes a corrected copy and a list of every change; the files that were checked stay as they are."""

import json
import os
import re

import numpy as np
import pytest

from tests.data.formats.drawn_sets import write_coco
from tests.data.formats.test_prepare import tree
from yolov7fast.cli.commands.data import main
from yolov7fast.core.errors import UserError
from yolov7fast.data.caches.label_cache import load_labels
from yolov7fast.data.checks.check_findings import CORRECTED, ERROR, undecided
from yolov7fast.data.checks.examine import examine
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.formats.write_dataset import write_as
from yolov7fast.data.labels import find_images

OPTIONS = {"img_size": 320, "cfg": "cfg/training/yolov7-tiny.yaml"}


@pytest.fixture(scope="module")
def fixed(seeded, tmp_path_factory):
    folder, _ = seeded
    out = tmp_path_factory.mktemp("fixed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("YOLOV7FAST_CACHE", str(out / "cache"))
        before = tree(folder)
        examined = examine(folder, **OPTIONS)
        written = write_as("yolo", examined.annotated, out / "fixed", "link", remarks=undecided(examined.report))
    assert tree(folder) == before
    return out / "fixed", (out / "fixed/changes.txt").read_text(), written.changes


def test_the_copy_has_none_of_the_defects_that_have_one_right_answer(fixed):
    folder, _, _ = fixed
    left = {f.check: f for f in examine(folder, **OPTIONS).report.findings}
    assert not (left.keys() & (CORRECTED - {"missing label", "suffix differs from content"}))
    errors = {check for check, finding in left.items() if finding.severity == ERROR}
    assert errors == {"image in two splits", "class in val alone"}  # only the user can decide


def test_training_leaves_no_image_of_the_copy_out(fixed):
    folder, _, _ = fixed
    source = load_data_yaml(folder).split("train")
    images = find_images(source)
    table = load_labels(images, source)
    assert table.counts.corrupt == 0
    assert len(table.img_files) == len(images)


def test_every_change_is_listed_with_file_and_line(fixed, seeded):
    _, text, counts = fixed
    changes = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(changes) == sum(counts.values())
    for defect in seeded[1]:
        if defect.check in CORRECTED and defect.line:
            assert re.search(rf"/{defect.file}:{defect.line}: ", text), defect
    assert "box cut at the edge of the image: 0 0.95 0.5 0.3 0.2 -> 0 0.9 0.5 0.2 0.2" in text
    assert "# not corrected, because only you can decide:" in text


def test_lines_without_fault_stay_as_they_were_written(fixed, seeded):
    folder, _, _ = fixed
    at_fault = {os.path.splitext(d.file)[0] for d in seeded[1]}
    for path in (seeded[0] / "labels" / "train").glob("*.txt"):
        copy = folder / "labels" / "train" / path.name
        if path.stem not in at_fault:
            np.testing.assert_allclose(*(np.array(p.read_text().split(), float) for p in (copy, path)), atol=1e-6)


def test_other_formats_are_corrected_as_a_yolo_copy(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    root = write_coco(tmp_path / "set")
    file = root / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    extra = [[0, 0, 0, 9], [-20, -20, 40, 40], [500, 500, 10, 10], ["a", 0, 1, 1], [-20, -20, 40.1, 40.1]]
    first = content["annotations"][0] | {"segmentation": []}
    content["annotations"] += [{**first, "id": 900 + i, "bbox": box} for i, box in enumerate(extra)]
    file.write_text(json.dumps(content))
    (tmp_path / "cfg.yaml").write_text("anchors:\n  - [10,13, 16,30, 33,23]\n")
    assert main(["check", str(root), "--cfg", "cfg.yaml"]) == 4
    offer = capsys.readouterr().out.splitlines()[-1]
    assert offer.startswith("--fix FOLDER writes a corrected copy of the labels: it can correct ")
    assert "box outside the image" in offer and "image in two splits" not in offer
    assert main(["check", str(root), "--cfg", "cfg.yaml", "--fix", "fixed"]) == 4
    assert f"{file}, annotation 902: " in capsys.readouterr().out
    changes = (tmp_path / "fixed" / "changes.txt").read_text()
    assert all(f"instances_train2017.json, annotation {900 + i}: " in changes for i in range(5))
    decided = changes.partition("# not corrected, because only you can decide:\n")[2]
    assert f"#   {file}, annotation 904: nearly the same as annotation 901\n" in decided
    assert len((tmp_path / "fixed" / "labels" / "train" / "000.txt").read_text().splitlines()) == 3


def test_labels_are_never_corrected_in_place(clean, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    before = tree(clean)
    for inside in (clean, clean / "images", clean / "new"):
        with pytest.raises(UserError, match="lies in the data set's own folder"):
            main(["check", str(clean), "--fix", str(inside)])
    with pytest.raises(UserError, match="not empty"):
        main(["check", str(clean), "--cfg", "yolov7-tiny", "--fix", "other"])
    assert tree(clean) == before
