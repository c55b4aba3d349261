"""docs/ota.md: its code chooses what the package chooses, and its example by hand adds up."""

import re

import numpy as np
import pytest
import torch

from tests.docs.guide import ROOT, blocks
from yolov7fast.losses.simota import GroundTruthBoxes, MatchingChunk, Predictions, SimOTA, plan_chunks

TEXT = (ROOT / "docs" / "ota.md").read_text()


@pytest.fixture(scope="module")
def shown() -> dict:
    names: dict = {}
    (code,) = blocks("ota.md", "python")
    exec(code, names)
    return names


def chosen(boxes, classes, predicted, objectness, logits) -> torch.Tensor:
    """What the package's assigner gives one image's candidates: (P,) index of the box, -1 for none."""
    one_image = np.zeros(len(predicted), np.int64), np.zeros(len(boxes), np.int64)
    chunk = MatchingChunk(*map(torch.from_numpy, plan_chunks(*one_image)))
    nowhere = torch.zeros(4, len(predicted)), torch.ones(1, len(predicted))  # cells, which OTA does not look at
    predictions = Predictions(predicted.T, objectness, logits, *nowhere)
    given = SimOTA()(
        torch.zeros(len(predicted), dtype=torch.int64), predictions, GroundTruthBoxes(boxes, classes, (chunk,))
    )
    return torch.where(given.positive_mask, given.matched_gt, -1)


@pytest.mark.parametrize("seed", range(20))
def test_the_lines_shown_choose_what_the_package_chooses(shown, seed):
    random = torch.Generator().manual_seed(seed)
    corner = torch.rand(6, 2, generator=random) * 60
    boxes = torch.cat([corner, corner + 10 + torch.rand(6, 2, generator=random) * 40], 1)
    near = boxes[torch.randint(6, (40,), generator=random)]
    predicted = near + torch.randn(40, 4, generator=random) * 4
    classes = torch.randint(5, (6,), generator=random)
    objectness, logits = torch.randn(40, 1, generator=random), torch.randn(40, 5, generator=random) * 2
    expected = shown["simota"](boxes, classes, predicted, objectness, logits)
    assert chosen(boxes, classes, predicted, objectness, logits).tolist() == expected.tolist()
    assert (expected >= 0).sum() > 6


def test_the_example_by_hand_adds_up():
    table = TEXT.split("## An example by hand")[1]
    overlap = [[float(cell) for cell in re.findall(r"\d\.\d", row)] for row in re.findall(r"^\| [AB] .*$", table, re.M)]
    costs = {}
    for row in overlap:
        *pairs, total = row
        assert sum(pairs) == pytest.approx(total) and len(pairs) == 5
    assert [int(row[-1]) for row in overlap] == [2, 1]
    even, sure = -2 * np.log(0.5), -2 * np.log(0.1)
    assert f"from {even:.2f} to {sure:.2f}" in table and f"{3 * np.log(0.7 / 0.6):.2f} that candidate 3" in table
    for name, row in zip("AB", overlap):
        costs[name] = even - 3 * np.log(row[2])
    assert f"= {costs['A']:.2f}" in table and f"= {costs['B']:.2f}" in table and costs["A"] < costs["B"]
