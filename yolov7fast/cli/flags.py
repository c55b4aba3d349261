"""The flags of train.py: one table, from which the parser is built and against which run files are checked."""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from yolov7fast.core.errors import UserError


@dataclass(frozen=True)
class Flag:
    """One command-line flag; `reference` marks those of the public project, whose abbreviations must go on working."""

    name: str
    help: str
    options: dict[str, Any] = field(default_factory=dict)
    reference: bool = True
    aliases: tuple[str, ...] = ()  # further names, on the command line and in run files

    @property
    def dest(self) -> str:
        return self.name.lstrip("-").replace("-", "_")


def _switch(name: str, help: str, reference: bool = True) -> Flag:
    return Flag(name, help, {"action": "store_true"}, reference)


def _value(name: str, type_, default, help: str, reference: bool = True, **options) -> Flag:
    return Flag(name, help, {"type": type_, "default": default, **options}, reference)


REFERENCE_FLAGS = [
    _value("--weights", str, "", "start weights; empty: from scratch"),
    _value("--cfg", str, "", "model yaml; empty: taken from the weights"),
    _value("--data", str, "data/coco.yaml", "data yaml"),
    _value("--hyp", str, "data/hyp.scratch.p5.yaml", "hyper-parameter yaml"),
    _value("--epochs", int, 300, "number of epochs"),
    _value("--batch-size", int, 16, "total batch over all GPUs"),
    _value("--img-size", int, [640, 640], "train and test size; one value serves for both", nargs="+"),
    _switch("--rect", "rectangular training batches; switches mosaic off"),
    Flag(
        "--resume",
        "go on with a run: its folder, a checkpoint, or alone for the newest last*.pt",
        {"nargs": "?", "const": True, "default": False},
    ),
    _switch("--nosave", "write a checkpoint only after the last epoch"),
    _switch("--notest", "evaluate only after the last epoch"),
    _switch("--noautoanchor", "skip the anchor check"),
    _switch("--evolve", "evolve the hyper-parameters"),
    _value("--bucket", str, "", "gs:// bucket that evolve keeps evolve.txt in (needs gsutil)"),
    Flag(
        "--cache-images",
        "keep resized images: ram (the bare flag) or disk, a packed memory-mapped file",
        {"nargs": "?", "const": "ram", "default": False, "choices": ["ram", "disk"]},
    ),
    _switch("--image-weights", "draw images by class weight and last per-class mAP"),
    _value("--device", str, "", "0 or 0,1,2,3 or cpu; empty: all visible GPUs, else CPU"),
    _switch("--multi-scale", "random size of 0.5x to 1.5x for each batch"),
    _switch("--single-cls", "treat all labels as one class"),
    _switch("--adam", "Adam instead of SGD"),
    _switch("--sync-bn", "synchronised batch norm, in distributed runs"),
    _value("--local_rank", int, -1, "set by old launchers; torchrun sets LOCAL_RANK instead"),
    _value("--workers", int, 8, "upper limit of loader processes"),
    _value("--project", str, "runs/train", "parent folder of runs"),
    _value("--entity", str, None, "W&B entity"),
    _value("--name", str, "exp", "run folder"),
    _switch("--exist-ok", "write into an existing run folder"),
    _switch("--quad", "quad collation: four images become one of double side"),
    _switch("--linear-lr", "linear instead of cosine decay"),
    _value("--label-smoothing", float, 0.0, "label smoothing epsilon"),
    _switch("--upload_dataset", "W&B: upload the data set"),
    _value("--bbox_interval", int, -1, "W&B: log prediction pictures every so many epochs (-1: a tenth of the run)"),
    _value("--save_period", int, -1, "W&B: upload the checkpoint every so many epochs (-1: never)"),
    _value("--artifact_alias", str, "latest", "W&B: version of the data-set artifact"),
    _value("--freeze", int, [0], "n: freeze layers 0..n-1; several numbers: exactly those layers", nargs="+"),
    _switch("--v5-metric", "AP with recall extended to 1.0"),
]

NEW_FLAGS = [
    _switch("--fast-dataloader", "short for --persistent-workers --worker-tensor", False),
    _switch("--persistent-workers", "loader processes live through the whole run", False),
    _switch("--worker-tensor", "micro-collate: workers write samples straight into shared batch buffers", False),
    _value(
        "--micro-batch",
        int,
        0,
        "samples of one worker task of --worker-tensor; 0: chosen for you",
        False,
    ),
    _value("--cache-dir", str, "", "folder for --cache-images disk; empty: next to the labels", False),
    _switch("--fast-augment", "pictures are warped straight into the sample: labels equal, pixels nearly", False),
    _value("--seed", int, None, "randomness keyed by (seed, epoch, sample): exact resume at any step", False),
    _switch("--shuffle", "shuffle the images each epoch, also in a single process (needs --seed)", False),
    _switch("--deterministic", "deterministic algorithms, where torch has them", False),
    _value(
        "--amp",
        str,
        "auto",
        "auto: fp16 on CUDA, off on CPU",
        False,
        choices=["auto", "off", "fp16", "bf16"],
    ),
    _switch("--channels-last", "channels-last memory layout", False),
    _switch("--compile", "torch.compile the network, as USE_COMPILE=1 does", False),
    _value("--patience", int, 0, "stop after so many epochs without a better fitness; 0: never", False),
    _value("--test-batch-size", int, None, "batch of the validation loader; default twice the training batch", False),
    _value("--eval-interval", int, 1, "validate every so many epochs (the last always)", False),
    _value("--max-iter", int, 0, "stop after so many batches in all, and end their epoch there; 0: no limit", False),
    _value("--subset-size", int, 0, "train on so many images; 0: all", False),
    _value("--subset-seed", int, 0, "which images --subset-size draws", False),
    Flag(
        "--overfit",
        "learn the first N images (10) by heart: no augmentation, train = val; the exit code is the verdict",
        {"nargs": "?", "type": int, "const": 10, "default": 0, "metavar": "N"},
        False,
    ),
    _value("--resize-schedule", str, "", 'EPOCH:SIZE[:BATCH] steps, e.g. "1:320,20:480"', False),
    _value("--config", str, "", "yaml of flags, with inheritance by `base:`; the command line wins", False),
    _value("--save-every", float, 0.0, "minutes between checkpoints inside an epoch; 0: only at its end", False),
    _switch("--auto-lr", "scale lr0 by the square root of batch/64 for batches above 64", False),
    _value("--loss-ota", int, None, "1: OTA, 0: plain; overrides the hyp file", False, choices=[0, 1]),
    _value("--skip-nonfinite", int, 0, "skip up to N batches whose loss is not finite, instead of stopping", False),
    _switch("--wandb", "log to Weights & Biases (must be installed)", False),
    _value(
        "--heads",
        int,
        0,
        "number of detection heads of a multi-head network",
        False,
    ),
    _value("--head-config", str, "", "yaml that assigns each class to a head", False),
    _switch("--standard-grouping", "heads by meaning (COCO, 4 heads), for other data by class number", False),
    _switch("--geometry-grouping", "heads by the shape of boxes: COCO's shipped file, other data measured", False),
    _switch("--transfer-weights", "take what fits from --weights; optimizer, epoch and EMA start fresh", False),
]

FLAGS = REFERENCE_FLAGS + NEW_FLAGS
ALIASES = {
    "--cache-images": ["--cache"],  # an abbreviation in the wild that --cache-dir would make ambiguous
    "--local_rank": ["--local-rank"],  # what torch.distributed.launch passes since torch 2.0
}


class Parser(argparse.ArgumentParser):
    """argparse with three additions.

    An abbreviation that fits several flags means the reference project's one, if there is exactly one: new flags never
    break an old command line. `--config FILE` gives defaults. The result's `given` names what the user set himself.
    """

    def __init__(self, flags: Sequence[Flag], **kwargs):
        super().__init__(**kwargs)
        self._reference_names = {flag.name for flag in flags if flag.reference}
        self.flags = {flag.dest: flag for flag in flags}
        for flag in flags:
            names = (flag.name, *flag.aliases, *ALIASES.get(flag.name, []))
            self.add_argument(*names, dest=flag.dest, help=flag.help, **flag.options)

    def _get_option_tuples(self, option_string):
        matches = super()._get_option_tuples(option_string)
        if len(matches) > 1:
            of_reference = [match for match in matches if match[1] in self._reference_names]
            if len(of_reference) == 1:
                return of_reference
        return matches

    def parse_args(self, args=None, namespace=None):
        opt = super().parse_args(args, namespace)  # first, so that --help shows the defaults
        if getattr(opt, "config", ""):
            from yolov7fast.cli.run_file import merge

            in_file = self._read_config(opt.config)
            self.set_defaults(**in_file)
            opt = super().parse_args(args, namespace)
            for name, value in in_file.items():
                over = getattr(opt, name)
                if isinstance(value, Mapping) and isinstance(over, Mapping):
                    setattr(opt, name, merge(value, over))  # key by key, as files lie over their base
        opt.given = sorted(self._parse_given(args))
        return opt

    def _parse_given(self, args) -> dict[str, Any]:
        """What stands on the command line, without any default."""
        kept = [(action, action.default) for action in self._actions]
        kept_defaults = self._defaults
        try:
            self._defaults = {}
            for action in self._actions:
                action.default = argparse.SUPPRESS
            return vars(super().parse_args(args))
        finally:
            self._defaults = kept_defaults
            for action, default in kept:
                action.default = default

    def _read_config(self, path: str) -> dict[str, Any]:
        from yolov7fast.cli.run_file import read_run_file

        try:
            return read_run_file(path, self.flags)
        except UserError as error:
            self.exit(2, f"error: {error}\n")


def nearest(name: str, known: Sequence[str]) -> str:
    """'; did you mean X?' for the known name closest to `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def train_parser() -> Parser:
    return Parser(
        FLAGS,
        prog="train.py",
        description="Train a YOLOv7 detector. With none of the new flags, the numbers are those of the public project.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
