"""Checks of the flags of a command before anything is built: limits, flags that exclude others, overfit mode."""

import logging
import math
from argparse import Namespace
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from yolov7fast.cli.flags import Flag, flags_of
from yolov7fast.core.errors import UserError, shown, source_named
from yolov7fast.core.files.paths import check_path
from yolov7fast.core.resize_schedule import parse_resize_schedule
from yolov7fast.data.data_yaml import SPLITS

TASKS = (*SPLITS, "speed", "study")


def check_limits(opt: Any, flags: Mapping[str, Flag]) -> None:
    """Refuse numbers outside the limits of their rows, each by its flag."""
    for name, flag in flags.items():
        value = getattr(opt, name, None)
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            spelt = f"{flag.name.replace('_', '-')} is {number}"
            if not math.isfinite(number):
                raise UserError(f"{spelt}; it must be a finite number")
            too_low = flag.low is not None and number < flag.low
            too_high = flag.high is not None and number > flag.high
            if (too_low or too_high) and flag.high is not None:
                raise UserError(f"{spelt}; it must be in {flag.low:g}..{flag.high:.10g}")
            if too_low:
                raise UserError(f"{spelt}; it must be at least {flag.low:g}")


def check_train(opt: Any, family: str = "yolo") -> None:
    """Refuse impossible or contradicting flags of training, each by name, and with the file that may hold it.

    opt: parsed flags, or a `TrainConfig`.
    """
    source = f"run file: {opt.config}" if getattr(opt, "config", "") else ""
    if opt.resume and getattr(opt, "save_dir", ""):  # of a resumed run: most of its options come from there
        source = f"options of the run: {Path(opt.save_dir) / 'opt.yaml'}"
    with source_named(source):
        check_limits(opt, flags_of("train", family))
        overfit_images(opt)
        parse_resize_schedule(opt.resize_schedule)
        if opt.patience and opt.notest and not getattr(opt, "evolve", False):
            raise UserError("--patience judges epochs by validations that --notest leaves out: drop one of the two")
        for flag in ("project", "name"):
            check_folder_name(f"--{flag}", str(getattr(opt, flag, "")))
        if opt.allow_changed_data and not opt.resume:
            raise UserError("--allow-changed-data is for --resume: add that, or leave it out")
        if family == "yolo":
            _check_yolo(opt)
        elif family == "detr":
            _check_detr(opt)


def check_folder_name(flag: str, name: str) -> None:
    """Refuse a result folder whose name cannot be displayed or is too long for a file system."""
    check_path(name)
    if not name.isprintable():
        raise UserError(f"{flag} {shown(name)} holds line breaks or control characters; choose a name of plain text")


def _check_yolo(opt: Any) -> None:
    if len(opt.img_size) > 2:
        raise UserError(f"--img-size {' '.join(map(str, opt.img_size))}: one or two sizes of at least 32 pixels")
    if opt.label_smoothing >= 1:
        raise UserError(f"--label-smoothing is {opt.label_smoothing}; it must be below 1")
    if opt.shuffle and opt.seed is None:
        raise UserError("--shuffle needs --seed N, which the order of the images is drawn from")
    if opt.micro_batch and not (opt.worker_tensor or opt.fast_dataloader):
        raise UserError(
            "--micro-batch needs --worker-tensor (or --fast-dataloader): add it, or leave --micro-batch out"
        )
    if opt.resize_schedule and (opt.multi_scale or opt.evolve):
        raise UserError("--resize-schedule cannot be combined with --multi-scale or --evolve")
    if opt.assigner and opt.loss_ota is not None:
        raise UserError("--assigner and --loss-ota both select the assigner: leave one of them out")
    if opt.cuda_graph and opt.compile:
        raise UserError("--cuda-graph and --compile exclude each other; --compile reduce-overhead has both")
    if opt.transfer_weights and not opt.weights:
        raise UserError("--transfer-weights needs --weights FILE to take from")
    if opt.evolve and (opt.mirror or opt.on_save or opt.on_end):
        raise UserError("--evolve trains many networks: --mirror, --on-save and --on-end are for a single run")
    if opt.overfit and (opt.evolve or opt.image_weights):
        raise UserError("--overfit selects the images; leave out --image-weights and --evolve")


def _check_detr(opt: Any) -> None:
    if opt.scale_min == 0 or opt.crop_min == 0:
        raise UserError("--scale-min and --crop-min must leave something of an image: give a fraction above 0")
    if opt.pretrained and opt.weights:
        raise UserError("--pretrained and --weights both set the initial weights: leave one of them out")
    if any(stage.size < 32 for stage in parse_resize_schedule(opt.resize_schedule)):
        raise UserError(f"--resize-schedule {opt.resize_schedule}: sizes of at least 32 pixels")


def check_test(opt: Namespace) -> None:
    """Refuse impossible values before anything is loaded; weights become a list."""
    _check_inference(opt, flags_of("test"))
    opt.save_json |= opt.data.endswith("coco.yaml")
    if opt.task not in TASKS:
        raise UserError(f"--task {opt.task} is not known: it is one of {', '.join(TASKS)}")
    if opt.annotations and not opt.save_json:
        raise UserError("--annotations is read by --save-json only: add that flag")


def check_detect(opt: Namespace) -> None:
    """Refuse impossible values before anything is loaded; weights become a list."""
    _check_inference(opt, flags_of("detect"))


def _check_inference(opt: Namespace, flags: Mapping[str, Flag]) -> None:
    from yolov7fast.predictors.export_metadata import is_exported

    check_limits(opt, flags)
    for flag in ("project", "name"):
        check_folder_name(f"--{flag}", str(getattr(opt, flag, "")))
    opt.weights = [opt.weights] if isinstance(opt.weights, str) else opt.weights
    exported = [path for path in opt.weights if is_exported(path)]
    if exported and getattr(opt, "no_half", False):
        raise UserError(f"--no-half is for .pt files; {exported[0]} has the precision it was exported in: leave it out")
    if len(exported) == len(opt.weights) and "img_size" not in getattr(opt, "given", ()):
        opt.img_size = 0  # the one that the file names


# --- overfit mode -----------------------------------------------------------------------------------------------------
# Overfit mode: how many images are memorised, for how long and at which learning rate.


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
