"""Suppression, matching and average precision of this project, under the checkout's names and with its plots."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from yolov7fast.core import boxes
from yolov7fast.evaluation.average_precision import class_metrics, rank_by_class
from yolov7fast.predictors import nms


def non_max_suppression(prediction: torch.Tensor, *args, **kwargs) -> list[torch.Tensor]:
    """As `evaluation.nms.non_max_suppression`, also of predictions that a script made with gradients."""
    return nms.non_max_suppression(prediction.detach(), *args, **kwargs)


def ap_per_class_for(module: ModuleType) -> Callable:
    """`ap_per_class` for a checkout's `utils.metrics`, whose own functions draw the curves."""

    def ap_per_class(tp, conf, pred_cls, target_cls, v5_metric=False, plot=False, save_dir=".", names=()):
        """(precision, recall, AP, F1, class ids) of the classes that have labels."""
        ranking = rank_by_class(tp, conf, pred_cls, target_cls)
        found, curves = class_metrics(ranking, np.asarray(conf), v5_metric)
        if plot:
            drawn = [row for row, detections in zip(curves.pr, ranking.counts) if detections]
            module.plot_pr_curve(curves.x, drawn, found.ap, Path(save_dir) / "PR_curve.png", names)
            for values, file, label in (
                (curves.f1, "F1_curve.png", "F1"),
                (curves.p, "P_curve.png", "Precision"),
                (curves.r, "R_curve.png", "Recall"),
            ):
                module.plot_mc_curve(curves.x, values, Path(save_dir) / file, names, ylabel=label)
        return tuple(found)

    return ap_per_class


def box_iou_for(original: Callable) -> Callable:
    """`box_iou` that gives the matching in `test.py` the winners alone, and everyone else what it gave before."""

    def box_iou(box1: torch.Tensor, box2: torch.Tensor) -> torch.Tensor:
        caller = os.path.basename(sys._getframe(1).f_code.co_filename)
        return overlaps_of_winners(box1, box2) if caller == "test.py" else original(box1, box2)

    return box_iou


def overlaps_of_winners(detections: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(n, m) IoU of xyxy boxes, for a script that gives each detection, best first, its closest label if still free.

    A detection whose closest label goes to a better one stays wrong whatever it overlaps: its row is zeros, so that
    the script's loop, with a read from the device in each turn, runs over winners alone.
    """
    iou = boxes.box_iou(detections, labels)
    if not iou.numel():
        return iou
    overlap, label = iou.max(1)
    turn = torch.arange(len(iou), device=iou.device)
    above = torch.where(overlap > 0.5, turn, len(iou))  # who cannot match takes no label from others
    first = torch.full((iou.shape[1],), len(iou), device=iou.device).scatter_reduce_(0, label, above, "amin")
    return iou * (first[label] == turn)[:, None]
