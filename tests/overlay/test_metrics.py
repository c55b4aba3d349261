"""Matching, average precision and suppression under the checkout's names."""

from importlib import import_module

import numpy as np
import pytest
import torch

from yolov7fast.core.boxes import box_iou
from yolov7fast.overlay.replacements import box_iou_for, overlaps_of_winners


def greedy(ious: torch.Tensor, labels: int) -> dict[int, int]:
    """Detection -> label by the loop of an evaluation script."""
    if not ious.numel():
        return {}
    overlap, label = ious.max(1)
    taken: dict[int, int] = {}
    for j in (overlap > 0.5).nonzero().view(-1).tolist():
        if label[j].item() not in taken.values():
            taken[j] = label[j].item()
        if len(taken) == labels:
            break
    return taken


@pytest.mark.parametrize("detections, labels", [(60, 5), (7, 20), (1, 1), (0, 3), (3, 0)])
def test_winners_alone_give_the_matching_of_all_overlaps(detections, labels):
    generator = torch.Generator().manual_seed(detections + labels)
    matched = 0
    for _ in range(50):
        low = torch.rand(detections + labels, 2, generator=generator) * 20
        boxes = torch.cat((low, low + 10 + torch.rand(detections + labels, 2, generator=generator) * 10), 1)
        found, wanted = boxes[:detections], boxes[detections:]
        expected = greedy(box_iou(found, wanted), labels)
        winners = overlaps_of_winners(found, wanted)
        assert winners.shape == (detections, labels)
        assert greedy(winners, labels) == expected
        rows = winners.max(1).values if winners.numel() else torch.zeros(0)
        assert int((rows > 0.5).sum()) == len(expected), "the loop runs over winners alone"
        matched += len(expected)
    assert matched or not detections or not labels


def test_overlaps_of_winners_are_given_to_the_evaluation_script_alone(tmp_path):
    boxes = torch.tensor([[0, 0, 10, 10.0], [0, 0, 10, 9.0]])
    replaced = box_iou_for(lambda a, b: "all of them")
    assert replaced(boxes, boxes[:1]) == "all of them"
    code = compile("result = box_iou(a, b)", str(tmp_path / "test.py"), "exec")
    names = {"box_iou": replaced, "a": boxes, "b": boxes[:1]}
    exec(code, names)
    assert names["result"].tolist() == [[1.0], [0.0]]


def test_average_precision_is_the_checkouts_with_its_own_plots(known_repo, inside, tmp_path):
    random = np.random.RandomState(0)
    tp = np.sort(random.rand(300, 10) < np.linspace(0.6, 0.1, 10), 1)[:, ::-1]
    # class 3 has labels and no detections, class 4 the reverse
    inputs = tp, random.rand(300), random.choice([0, 1, 2, 4], 300), random.choice([0, 1, 2, 3], 80)
    inside(known_repo, metrics=False)
    theirs = import_module("utils.metrics").ap_per_class(*inputs, plot=True, save_dir=tmp_path)
    plots = {path.name: path.read_text() for path in tmp_path.glob("*_curve.png")}
    inside.leave()
    inside(known_repo)
    ours = import_module("utils.metrics").ap_per_class(*inputs, plot=True, save_dir=tmp_path)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
        assert a.dtype == b.dtype
    assert len(plots) == 4
    assert {name: (tmp_path / name).read_text().split(" of ")[0] for name in plots} == dict.fromkeys(
        plots, "the checkout's own plot"
    )
    assert (tmp_path / "PR_curve.png").read_text() == plots["PR_curve.png"]
