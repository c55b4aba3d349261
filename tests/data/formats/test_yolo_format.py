"""Lines of YOLO label files: good ones become objects, bad ones become faults with their line."""

import numpy as np
import pytest

from yolov7fast.data.formats.annotated_set import Sample
from yolov7fast.data.formats.yolo_format import parse_labels

GOOD = "0 0.5 0.5 0.2 0.4\n2 0.1 0.2 0.1 0.1\n"


def parsed(folder, text) -> Sample:
    (folder / "a.txt").write_text(text, newline="")
    sample = Sample("a.jpg", "a.jpg", (1, 1), str(folder / "a.txt"))
    parse_labels(sample)
    return sample


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("text", "faults", "lines"),
    [
        (GOOD, [], [1, 2]),
        ("", [], []),
        (GOOD.replace("\n", "\r\n"), [], [1, 2]),
        ("\n" + GOOD, [], [2, 3]),
        (GOOD.replace("\n", "\n\n", 1), [("wrong columns", 2)], [1, 3]),
        ("0 0.5 0.5 O.2 0.4\n" + GOOD, [("not a number", 1)], [2, 3]),
        ("0 0.5 0.5 inf 0.4\n" + GOOD, [("not finite", 1)], [2, 3]),
        ("nan 0.5 0.5 0.1 0.4\n" + GOOD, [("not finite", 1)], [2, 3]),
        ("1.5 0.5 0.5 0.1 0.4\n", [("fractional class", 1)], [1]),
        (GOOD + "-1 0.5 0.5 0.1 0.4\n", [("bad class", 3)], [1, 2]),
        ("1e300 0.5 0.5 0.1 0.4\n", [("bad class", 1)], []),
        (GOOD + "0 0.5 0.5 0.2 0.4 0.9\n", [("wrong columns", 3)], [1, 2]),
        ("0 0.1 0.1 0.3 0.1 0.3 0.3 0.1 0.3\n1 0.5 0.5 0.1 0.1\n", [("box among polygons", 2)], [1, 2]),
    ],
)
def test_good_lines_are_objects_and_bad_ones_faults(text, faults, lines, tmp_path):
    sample = parsed(tmp_path, text)
    assert [(fault.kind, fault.line) for fault in sample.faults] == faults
    assert sample.lines.tolist() == lines
    assert len(sample.classes) == len(sample.boxes) == len(sample.crowd) == len(lines)
    assert bool(sample.rings) == ("polygons" in str(faults))


def test_boxes_of_a_good_file(tmp_path):
    sample = parsed(tmp_path, GOOD)
    assert sample.classes.tolist() == [0, 2]
    np.testing.assert_allclose(sample.boxes, [[0.4, 0.3, 0.6, 0.7], [0.05, 0.15, 0.15, 0.25]], atol=1e-15)
