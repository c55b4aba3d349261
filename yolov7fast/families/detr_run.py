"""What tools/train_detr.py does after parsing: a run from its options to its exit code."""

import logging
from argparse import Namespace
from pathlib import Path
from statistics import median

import torch
from tqdm import tqdm

from yolov7fast.checkpoint.api import load_checkpoint, state_dict_of, transfer_weights
from yolov7fast.cli.checks import check_detr
from yolov7fast.cli.flags import fixed_on_resume
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.device import select_device
from yolov7fast.data.data_yaml import DataYaml, load_data_yaml
from yolov7fast.families.detr import DetrFamily
from yolov7fast.losses.detr import matcher_timed
from yolov7fast.nn.detr import Detector, build, rebuild
from yolov7fast.training.distributed import World, join, leave, lost_peers_told, main_first, world_from_environment
from yolov7fast.training.run import (
    Command,
    begin_logging,
    drive,
    exit_code,
    init_seeds,
    process_seed,
    resumed_options,
    settings_of,
    settle_options,
)
from yolov7fast.training.step import TrainStep
from yolov7fast.training.timing import STAGES, StageTimer
from yolov7fast.training.trainer import Outcome

log = logging.getLogger(__name__)
WARM_STEPS = 3  # steps before a measurement

COMMAND = Command(
    script="tools/train_detr.py",
    parser=lambda: parser_for("train", "detr"),
    suffix=".pth",
    fixed=fixed_on_resume("detr"),
    learnt_map50=0.5,  # a DETR's boxes tighten late; a network that cannot learn stays near 0
)


def run(opt: Namespace) -> int:
    """Train as the options say; returns the exit code."""
    world = world_from_environment(opt.local_rank)
    begin_logging(world)
    checkpoint = None
    if opt.resume:
        options, checkpoint, _ = resumed_options(opt, COMMAND)
        opt = Namespace(**options)
    check_detr(opt)
    device = select_device(opt.device)
    advise_on_gpus(device, world)
    with lost_peers_told(world):
        outcome = train(opt, device, world, checkpoint)
        code = exit_code(outcome, opt, world, COMMAND) if outcome else 0
    leave()
    return code


def advise_on_gpus(device: torch.device, world: World) -> None:
    """One process trains on one GPU; say so where others would stand idle."""
    count = torch.cuda.device_count() if device.type == "cuda" and not world.is_distributed else 1
    if count > 1:
        log.info(
            "training on the first of %d GPUs: for all of them start with "
            ".venv/bin/torchrun --nproc_per_node %d tools/train_detr.py ...",
            *(count, count),
        )


def train(opt: Namespace, device: torch.device, world: World, checkpoint=None) -> Outcome | None:
    """One complete training, fresh or gone on with; with --profile a few measured steps instead, and no outcome."""
    device = join(world, device, opt.batch_size)
    settle_options(opt, world, resumed=checkpoint is not None)
    init_seeds(process_seed(opt.seed, world), opt.deterministic)
    with main_first(world):
        data = load_data_yaml(opt.data, allow_download=opt.allow_download)
        model = build_model(opt, data, checkpoint).to(device)
    family = DetrFamily(opt, data, model, device, world, Path(opt.save_dir))
    if opt.profile:
        return profile(family, opt, device)
    return drive(family, settings_of(opt, device, clip_norm=opt.clip_norm), opt, data, device, world, checkpoint)


def build_model(opt: Namespace, data: DataYaml, checkpoint=None) -> Detector:
    if checkpoint is not None:
        return rebuild(checkpoint, opt.resume)
    names = ["item"] if opt.single_cls and data.nc > 1 else data.names
    model = build(opt.architecture, names, opt.network, opt.pretrained)
    if opt.weights:
        weights = state_dict_of(load_checkpoint(opt.weights), prefer_ema=True, origin=opt.weights)
        transfer_weights(model, weights, origin=opt.weights)
    size = sum(parameter.numel() for parameter in model.parameters())
    log.info("%s: %.2f million parameters, %d classes", opt.architecture, size / 1e6, len(names))
    return model


def profile(family: DetrFamily, opt: Namespace, device: torch.device) -> None:
    """Run a few steps on the real loader and print where their time goes; the matcher is `assignment`."""
    settings, timer, number = settings_of(opt, device, clip_norm=opt.clip_norm), StageTimer(device), 0
    step = TrainStep(
        family,
        *(family.model.train(), family.net, family.optimizer, family.ema, device),
        amp=settings.amp,
        clip_norm=settings.clip_norm,
    )
    try:
        with matcher_timed(family.loss), tqdm(total=WARM_STEPS + opt.profile, desc="profile") as bar:
            while number < bar.total:
                for batch in family.loader:
                    if number == WARM_STEPS:
                        timer = StageTimer(device)
                    step(batch, number, family.rates(number, 0, number), timer)
                    number += 1
                    bar.update()
                    if number == bar.total:
                        break
    finally:
        family.close()
    middle = {stage: median(times) for stage, times in timer.totals().items()}
    whole = sum(middle.values())
    print(f"{'stage':>12s}{'ms':>10s}{'share':>8s}   median of {opt.profile} steps on {device.type}")
    for stage in (stage for stage in STAGES if stage in middle):
        print(f"{stage:>12s}{middle[stage]:10.2f}{middle[stage] / whole:8.1%}")
    print(
        f"{'step':>12s}{whole:10.2f}   assignment is the matcher: cost matrix, its copy to the host, SciPy's assignment"
    )
