"""The flags of the DETR commands. What train.py has too is taken from its table, so that one name means one thing."""

import argparse
import math
from collections.abc import Mapping
from typing import Any

import yaml

from yolov7fast.cli import detect_flags as cli_detect
from yolov7fast.cli import flags as cli
from yolov7fast.cli import test_flags as cli_test
from yolov7fast.cli.flags import Flag, Parser
from yolov7fast.cli.run_file import check_limits, check_patience, check_seed, parse_resize_schedule
from yolov7fast.core.errors import UserError

TRAIN_SHARED = (
    "config", "data", "epochs", "batch_size", "resume", "nosave", "notest", "cache_images", "cache_dir", "device",
    "single_cls", "local_rank", "workers", "project", "name", "exist_ok", "fast_dataloader", "seed", "deterministic",
    "amp", "patience", "test_batch_size", "eval_interval", "max_iter", "subset_size", "subset_seed", "overfit",
    "resize_schedule", "save_every", "skip_nonfinite", "wandb", "entity", "upload_dataset", "bbox_interval",
    "save_period", "artifact_alias",
)  # fmt: skip
TEST_SHARED = (
    "data", "weights", "batch_size", "img_size", "conf_thres", "task", "device", "single_cls", "verbose", "save_txt",
    "save_conf", "save_json", "project", "name", "exist_ok", "v5_metric", "save_per_class_ap", "annotations", "workers",
    "fast_dataloader", "cache_images",
)  # fmt: skip
DETECT_SHARED = (
    "weights", "source", "img_size", "conf_thres", "device", "view_img", "save_txt", "save_conf", "nosave", "classes",
    "project", "name", "exist_ok", "batch_size",
)  # fmt: skip


def mapping(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """A mapping of a run file as it is, or YAML in one line from the command line: '{num_queries: 50}'."""
    try:
        found = yaml.safe_load(value) if isinstance(value, str) else value
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NoMapping(f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, Mapping | None):
        raise NoMapping(f"'{value}' is not a mapping such as '{{num_queries: 50}}'")
    return dict(found or {})


class NoMapping(argparse.ArgumentTypeError, ValueError):
    """Told by the parser of flags as it stands, and by that of run files together with the file's name."""


def _value(name: str, type_, default, help: str, **options) -> Flag:
    return Flag(name, help, {"type": type_, "default": default, **options}, False)


OWN_FLAGS = [
    _value("--architecture", str, "detr", "kind of network", choices=["detr", "rtdetr_v2"]),
    _value("--network", mapping, {}, "keys of the network's configuration in transformers: '{num_queries: 50}'"),
    _value("--pretrained", str, "", "folder or hub name of weights in transformers' format to start with"),
    _value("--weights", str, "", "checkpoint of this program to take weights from"),
    _value("--img-size", int, 640, "side of the square that samples are padded to; longer side in validation"),
    _value("--lr", float, 1e-4, "learning rate"),
    _value("--backbone-lr", float, 1e-5, "learning rate of the backbone"),
    _value("--weight-decay", float, 1e-4, "AdamW's weight decay"),
    _value("--clip-norm", float, 0.1, "largest norm of the gradient; 0: not clipped"),
    _value("--schedule", str, "step", "how learning rates fall", choices=["step", "cosine"]),
    _value("--lr-drop", int, 0, "step: epoch after which rates are a tenth; 0: after four fifths of the epochs"),
    _value("--final-lr", float, 0.01, "cosine: share of the learning rate that is left at the end"),
    _value("--warmup-iters", int, 0, "batches over which learning rates rise from zero"),
    _value("--fliplr", float, 0.5, "chance of a left-right flip"),
    _value("--flipud", float, 0.0, "chance of an up-down flip"),
    _value("--scale-min", float, 0.6, "least longer side of a training picture, as a share of --img-size"),
    _value("--crop", float, 0.5, "chance of a crop"),
    _value("--crop-min", float, 0.5, "least share of either side that a crop keeps"),
    _value("--checkpoint-period", int, 1, "epochs between files checkpoint_epoch_N.pth; 0: none"),
    _value("--profile", int, 0, "measure the stages of so many steps, print them, and end"),
]
CHANGED: dict[str, dict[str, Any]] = {
    "data": {"default": "data/shapes.yaml"},
    "epochs": {"default": 50},
    "batch_size": {"default": 4},
    "project": {"default": "runs/detr"},
    "seed": {"default": 0},
    "amp": {"nargs": "?", "const": "auto"},  # a bare --amp, or `amp: true`
}
ONE_FILE = {"weights": {"nargs": None, "default": ""}}  # no ensembles
HELP = {  # where these commands differ from those that a flag is taken from
    "resume": "go on with a run, given its folder or a checkpoint in it; alone: the newest last*.pth",
    "fast_dataloader": "data workers that stay and write whole batches into shared memory",
    "weights": "checkpoint of tools/train_detr.py",
    "img_size": "longer side, rounded up to the stride; 0: the size it was trained for",
    "task": "train, val or test: the split to measure",
}
ALIASES = {"epochs": ("--max-epochs",), "data": ("--dataset",)}


def _taken(table: list[Flag], names: tuple[str, ...], changed: Mapping[str, Mapping[str, Any]]) -> list[Flag]:
    """Flags of another command, some with options of their own."""
    known = {flag.dest: flag for flag in table}
    return [
        Flag(f.name, HELP.get(f.dest, f.help), {**f.options, **changed.get(f.dest, {})}, False, ALIASES.get(f.dest, ()))
        for f in (known[name] for name in names)
    ]


def _defaults(**values: Any) -> dict[str, dict[str, Any]]:
    return {name: {"default": value} for name, value in values.items()}


def _parser(flags: list[Flag], prog: str, description: str) -> Parser:
    parser = Parser(flags, prog=prog, description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.set_defaults(iou_thres=1.0)  # what the checks of other commands ask for: here nothing is suppressed
    return parser


def train_parser() -> Parser:
    flags = OWN_FLAGS + _taken(cli.FLAGS, TRAIN_SHARED, CHANGED)
    return _parser(flags, "tools/train_detr.py", "Train a DETR or RT-DETR detector.")


def test_parser() -> Parser:
    changed = _defaults(project="runs/detr_test", batch_size=8, img_size=0) | ONE_FILE
    flags = _taken(cli_test.FLAGS, TEST_SHARED, changed)
    return _parser(flags, "tools/test_detr.py", "Measure a DETR checkpoint on a labelled data set.")


def detect_parser() -> Parser:
    changed = _defaults(project="runs/detr_detect", conf_thres=0.5, img_size=0) | ONE_FILE
    flags = _taken(cli_detect.FLAGS, DETECT_SHARED, changed)
    return _parser(flags, "tools/detect_detr.py", "Find objects with a DETR checkpoint.")


SHARES = ("fliplr", "flipud", "scale_min", "crop", "crop_min", "final_lr")
LOWER_LIMITS = {
    "lr": 0, "backbone_lr": 0, "weight_decay": 0, "clip_norm": 0, "lr_drop": 0, "warmup_iters": 0,
    "checkpoint_period": 0, "profile": 0, "img_size": 32, "seed": 0,
}  # fmt: skip


def check_options(opt: argparse.Namespace) -> None:
    """Refuse impossible or contradicting flags of training, each by name."""
    for name, value in vars(opt).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"--{name.replace('_', '-')} is {value}, not a number to train with")
    check_limits(opt)
    check_limits(opt, LOWER_LIMITS)
    check_seed(opt.seed)
    check_patience(opt)
    for name in SHARES:
        if not 0 <= getattr(opt, name) <= 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(opt, name)}; it is a share between 0 and 1")
    if opt.scale_min == 0 or opt.crop_min == 0:
        raise UserError("--scale-min and --crop-min must leave something of a picture: give a share above 0")
    if opt.overfit and opt.subset_size:
        raise UserError("--overfit N already says which images; leave out --subset-size")
    if opt.pretrained and opt.weights:
        raise UserError("--pretrained and --weights both say where weights come from: leave one of them out")
    stages = parse_resize_schedule(opt.resize_schedule)
    if opt.resize_schedule and any(stage.size < 32 for stage in stages):
        raise UserError(f"--resize-schedule {opt.resize_schedule}: sizes of at least 32 pixels")
