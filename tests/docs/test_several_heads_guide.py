"""docs/several_heads.md: sizes of the networks are those of the code."""

import re

import pytest

from tests.conftest import ROOT
from yolov7fast.nn.model import Model
from yolov7fast.nn.summary import count_gflops

TEXT = (ROOT / "docs" / "several_heads.md").read_text()
ROWS = re.findall(r"^\| (yolov7\S*) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|$", TEXT, re.M)
SMALL = 128  # pixels; operations grow with the area
CASES = [pytest.param(*row, marks=[] if "tiny" in row[0] else pytest.mark.slow) for row in ROWS]


@pytest.mark.parametrize(("name", "heads", "parameters", "last", "gflops"), CASES)
def test_its_table_of_sizes(name, heads, parameters, last, gflops):
    chosen = {"heads": int(heads)} if "1b4h" in name else {}
    model = Model(ROOT / "cfg" / "training" / f"{name}.yaml", **chosen)
    count = sum(p.numel() for p in model.parameters())
    assert (f"{count:,}", f"{sum(p.numel() for p in model.model[-1].parameters()):,}") == (parameters, last)
    assert count_gflops(model, SMALL) * (640 / SMALL) ** 2 == pytest.approx(float(gflops), rel=2e-3)


def test_the_table_is_found():
    assert len(ROWS) == 7
