"""Suppression equals the recorded output in every option, and the plain loop on random boxes."""

import sys
import types

import numpy as np
import pytest
import torch

import yolov7fast.predictors.nms
from benchmarks.inference.slow_metrics import nms as plain_nms
from yolov7fast.predictors.nms import CLASS_OFFSET, greedy_nms, non_max_suppression

CASES = ["a0_default", "a1_test_cli", "a2_agnostic", "a3_classes", "a4_multi_agn_class", "a5_hybrid", "a6_train_val"]
CASES += ["b0_nc1", "b1_nc1_multi", "c0_maxdet", "d0_maxnms", "e1_thr_strict", "e1_multi", "e2_iou_equal"]
CASES += ["e2_iou_above", "e3_ties", "e4_wrap4096", "e5_class_tie"]


def many_rows() -> np.ndarray:
    """31000 rows in 50 clusters; the last lies beyond the 30000 best."""
    i = np.arange(31000)
    cluster = np.where(i < 30380, i % 49, 49)
    rows = np.zeros((1, 31000, 6), np.float32)
    rows[0, :, 0], rows[0, :, 1] = 60 * (cluster % 10) + 30, 60 * (cluster // 10) + 30
    rows[0, :, 2:4], rows[0, :, 4], rows[0, :, 5] = 40, 0.95 - 2.5e-5 * i, 0.5
    return rows


@pytest.mark.parametrize("name", CASES)
def test_recorded_case(golden, name):
    case, arrays = golden("eval_nms.json")[name], golden("eval_nms.npz")
    prediction = many_rows() if case["input"] == "recipe_D" else arrays[case["input"]]
    labels = ()
    if case["hybrid"]:
        labels = [torch.from_numpy(arrays["A_labels0"]), torch.zeros(0, 5), torch.from_numpy(arrays["A_labels2"])]
    before = prediction.copy()
    out = non_max_suppression(torch.from_numpy(prediction), labels=labels, **case["options"])
    assert [len(o) for o in out] == case["counts"]
    for i, got in enumerate(out):
        assert got.shape[1] == 6
        np.testing.assert_allclose(got.numpy(), arrays[f"{name}_out{i}"], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(prediction, before)


@pytest.mark.parametrize("n, classes, spread", [(1, 1, 50), (130, 3, 60), (900, 2, 20), (6000, 5, 300), (6000, 1, 5)])
def test_greedy_equals_the_plain_loop(n, classes, spread):
    rng = np.random.default_rng(n + classes)
    centre = rng.uniform(0, spread * 10, (n, 2)).astype(np.float32)
    size = rng.uniform(10, 120, (n, 2)).astype(np.float32)
    boxes = np.concatenate((centre - size / 2, centre + size / 2), 1)
    boxes += rng.integers(0, classes, (n, 1)).astype(np.float32) * CLASS_OFFSET
    scores = rng.integers(1, 200, n).astype(np.float32) / 256  # many ties
    for threshold in (0.1, 0.45, 0.65, 1.0):
        np.testing.assert_array_equal(greedy_nms(boxes, scores, threshold), plain_nms(boxes, scores, threshold))


def test_nothing_above_the_threshold_gives_empty_tensors_for_every_image():
    out = non_max_suppression(torch.zeros(3, 10, 7))
    assert [tuple(o.shape) for o in out] == [(0, 6)] * 3
    assert non_max_suppression(torch.zeros(2, 0, 7))[1].shape == (0, 6)


def test_half_precision_input_gives_float_boxes():
    row = torch.tensor([[[100.0, 100.0, 40.0, 60.0, 0.9, 0.1, 0.8]]]).half()
    out = non_max_suppression(row)[0]
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out[0].numpy(), [80, 70, 120, 130, 0.72, 1], atol=1e-3)


@pytest.mark.parametrize("name", ["a1_test_cli", "a2_agnostic", "c0_maxdet", "d0_maxnms", "e3_ties"])
def test_an_operator_like_torchvisions_gives_the_same(golden, monkeypatch, name):
    """What an accelerator runs: the operator sees all candidates, the limits stand around it."""
    seen = []

    def operator(boxes, scores, iou_thres):
        seen.append(len(boxes))
        return torch.from_numpy(plain_nms(boxes.numpy(), scores.numpy(), iou_thres, limit=10**9))

    case, arrays = golden("eval_nms.json")[name], golden("eval_nms.npz")
    prediction = many_rows() if case["input"] == "recipe_D" else arrays[case["input"]]
    own = non_max_suppression(torch.from_numpy(prediction), **case["options"])
    monkeypatch.setattr(yolov7fast.predictors.nms, "nms_operator", lambda device_type: operator)
    out = non_max_suppression(torch.from_numpy(prediction), **case["options"])
    assert all(torch.equal(a, b) for a, b in zip(own, out))
    assert max(seen) <= 30000


def test_torchvision_that_does_not_work_is_no_error(monkeypatch):
    """Beside this CPU-only torch it fails on import; elsewhere it may fail when called."""
    find = yolov7fast.predictors.nms.nms_operator.__wrapped__
    assert find("cpu") is None
    broken = types.ModuleType("torchvision.ops")
    broken.nms = lambda *_: (_ for _ in ()).throw(RuntimeError("operator torchvision::nms does not exist"))
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.ops", broken)
    assert find("meta") is None
    monkeypatch.setitem(sys.modules, "torchvision.ops", None)
    assert find("meta") is None
    working = types.ModuleType("torchvision.ops")
    working.nms = lambda boxes, scores, iou: torch.zeros(0, dtype=torch.long, device=boxes.device)
    monkeypatch.setitem(sys.modules, "torchvision.ops", working)
    assert find("meta") is working.nms
