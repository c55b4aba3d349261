"""Measure the stages of a training iteration: `python tests/profile_training_loop.py --help`

Runs the real training step, on a data set (--data) or, without one, on one random batch, and prints a table of stages.
CUDA events measure a GPU without waiting inside the loop; a monotonic clock measures a CPU.
"""

import argparse
import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch

from yolov7fast.cli.checks import check_limits, check_train
from yolov7fast.cli.flags import Flag, flags_of
from yolov7fast.cli.flags.row import AUTO
from yolov7fast.cli.parser import Parser
from yolov7fast.cli.train_command import config_of
from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import as_user_error, write_atomically
from yolov7fast.core.programs import program
from yolov7fast.data.data_yaml import DataYaml, load_data_yaml
from yolov7fast.losses.assigners import assigner_stages
from yolov7fast.machine.profiler import build_step, measure, random_batch_data
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.hyperparameters import effective_hyp, load_hyp, with_assigner
from yolov7fast.training.logging.bottleneck import advice_text, options_in_use
from yolov7fast.training.train import init_seeds

CLASSES = 80  # of the random batch, as COCO has
measurement = partial(Flag, group="measurement")
PROFILE_FLAGS = [
    measurement("--iters", int, 30, "measured iterations of each loss", low=1),
    measurement("--warm-iters", int, 5, "iterations of each loss before the measurement", low=0),
    measurement("--compare-loss", bool, False, "measure the plain loss and OTA in turn, batch by batch"),
    measurement("--targets", int, 17, "boxes per image of the random batch", low=0),
    measurement("--output", str, "runs/profile", "folder for profile.json"),
]

RECORDED_WHERE = (
    "the times that a user recorded with upstream's code on an RTX 5090 (torch 2.8, yolov7-tiny, COCO, 320 pixels, "
    "batch 64; not measured by this project):"
)
RECORDED = (  # stage, plain loss, OTA
    ("forward", 50.2, 50.2),
    ("loss", 11.2, 1016.0),
    ("backward", 103.6, 103.4),
    ("iteration", 170.9, 1174.1),
)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    flags = [*flags_of("train").values(), *PROFILE_FLAGS]
    parser = Parser(flags, prog=program("profile").invocation, description=__doc__)
    # no default data set: the trainer's would be fetched first, 20 GB for a minute's measurement
    parser.set_defaults(
        cfg="cfg/training/yolov7-tiny.yaml", hyp="data/hyp.scratch.tiny.yaml", data="", noautoanchor=True
    )
    opt = parser.parse_args(argv)
    check_train(opt)
    if opt.batch_size == AUTO:
        raise UserError("--batch-size auto is for training: give the number of images to measure with")
    check_limits(opt, {flag.dest: flag for flag in PROFILE_FLAGS})
    with as_user_error(opt.output):
        Path(opt.output).mkdir(parents=True, exist_ok=True)
    return opt


def profile_losses(
    opt: argparse.Namespace, config: YoloTrainConfig, data: DataYaml, device: torch.device, kinds: Sequence[str]
) -> dict[str, dict]:
    """Build network, loader and step, and measure each kind of loss."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(config, save_dir=folder, keep_files=False)
        family, step = build_step(config, data, device, None if opt.data else opt.targets)
        if "plain" in kinds and isinstance(family.model.model[-1], IAuxDetect):
            raise UserError(f"--compare-loss: {opt.cfg or opt.weights} has auxiliary heads, which have no plain loss")
        try:
            return measure(family, step, kinds, opt.iters, opt.warm_iters, device)
        finally:
            family.close()


def input_text(opt: argparse.Namespace) -> str:
    """The first line of the output: what is measured on."""
    if opt.data:
        return f"measuring on {opt.data}"
    return (
        f"measuring on synthetic input: one random batch of {opt.batch_size} images of {opt.img_size[0]} pixels with "
        f"{opt.targets} boxes each, so without the cost of loading; give --data FILE to measure on a data set"
    )


def table(profile: Mapping, title: str) -> str:
    """One line for each stage, then the whole iteration; with a GPU also the time in which the host launches it."""
    on_gpu = "kernel_ms" in profile
    lines = [f"\n{title}", f"{'stage':>12}{'mean ms':>12}{'std ms':>12}{'fraction':>10}" + on_gpu * f"{'host ms':>12}"]
    for name, row in profile["stages"].items():
        host = f"{row['host_ms']:12.2f}" if on_gpu else ""
        lines.append(f"{name:>12}{row['mean_ms']:12.2f}{row['std_ms']:12.2f}{row['fraction']:10.1%}{host}")
    lines.append(f"{'iteration':>12}{profile['total_ms']:12.2f}{'':>12}{1:10.1%}")
    lines.append(
        f"{profile['images_per_s']:.1f} images/s, {profile['gpu_busy']:.1%} of the time in forward and backward, "
        f"{profile['iterations']} iterations measured"
    )
    if on_gpu:
        host, gpu = profile["host_ms"], profile["kernel_ms"]
        limit = "the host's launches limit the speed" if host > gpu else "the GPU's work limits the speed"
        known = f"{gpu:.2f} ms an iteration: {limit}" if gpu else "not known: torch.profiler cannot trace this GPU"
        lines.append(f"host time {host:.2f} ms, GPU time (kernels and copies) {known}")
    return "\n".join(lines)


def comparison(plain: Mapping, ota: Mapping) -> str:
    """Ratios of OTA to the plain loss: the whole iteration, and the loss only; then the recorded times."""
    whole, ms = ota["total_ms"] / plain["total_ms"], [profile["stages"]["loss"]["mean_ms"] for profile in (ota, plain)]
    lines = [
        f"\nmeasured in turn, batch by batch: an iteration with OTA takes {whole:.3f} times one with the plain loss; "
        f"the loss alone {ms[0] / ms[1]:.3f} times ({ms[0]:.2f} against {ms[1]:.2f} ms)",
        f"\nin ms, next to {RECORDED_WHERE}",
        f"{'':>12}{'plain':>12}{'recorded':>12}{'ota':>12}{'recorded':>12}",
    ]
    for name, *recorded in RECORDED:
        found = [_stage_ms(profile, name) for profile in (plain, ota)]
        lines.append(f"{name:>12}" + "".join(f"{a:12.2f}{b:12.1f}" for a, b in zip(found, recorded)))
    ratio = RECORDED[-1][2] / RECORDED[-1][1]
    return "\n".join([*lines, f"{'ota / plain':>12}{whole:24.3f}{ratio:24.3f}"])


def _stage_ms(profile: Mapping, name: str) -> float:
    return profile["total_ms"] if name == "iteration" else profile["stages"][name]["mean_ms"]


def advice(profile: Mapping, in_use: Collection[str] = ()) -> str:
    """One line: the bottleneck of this run, and which flags to try; in_use: of `bottleneck.options_in_use`."""
    parts = {name: profile["stages"].get(name, {"fraction": 0.0})["fraction"] for name in ("data", "loss")}
    parts |= {"validation": 0.0, "network": 1 - sum(parts.values())}
    return f"The bottleneck is {advice_text(parts, {}, in_use)}"


def main(argv: Sequence[str] | None = None) -> int:
    opt = parse(argv)
    print(input_text(opt), flush=True)
    device = select_device(opt.device)
    init_seeds(1, opt.deterministic)
    config = cast(YoloTrainConfig, config_of(opt, "yolo"))
    hyp = effective_hyp(load_hyp(opt.hyp), config)
    hyp = with_assigner(hyp, 1, "") if opt.compare_loss else hyp
    config = replace(config, hyp=hyp, loss_ota=None, assigner="", auto_lr=False)
    data = random_batch_data(CLASSES)
    if opt.data:
        data = load_data_yaml(opt.data, allow_download=opt.allow_download)
    kinds = ("plain", "ota") if opt.compare_loss else (assigner_stages(hyp, opt.epochs)[-1].assigner,)
    network = Path(opt.cfg or opt.weights).stem
    setting = f"{network}, batch {opt.batch_size}, {opt.img_size[0]} pixels, {device.type}"
    profiles = profile_losses(opt, config, data, device, kinds)
    for kind, profile in profiles.items():
        print(table(profile, f"{setting}, {kind} loss"))
    if opt.compare_loss:
        print(comparison(**profiles))
    last, output = profiles[kinds[-1]], Path(opt.output)
    written = {"network": network, "synthetic": not opt.data, **last}
    written |= {"by_loss": profiles} if len(kinds) > 1 else {}
    write_atomically(output / "profile.json", json.dumps(written, indent=2) + "\n")
    print(f"\nwritten: {output / 'profile.json'}\n{advice(last, options_in_use(config, device))}")
    return 0
