"""Label files that are read together give what each gives alone, whatever stands in the others."""

import numpy as np
import pytest

from yolov7fast.data.formats.yolo_text import parse_label_texts

GOOD = "0 0.5 0.5 0.2 0.4\n2 0.1 0.2 0.1 0.1\n"
TEXTS = {
    "good": GOOD,
    "another": "1 0.25 0.75 0.5 0.5",
    "empty": "",
    "windows": GOOD.replace("\n", "\r\n"),
    "blank line first": "\n" + GOOD,
    "word": "0 0.5 0.5 O.2 0.4\n" + GOOD,
    "infinite": "0 0.5 0.5 inf 0.4\n" + GOOD,
    "not a number": "nan 0.5 0.5 0.1 0.4\n" + GOOD,
    "fraction": "1.5 0.5 0.5 0.1 0.4\n",
    "negative": GOOD + "-1 0.5 0.5 0.1 0.4\n",
    "beyond": "1e300 0.5 0.5 0.1 0.4\n",
    "six columns": GOOD + "0 0.5 0.5 0.2 0.4 0.9\n",
    "polygon": "0 0.1 0.1 0.3 0.1 0.3 0.3 0.1 0.3\n",
}
KINDS = {
    "word": ["not a number"],
    "infinite": ["not finite"],
    "not a number": ["not finite"],
    "fraction": ["fractional class"],
    "negative": ["bad class"],
    "beyond": ["bad class"],
    "six columns": ["wrong columns"],
}


@pytest.mark.filterwarnings("error")
def test_files_read_together_are_as_each_alone():
    together = parse_label_texts(list(TEXTS.values()), list(TEXTS))
    for (name, text), parsed in zip(TEXTS.items(), together, strict=True):
        (alone,) = parse_label_texts([text], [name])
        for a, b in zip((parsed.classes, parsed.boxes, parsed.lines), (alone.classes, alone.boxes, alone.lines)):
            assert a.dtype == b.dtype and np.array_equal(a, b), name
        assert parsed.faults == alone.faults, name
        assert [fault.kind for fault in parsed.faults] == KINDS.get(name, []), name
        assert len(parsed.rings) == (name == "polygon")


def test_numbers_and_lines_of_a_good_file():
    _, parsed = parse_label_texts(["7 0.5 0.5 1 1\n", GOOD], ["a", "b"])
    assert parsed.classes.tolist() == [0, 2] and parsed.lines.tolist() == [1, 2]
    np.testing.assert_allclose(parsed.boxes, [[0.4, 0.3, 0.6, 0.7], [0.05, 0.15, 0.15, 0.25]], atol=1e-15)


def test_arrays_that_files_share_cannot_be_written_to():
    parsed = parse_label_texts([GOOD, GOOD], ["a", "b"])[1]
    for array in (parsed.classes, parsed.boxes, parsed.lines):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
