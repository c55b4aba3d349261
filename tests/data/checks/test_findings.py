"""Seeded defects are found, each by its name, file and line; a clean set has none."""

import os
import shutil
from collections import Counter

import pytest

from tests.data.checks.seeded import Defect
from yolov7fast.data.checks.check_findings import CHECKS, ERROR, NOTE, DatasetCounts, Findings
from yolov7fast.data.checks.examine import check_classes, examine

CFG = "cfg/training/yolov7-tiny.yaml"
OPTIONS = {"img_size": 320, "cfg": CFG}


def found(report) -> Counter:
    return Counter(Defect(f.check, os.path.basename(p.file), p.line) for f in report.findings for p in f.places)


def test_every_seeded_defect_is_found_and_named_with_file_and_line(seeded):
    folder, defects = seeded
    assert len({defect.check for defect in defects}) >= 20
    report = examine(folder, **OPTIONS).report
    missed = Counter(defects) - found(report)
    assert not missed, f"{len(defects) - sum(missed.values())} of {len(defects)} found"
    assert all(CHECKS[f.check].remedy for f in report.findings)
    assert report.severity == ERROR
    errors = {defect for defect in found(report) if CHECKS[defect.check].severity == ERROR}
    assert errors <= set(defects), "false alarms"


def test_figures_count_what_is_there(clean):
    report = examine(clean, **OPTIONS).report
    figures = report.figures
    assert {f.check for f in report.findings if f.severity != NOTE} <= {"rare class"}
    files = [p.read_text().splitlines() for p in sorted((clean / "labels" / "train").glob("*.txt"))]
    counts = sorted((len(rows) for rows in files), reverse=True)
    assert figures.splits[0]["objects"] == sum(counts)
    assert (figures.most_objects, figures.mosaic4, figures.mosaic9) == (counts[0], sum(counts[:4]), sum(counts[:9]))
    by_class = Counter(row.split()[0] for rows in files for row in rows)
    assert [c["by_split"]["train"] for c in figures.classes] == [by_class[str(i)] for i in range(4)]
    assert sum(b["count"] for b in figures.sizes) == sum(s["objects"] for s in figures.splits)
    assert sum(b["count"] for b in figures.objects) == 40


def test_classes_are_judged_by_their_number_of_training_objects():
    numbers = {"ball": (900, 50), "cone": (91, 9), "star": (90, 9), "crate": (19, 4), "comet": (0, 3), "ghost": (0, 0)}
    classes = [
        {"id": i, "name": name, "by_split": {"train": train, "val": val}}
        for i, (name, (train, val)) in enumerate(numbers.items())
    ]
    findings = Findings()
    check_classes(DatasetCounts(classes=classes), ["train", "val"], "data.yaml", findings)
    assert {f.check: [p.text for p in f.places] for f in findings.sorted()} == {
        "class in val alone": ["class 4 comet: 3 objects, none in train"],
        "unused class": ["class 5 ghost"],
        "rare class": ["class 3 crate: 19 objects in train"],
        "outnumbered class": ["class 2 star: ball has 10 times as many objects"],
    }


def test_anchors_that_reach_more_are_given_where_the_networks_own_do_not(clean, tmp_path):
    """At 1280 pixels with tiny anchors most boxes are out of reach."""
    cfg = tmp_path / "small.yaml"
    cfg.write_text("anchors:\n  - [2,2, 3,3, 4,4]\n  - [5,5, 6,6, 7,7]\n")
    figures = examine(clean, 1280, str(cfg)).report.figures
    assert figures.reached < 0.2
    assert figures.reached_then > 0.95
    assert len(figures.anchors_found.split(", ")) == 6


@pytest.mark.parametrize("kind", ["image", "label"])
def test_a_changed_file_is_read_again(clean, tmp_path, kind):
    folder = shutil.copytree(clean, tmp_path / "set")
    before = examine(folder, **OPTIONS).report
    assert examine(folder, **OPTIONS).report == before
    if kind == "image":
        (folder / "images" / "train" / "000001.jpg").write_bytes(b"damaged")
    else:
        (folder / "labels" / "train" / "000001.txt").write_text("9 9 9 9 9\n")
    assert examine(folder, **OPTIONS).report.severity == ERROR
