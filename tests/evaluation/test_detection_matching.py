"""Matching whole batches gives the recorded flags, and those of the plain loop."""

import numpy as np
import pytest
import torch

from benchmarks.inference import slow_metrics
from yolov7fast.evaluation.average_precision import ap_per_class
from yolov7fast.evaluation.detection_matching import Batch, match, native_batch
from yolov7fast.predictors.nms import non_max_suppression


def stub_shapes(g):
    rows = zip(g["shapes_h0w0"].tolist(), g["shapes_gain"].tolist(), g["shapes_pad"].tolist())
    return [(tuple(size), (tuple(gain), tuple(pad))) for size, gain, pad in rows]


def stub_batches(g, iou_thres=0.6, single_cls=False):
    """The recorded stub run: three batches of four images, suppressed and scaled back."""
    for b in range(3):
        targets = torch.from_numpy(g[f"b{b}_targets"].copy())
        if single_cls:
            targets[:, 1] = 0
        found = non_max_suppression(torch.from_numpy(g[f"b{b}_pred"]), 0.001, iou_thres, multi_label=True)
        yield native_batch(found, targets, stub_shapes(g), (256, 352))


@pytest.mark.parametrize(
    "case, recorded, options",
    [
        ("train_defaults", "train_defaults", {}),
        ("iou65", "iou65", {"iou_thres": 0.65}),
        ("v5", "train_defaults", {}),
        ("single_cls", "single_cls", {"single_cls": True}),
    ],
)
def test_recorded_run(golden, case, recorded, options):
    g, figures = golden("eval_match.npz"), golden("eval_match.json")[case]
    batches = list(stub_batches(g, **options))
    correct = np.concatenate([match(b).correct for b in batches])
    score, cls = (np.concatenate([b.detections[:, i] for b in batches]) for i in (4, 5))
    target_cls = np.concatenate([b.labels[:, 0] for b in batches])
    np.testing.assert_array_equal(correct, g[f"{recorded}_correct"])
    np.testing.assert_allclose(score, g[f"{recorded}_conf"], atol=1e-6)
    np.testing.assert_array_equal(cls, g[f"{recorded}_pcls"])
    np.testing.assert_array_equal(target_cls, g[f"{recorded}_tcls"])
    found = ap_per_class(correct, score, cls, target_cls, v5_metric=case == "v5")
    means = [x.mean() for x in (found.p, found.r, found.ap[:, 0], found.ap)]
    np.testing.assert_allclose(means, figures["results"][:4], atol=1e-6)
    np.testing.assert_allclose(found.ap.mean(1), figures["maps"], atol=1e-6)


def bccd_batch(g) -> Batch:
    """The recorded detections and labels of BCCD val as one batch."""
    dets = torch.from_numpy(g["det"]).split(g["n_det"].tolist())
    shapes = [((h, w), ((rh, rw), (px, py))) for h, w, rh, rw, px, py in g["h0_w0_rh_rw_padw_padh"].tolist()]
    return native_batch(list(dets), torch.from_numpy(g["targets_img_cls_xywhn"]), shapes, tuple(g["letterbox_hw"][0]))


def test_recorded_detections_of_bccd_give_the_recorded_figures(golden):
    g, figures = golden("eval_bccd.npz"), golden("eval_bccd.json")
    batch = bccd_batch(g)
    correct = match(batch).correct
    np.testing.assert_array_equal(correct, g["stats_correct"])
    for run in ("val_320_b16", "val_320_b16_v5metric"):
        found = ap_per_class(
            correct, batch.detections[:, 4], batch.detections[:, 5], batch.labels[:, 0], v5_metric="v5" in run
        )
        for i, name in enumerate(("RBC", "WBC", "Platelets")):
            want = figures[run]["per_class"][name]
            got = [found.p[i], found.r[i], found.f1[i], found.ap[i, 0], found.ap[i].mean()]
            np.testing.assert_allclose(got, [want[k] for k in ("P", "R", "F1", "AP50", "AP")], atol=1e-6)
            np.testing.assert_allclose(found.ap[i], want["AP_by_iou"], atol=1e-6)


def random_batch(seed: int, images: int = 6, classes: int = 3, most: int = 60) -> Batch:
    rng = np.random.default_rng(seed)

    def boxes(n):
        corner = rng.uniform(0, 80, (n, 2))
        return np.concatenate((corner, corner + rng.uniform(10, 40, (n, 2))), 1)

    n_labels, n_dets = rng.integers(0, 12, images), rng.integers(0, most, images)
    label_image, det_image = np.repeat(np.arange(images), n_labels), np.repeat(np.arange(images), n_dets)
    labels = np.concatenate((rng.integers(0, classes, (n_labels.sum(), 1)), boxes(n_labels.sum())), 1)
    near = rng.integers(0, max(len(labels), 1), n_dets.sum())
    where = np.where(rng.random((n_dets.sum(), 1)) < 0.6, labels[near, 1:], boxes(n_dets.sum()))
    where = where + rng.normal(0, 2, where.shape)
    score = np.concatenate([np.sort(rng.random(n))[::-1] for n in n_dets])[:, None]
    dets = np.concatenate((where, score, rng.integers(0, classes, (n_dets.sum(), 1))), 1)
    return Batch(dets.astype(np.float32), det_image, labels.astype(np.float32), label_image)


def plain_flags(batch: Batch) -> np.ndarray:
    plain = [
        slow_metrics.match_image(
            batch.detections[batch.det_image == i].reshape(-1, 6), batch.labels[batch.label_image == i]
        )
        for i in range(6)
    ]
    return np.concatenate(plain)


@pytest.mark.parametrize("seed", range(8))
def test_equals_the_plain_loop(seed):
    batch = random_batch(seed, classes=1 + seed % 4)
    np.testing.assert_array_equal(match(batch).correct, plain_flags(batch))


def test_pairs_at_the_edge_of_one_half_are_not_lost():
    """A detection whose centre lies on a label's edge can still be judged above 0.5 by rounding."""
    rng = np.random.default_rng(0)
    at, width = rng.uniform(0, 4000, 3000).astype(np.float32), rng.uniform(0.5, 300, 3000).astype(np.float32)
    factor = rng.choice([0.5, 2.0, 0.5000002, 1.9999996], 3000).astype(np.float32)
    labels = np.stack((np.zeros(3000), at, at, at + width, at + width), 1).astype(np.float32)
    dets = np.stack((at, at, at + width * factor, at + width, np.ones(3000), np.zeros(3000)), 1).astype(np.float32)
    right = match(Batch(dets, np.arange(3000), labels, np.arange(3000))).correct
    plain = [slow_metrics.match_image(det[None], label[None]) for det, label in zip(dets, labels)]
    np.testing.assert_array_equal(right, np.concatenate(plain))
    assert 100 < right[:, 0].sum() < 2900, "some are above, some are not"


def single_image(dets, labels) -> Batch:
    dets, labels = np.array(dets, np.float32).reshape(-1, 6), np.array(labels, np.float32).reshape(-1, 5)
    return Batch(dets, np.zeros(len(dets), int), labels, np.zeros(len(labels), int))


def test_a_detection_whose_best_label_is_taken_stays_wrong():
    labels = [[0, 0, 0, 100, 100], [0, 0, 20, 100, 120]]
    dets = [[0, 0, 100, 100, 0.9, 0], [0, 9, 100, 109, 0.8, 0]]  # the second also overlaps label 1 by more than 0.5
    matches = match(single_image(dets, labels))
    assert matches.label.tolist() == [0, -1]
    assert matches.correct.sum(1).tolist() == [10, 0]


def test_overlap_of_exactly_one_half_is_not_enough():
    matches = match(single_image([[0, 0, 10, 10, 0.9, 0]], [[0, 0, 0, 10, 20]]))
    assert not matches.correct.any() and matches.label.tolist() == [-1]


def test_nothing_to_match():
    assert match(single_image([], [])).correct.shape == (0, 10)
    assert match(single_image([], [[0, 1, 1, 2, 2]])).correct.shape == (0, 10)
    assert match(single_image([[1, 1, 2, 2, 0.5, 0]], [])).label.tolist() == [-1]
    assert not match(single_image([[5, 5, 5, 5, 0.9, 0]], [[0, 5, 5, 5, 5]])).correct.any(), "empty boxes"
