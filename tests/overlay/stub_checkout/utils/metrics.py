"""Metrics of the stub checkout, with a name that NumPy 2 removed."""

from pathlib import Path

import numpy as np

from . import general


def fitness(x):
    return (x[:, :4] * [0.0, 0.0, 0.1, 0.9]).sum(1)


def ap_per_class(tp, conf, pred_cls, target_cls, v5_metric=False, plot=False, save_dir=".", names=()):
    order = np.argsort(-conf, kind="stable")
    tp, conf, pred_cls = tp[order], conf[order], pred_cls[order]
    classes = np.unique(target_cls)
    px, py, ap = np.linspace(0, 1, 1000), [], np.zeros((len(classes), tp.shape[1]))
    p, r = np.zeros((2, len(classes), 1000))
    for ci, c in enumerate(classes):
        mine = pred_cls == c
        if not mine.any():
            continue
        right, wrong = tp[mine].cumsum(0), (1 - tp[mine]).cumsum(0)
        recall, precision = right / ((target_cls == c).sum() + 1e-16), right / (right + wrong)
        r[ci] = np.interp(-px, -conf[mine], recall[:, 0], left=0)
        p[ci] = np.interp(-px, -conf[mine], precision[:, 0], left=1)
        for k in range(tp.shape[1]):
            ap[ci, k], envelope, at = compute_ap(recall[:, k], precision[:, k], v5_metric)
            if k == 0:
                py.append(np.interp(px, at, envelope))
    f1 = 2 * p * r / (p + r + 1e-16)
    if plot:
        plot_pr_curve(px, py, ap, Path(save_dir) / "PR_curve.png", names)
        for name, values in (("F1", f1), ("P", p), ("R", r)):
            plot_mc_curve(px, values, Path(save_dir) / f"{name}_curve.png", names, ylabel=name)
    best = f1.mean(0).argmax()
    return p[:, best], r[:, best], ap, f1[:, best], classes.astype("int32")


def compute_ap(recall, precision, v5_metric=False):
    at = np.concatenate(([0.0], recall, [1.0 if v5_metric else recall[-1] + 0.01]))
    envelope = np.maximum.accumulate(np.concatenate(([1.0], precision, [0.0]))[::-1])[::-1]
    x = np.linspace(0, 1, 101)
    return np.trapz(np.interp(x, at, envelope), x), envelope, at


class ConfusionMatrix:
    """Asks for all overlaps, not for those of winners."""

    def __init__(self, nc):
        self.seen = 0

    def process_batch(self, detections, labels):
        self.seen += int((general.box_iou(detections[:, :4], labels[:, 1:]) > 0.45).sum())


def plot_pr_curve(px, py, ap, save_dir="pr_curve.png", names=()):
    Path(save_dir).write_text(f"the checkout's own plot of {len(py)} classes")


def plot_mc_curve(px, py, save_dir="mc_curve.png", names=(), xlabel="Confidence", ylabel="Metric"):
    Path(save_dir).write_text(f"the checkout's own plot of {ylabel}")
