"""Overfit mode: how many images are memorised, for how long and at which learning rate."""

import logging
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from yolov7fast.core.errors import UserError

log = logging.getLogger(__name__)
IMAGES = 10  # of a bare --overfit
ITERATIONS = {"yolo": 300, "detr": 1500}  # at least
VALIDATIONS = 5  # in a run


def overfit_images(opt: Any) -> int:
    """The number of images that --overfit memorises, which --subset-size may name; 0: no overfit mode.

    Where both name a number, the one on the command line counts. opt: parsed flags or a config.
    """
    overfit, subset = opt.overfit, opt.subset_size
    if not overfit:
        return 0
    named = overfit is not True  # True: the bare flag
    on_command_line = [name in getattr(opt, "given", ()) for name in ("overfit", "subset_size")]
    if named and subset and subset != overfit and on_command_line[0] == on_command_line[1]:
        of_file = "" if on_command_line[0] or not getattr(opt, "config", "") else f"{opt.config}: "
        raise UserError(
            f"{of_file}--overfit {overfit} and --subset-size {subset} name different numbers of images: leave one of "
            "them out, or give --overfit without a number"
        )
    return (subset or IMAGES) if not named or (subset and on_command_line[1]) else overfit


def with_overfit(config: Any, family: str, kept: Collection[str]) -> Any:
    """The config of overfit mode: number of images, length and learning rate; others are returned as they are.

    The same flags give the same result, so that a run that is resumed with its run file has the settings it began with.

    Args:
        config: a `TrainConfig`.
        family: of detectors.
        kept: flags that stay as they are: those of the command line, and those in the run file that sets `overfit`.
            Those of other run files are for a whole data set.
    """
    if not config.overfit:
        return config
    config = replace(config, overfit=overfit_images(config), subset_size=0)
    settings = length_settings(config, family, kept)
    if family == "yolo":
        settings |= yolo_rates(config, kept)
    elif family == "detr":
        settings |= detr_rates(config)
    changed = {name: value for name, value in settings.items() if name not in kept and getattr(config, name) != value}
    if changed:
        listed = ", ".join(f"{name} {getattr(config, name)} -> {value}" for name, value in changed.items())
        log.info("--overfit sets %s (flags on the command line are kept)", listed)
    return replace(config, **changed)


def length_settings(config: Any, family: str, kept: Collection[str]) -> dict[str, Any]:
    """Epochs for enough iterations, with a few validations, unless epochs or iterations are kept."""
    if {"epochs", "max_iter"} & set(kept):
        return {}
    batches = math.ceil(config.overfit / batch_of(config))
    epochs = max(config.epochs, math.ceil(ITERATIONS.get(family, 300) / batches))
    files = {"checkpoint_period": epochs} if hasattr(config, "checkpoint_period") else {}
    return {"epochs": epochs, "max_iter": 0, "patience": 0, "eval_interval": math.ceil(epochs / VALIDATIONS), **files}


def batch_of(config: Any) -> int:
    """Images of a batch; all of them with --batch-size auto."""
    return config.batch_size if isinstance(config.batch_size, int) else config.overfit


def yolo_rates(config: Any, kept: Collection[str]) -> dict[str, Any]:
    """Adam with a short warm-up and an update for every batch: hyp files for whole data sets warm up for longer.

    The learning rate is that of the optimizer: where one of the two is kept, both are.
    """
    if {"adam", "hyp"} & set(kept):
        return {}
    hyp = config.hyp if isinstance(config.hyp, dict) else {"base": config.hyp}
    rates = {"lr0": 0.002, "lrf": 0.01, "warmup_bias_lr": 0.002, "warmup_epochs": 0, "warmup_min_iters": 5}
    return {"adam": True, "hyp": {**hyp, **rates, "nominal_batch": batch_of(config)}}


def detr_rates(config: Any) -> dict[str, Any]:
    """The given learning rate, which suits the network, falling by a cosine; a new backbone learns at the same rate."""
    backbone_lr = config.backbone_lr if config.pretrained else max(config.lr, config.backbone_lr)
    return {"schedule": "cosine", "backbone_lr": backbone_lr, "warmup_iters": 20}
