"""AP, curves and fitness equal the recorded figures and the plain loop; figures by size follow COCO's rules."""

import numpy as np
import pytest

from benchmarks.inference import slow_metrics
from yolov7fast.evaluation.average_precision import (
    ap_by_size,
    ap_per_class,
    class_metrics,
    compute_ap,
    fitness,
)


@pytest.mark.parametrize("metric", ["v7", "v5"])
def test_recorded_classes(golden, metric):
    g = golden("eval_metrics.npz")
    records = (g[name] for name in ("tp", "conf", "pred_cls", "target_cls"))
    found, curves = class_metrics(*records, v5_metric=metric == "v5")
    for field in found._fields:
        np.testing.assert_allclose(getattr(found, field), g[f"{metric}_{field}"], atol=1e-6)
    with_predictions = found.classes != 4  # class 4 has labels and no prediction: no curve was recorded
    np.testing.assert_allclose(curves.pr[with_predictions].T, g[f"{metric}_pr_curve_at50"], atol=1e-6)
    assert not curves.pr[~with_predictions].any()
    for field, name in (("p", "P"), ("r", "R"), ("f1", "F1")):
        np.testing.assert_allclose(getattr(curves, field), g[f"curve_{name}"], atol=1e-6)
    mean = golden("eval_metrics.json")[f"mean_{metric}"]
    assert found.ap.mean() == pytest.approx(mean["mAP"], abs=1e-9)
    assert int(curves.f1.mean(0).argmax()) == mean["best_f1_index"]


@pytest.mark.parametrize("case", ["one_hit", "half", "step", "none", "short"])
def test_recorded_curves(golden, case):
    figures = golden("eval_metrics.json")["compute_ap"][case]
    recall, precision = np.array(figures["recall"]), np.array(figures["precision"])
    assert compute_ap(recall, precision)[0] == pytest.approx(figures["v7"], abs=1e-9)
    assert compute_ap(recall, precision, v5_metric=True)[0] == pytest.approx(figures["v5"], abs=1e-9)


def test_recorded_fitness(golden):
    figures = golden("eval_metrics.json")["fitness"]
    np.testing.assert_allclose(fitness(np.array(figures["rows"])), figures["value"], atol=1e-9)


def random_records(seed: int, n: int = 4000, m: int = 500, classes: int = 7):
    rng = np.random.default_rng(seed)
    quality = rng.random(n)
    correct = quality[:, None] > np.linspace(0.7, 1.1, 10)
    score = (rng.integers(1, 300, n) / 300).astype(np.float32)
    return correct, score, rng.integers(0, classes, n).astype(np.float32), rng.integers(0, classes - 1, m).astype(float)


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_plain_loop(seed):
    """Of many and of few detections and labels, with equal scores, float32 and float64."""
    rng = np.random.default_rng(1000 + seed)
    records = random_records(seed, *rng.integers((1, 1, 2), (3000, 300, 10)).tolist())
    records = (records[0], records[1].astype((np.float32, np.float64)[seed % 2]), *records[2:])
    fast, slow = ap_per_class(*records), slow_metrics.ap_per_class(*records)
    for got, want in zip(fast, slow):
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_a_class_below_the_best_confidence_shows_precision_one_and_recall_zero():
    """P and R are read at one confidence for all: a class that says nothing above it has precision 1 and recall 0."""
    wrong = 200  # low-scored false alarms of class 0 keep the best confidence above class 1's only detection
    correct = np.ones((wrong + 3, 10), bool)
    correct[2:-1] = False
    score = np.concatenate(([0.9, 0.9], np.full(wrong, 0.05), [0.01]))
    cls = np.concatenate((np.zeros(wrong + 2), [1]))
    found = ap_per_class(correct, score, cls, np.array([0, 0, 1, 1, 1, 1]))
    assert found.p[0] > 0.99 and found.r[0] == 1.0
    assert (found.p[1], found.r[1]) == (1.0, 0.0) and found.ap[1, 0] > 0.2


def test_a_labelled_class_without_predictions_has_zeros():
    found = ap_per_class(np.ones((2, 10), bool), np.array([0.9, 0.9]), np.zeros(2), np.array([0, 0, 2]))
    assert found.classes.tolist() == [0, 2]
    assert (found.p[1], found.r[1], found.ap[1].sum()) == (0.0, 0.0, 0.0)


def test_no_labels_and_no_predictions():
    empty = np.zeros((0, 10), bool), np.zeros(0), np.zeros(0)
    assert len(ap_per_class(*empty, np.zeros(0)).classes) == 0
    found = ap_per_class(*empty, np.array([2.0, 2.0]))
    assert found.classes.tolist() == [2] and found.ap.sum() == 0


def sizes_of(correct, target_area, det_area, match_area):
    n, m = len(correct), len(target_area)
    score = np.linspace(0.9, 0.1, n)
    areas = (np.array(a, float) for a in (det_area, match_area, target_area))
    return ap_by_size(np.array(correct)[:, None].repeat(10, 1), score, np.zeros(n), np.zeros(m), *areas)


def test_detections_of_another_size_do_not_count():
    """A right box counts by its label's size, a wrong one by its own."""
    small, large = 100, 200 * 200
    # best first: right on the large label, wrong and large, right on the small label, wrong and small
    sizes = sizes_of([True, False, True, False], [small, large], [large, large, small, small], [large, 0, small, 0])
    assert sizes["small"].labels == sizes["large"].labels == 1
    assert sizes["small"].ap == pytest.approx(compute_ap(np.array([1.0, 1.0]), np.array([1.0, 0.5]))[0])
    assert sizes["large"].ap == pytest.approx(compute_ap(np.array([1.0, 1.0]), np.array([1.0, 0.5]))[0])
    assert sizes["small"].ar == sizes["large"].ar == 1.0
    assert sizes["medium"].labels == 0 and np.isnan(sizes["medium"][1:]).all(), "not measured"


def test_all_sizes_together_are_the_plain_figures():
    correct, score, cls, target = random_records(5)
    area = np.random.default_rng(0).uniform(0, 2e4, len(score))
    everything = ap_by_size(correct, score, cls, target, area, area, np.full(len(target), 500.0))["all"]
    found = ap_per_class(correct, score, cls, target)
    assert everything.ap == pytest.approx(found.ap.mean(), abs=1e-12)
    assert everything.ap50 == pytest.approx(found.ap[:, 0].mean(), abs=1e-12)
