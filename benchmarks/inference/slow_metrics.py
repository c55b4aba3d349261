"""NMS, matching and AP in the simplest form: loops over images, classes and detections.

The fast versions are compared with these: in tests for equality, in benchmarks/inference/eval.py for speed.
"""

import numpy as np

THRESHOLDS = np.linspace(0.5, 0.95, 10, dtype=np.float32)


def iou_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, 4) and (m, 4) xyxy -> (n, m), float32, no epsilon."""
    wh = np.minimum(a[:, None, 2:], b[:, 2:]) - np.maximum(a[:, None, :2], b[:, :2])
    inter = wh.clip(0).prod(2)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return inter / (area_a[:, None] + area_b - inter)


def nms(boxes: np.ndarray, scores: np.ndarray, iou_thres: float, limit: int = 300) -> np.ndarray:
    """Greedy: best first, drop what overlaps it, repeat."""
    left = np.argsort(-scores, kind="stable")
    kept = []
    while len(left) and len(kept) < limit:
        best, left = left[0], left[1:]
        kept.append(best)
        left = left[~(iou_matrix(boxes[best : best + 1], boxes[left])[0] > iou_thres)]
    return np.array(kept, dtype=np.int64)


def match_image(detections: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Detections (n, 6) best first, labels (m, 5) class, xyxy of one image -> (n, 10) bool."""
    correct = np.zeros((len(detections), 10), bool)
    for cls in np.unique(labels[:, 0]):
        rows = np.flatnonzero(detections[:, 5] == cls)
        own = np.flatnonzero(labels[:, 0] == cls)
        if not len(rows):
            continue
        iou = iou_matrix(detections[rows, :4], labels[own, 1:])
        taken = set()
        for i, row in enumerate(rows):
            best = int(iou[i].argmax())
            if iou[i, best] > 0.5 and best not in taken:
                taken.add(best)
                correct[row] = iou[i, best] > THRESHOLDS
    return correct


def average_precision(recall: np.ndarray, precision: np.ndarray) -> float:
    mrec = np.concatenate(([0.0], recall, [recall[-1] + 0.01]))
    mpre = np.concatenate(([1.0], precision, [0.0]))
    mpre = np.flip(np.maximum.accumulate(np.flip(mpre)))
    x = np.linspace(0, 1, 101)
    return float(np.trapezoid(np.interp(x, mrec, mpre), x))


def ap_per_class(correct, score, pred_cls, target_cls):
    """p, r, ap (c, 10), f1 of the labelled classes: the whole curve, one threshold after the other."""
    order = np.argsort(-score, kind="stable")
    correct, score, pred_cls = correct[order], score[order], pred_cls[order]
    classes = np.unique(target_cls)
    x = np.linspace(0, 1, 1000)
    p, r, ap = np.zeros((len(classes), 1000)), np.zeros((len(classes), 1000)), np.zeros((len(classes), 10))
    for c, cls in enumerate(classes):
        rows = pred_cls == cls
        n_labels = (target_cls == cls).sum()
        if not rows.any():
            continue
        hits = correct[rows].cumsum(0)
        misses = (~correct[rows]).cumsum(0)
        recall, precision = hits / (n_labels + 1e-16), hits / (hits + misses)
        r[c] = np.interp(-x, -score[rows], recall[:, 0], left=0)
        p[c] = np.interp(-x, -score[rows], precision[:, 0], left=1)
        for k in range(10):
            ap[c, k] = average_precision(recall[:, k], precision[:, k])
    f1 = 2 * p * r / (p + r + 1e-16)
    best = f1.mean(0).argmax()
    return p[:, best], r[:, best], ap, f1[:, best]
