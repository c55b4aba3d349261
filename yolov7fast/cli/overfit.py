"""Overfit mode: how many images are memorised, for how long and at which learning rate."""

import logging
import math
from argparse import Namespace
from collections.abc import Callable, Collection
from typing import Any

from yolov7fast.core.errors import UserError

log = logging.getLogger(__name__)
IMAGES = 10  # of a bare --overfit
ITERATIONS = {"yolo": 300, "detr": 1500}  # at least
VALIDATIONS = 5  # in a run


def settle_overfit(opt: Namespace) -> None:
    """Set --overfit to the number of images to memorise, which --subset-size may name, and --subset-size to 0.

    Where both name a number, the command line has the last word.
    """
    overfit, subset = opt.overfit, opt.subset_size
    if not overfit:
        return
    named = overfit is not True  # True: the bare flag
    on_command_line = [name in getattr(opt, "given", ()) for name in ("overfit", "subset_size")]
    if named and subset and subset != overfit and on_command_line[0] == on_command_line[1]:
        of_file = "" if on_command_line[0] or not getattr(opt, "config", "") else f"{opt.config}: "
        raise UserError(
            f"{of_file}--overfit {overfit} and --subset-size {subset} name different numbers of images: leave one of "
            "them out, or give --overfit without a number"
        )
    if not named or (subset and on_command_line[1]):
        overfit = subset or IMAGES
    opt.overfit, opt.subset_size = overfit, 0


def apply_overfit_settings(opt: Namespace, family: str, kept: Collection[str]) -> None:
    """Set the length and the learning rate of overfit mode.

    The same options give the same result, so that a run that is resumed with its run file has the settings it began
    with.

    Args:
        opt: the options, with the number of images in `overfit`; changed in place.
        family: of detectors.
        kept: options that stay as they are: those of the command line, and those in the run file that sets `overfit`.
            Those of other run files are for a whole data set.
    """
    settings = length_settings(opt, family, kept) | RATE_SETTINGS.get(family, no_rates)(opt, kept)
    changed = {name: value for name, value in settings.items() if name not in kept and getattr(opt, name) != value}
    if changed:
        listed = ", ".join(f"{name} {getattr(opt, name)} -> {value}" for name, value in changed.items())
        log.info("--overfit sets %s (flags on the command line are kept)", listed)
    vars(opt).update(changed)


def length_settings(opt: Namespace, family: str, kept: Collection[str]) -> dict[str, Any]:
    """Epochs for enough iterations, with a few validations, unless epochs or iterations are kept."""
    if {"epochs", "max_iter"} & set(kept):
        return {}
    epochs = max(opt.epochs, math.ceil(ITERATIONS.get(family, 300) / math.ceil(opt.overfit / batch_of(opt))))
    files = {"checkpoint_period": epochs} if "checkpoint_period" in vars(opt) else {}
    return {"epochs": epochs, "max_iter": 0, "patience": 0, "eval_interval": math.ceil(epochs / VALIDATIONS), **files}


def batch_of(opt: Namespace) -> int:
    """Images of a batch; all of them with --batch-size auto."""
    return opt.batch_size if isinstance(opt.batch_size, int) else opt.overfit


def yolo_rates(opt: Namespace, kept: Collection[str]) -> dict[str, Any]:
    """Adam with a short warm-up and an update for every batch: hyp files for whole data sets warm up for longer.

    The learning rate is that of the optimizer: where one of the two is kept, both are.
    """
    if {"adam", "hyp"} & set(kept):
        return {}
    hyp = opt.hyp if isinstance(opt.hyp, dict) else {"base": opt.hyp}
    rates = {"lr0": 0.002, "lrf": 0.01, "warmup_bias_lr": 0.002, "warmup_epochs": 0, "warmup_min_iters": 5}
    return {"adam": True, "hyp": {**hyp, **rates, "nominal_batch": batch_of(opt)}}


def detr_rates(opt: Namespace, kept: Collection[str]) -> dict[str, Any]:
    """The given learning rate, which suits the network, falling by a cosine; a new backbone learns at the same rate."""
    backbone_lr = opt.backbone_lr if opt.pretrained else max(opt.lr, opt.backbone_lr)
    return {"schedule": "cosine", "backbone_lr": backbone_lr, "warmup_iters": 20}


def no_rates(opt: Namespace, kept: Collection[str]) -> dict[str, Any]:
    return {}


RateSettings = Callable[[Namespace, Collection[str]], dict[str, Any]]
RATE_SETTINGS: dict[str, RateSettings] = {"yolo": yolo_rates, "detr": detr_rates}
