"""What `train.py` does after parsing: a run from its options to its exit code."""

import logging
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from yolov7fast.checkpoint.api import load_checkpoint, module_of, state_dict_of, transfer_weights
from yolov7fast.cli.checks import check_yolo
from yolov7fast.cli.flags import fixed_on_resume
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.files import check_file
from yolov7fast.data.data_yaml import find_data, load_data_yaml
from yolov7fast.families.heads import anchors_agree, chosen_heads, foreign_heads, stored_heads, tell_transfer
from yolov7fast.families.yolo import YoloFamily
from yolov7fast.nn.model import Model
from yolov7fast.training import compiling
from yolov7fast.training import hyperparameters as hyper
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
from yolov7fast.training.trainer import Outcome

log = logging.getLogger(__name__)


def run(opt: Namespace) -> int:
    """Train as the options say; returns the exit code."""
    world = world_from_environment(opt.local_rank)
    begin_logging(world)
    checkpoint = None
    if opt.resume and not opt.evolve:
        opt, checkpoint = resumed_run(opt)
    check_yolo(opt)
    if opt.evolve:
        from yolov7fast.search.evolve import evolve

        return evolve(opt, world)
    opt.cfg, opt.data = check_file(opt.cfg, "cfg"), find_data(opt.data)
    if not opt.cfg and not opt.weights:
        raise UserError("give --cfg FILE to train from scratch, or --weights FILE to start from a checkpoint")
    device = select_device(opt.device, batch_size=opt.batch_size)
    hyp = hyper.load_hyp(opt.hyp)
    if compiling.diagnosis_wanted():
        return diagnose_compile(opt, hyp, device)
    with lost_peers_told(world):
        outcome = train(hyp, opt, device, world, checkpoint)
        code = exit_code(outcome, opt, world, COMMAND)
    leave()
    return code


# --- preparing --------------------------------------------------------------------------------------------------------


def resumed_run(opt: Namespace) -> tuple[Namespace, dict[str, Any]]:
    """The options of the run that `--resume` names, with what may be changed from the command line, and its state."""
    options, checkpoint, path = resumed_options(opt, COMMAND)
    hyp = Path(options["save_dir"]) / "hyp.yaml"
    if hyp.is_file():
        options["hyp"] = str(hyp)
    options["cfg"] = options["cfg"] if Path(options["cfg"]).is_file() else ""
    options["weights"] = str(path)
    return Namespace(**options), checkpoint


def unstripped_beside(path: Path) -> tuple[dict[str, Any], Path]:
    """A finished run's last.pt is stripped; its last epoch_*.pt still holds the whole state."""
    for candidate in sorted(path.parent.glob("epoch_*.pt"), reverse=True):
        checkpoint = load_checkpoint(candidate)
        if checkpoint.get("epoch", -1) >= 0:
            return checkpoint, candidate
    raise UserError(f"--resume {path}: the file is stripped (its run is finished) and no epoch_*.pt lies beside it")


COMMAND = Command(
    script="train.py",
    parser=lambda: parser_for("train"),
    suffix=".pt",
    fixed=fixed_on_resume("yolo"),
    learnt_map50=0.8,
    unstripped=unstripped_beside,
)


def effective_hyp(hyp: Mapping[str, float], opt: Namespace) -> dict[str, float]:
    """The file's values with what the flags change; the file itself stays as it was written down."""
    values = dict(hyp)
    if opt.loss_ota is not None:
        values["loss_ota"] = opt.loss_ota
    if opt.auto_lr:
        values = hyper.auto_lr(values, opt.total_batch_size)
        log.info("--auto-lr: lr0 %g, warmup_epochs %g", values["lr0"], values["warmup_epochs"])
    return values


def build_model(opt: Namespace, hyp: Mapping[str, float], nc: int, device: torch.device, checkpoint=None) -> Model:
    """The network on its device: from its description, with what fits of the start weights."""
    anchors = hyp.get("anchors")
    resumed = checkpoint is not None
    heads = stored_heads(checkpoint["model"]) if resumed else chosen_heads(opt, nc)
    if not opt.weights:
        return Model(opt.cfg, ch=3, nc=nc, anchors=anchors, heads=heads).to(device)
    source = checkpoint if resumed else load_checkpoint(opt.weights)
    description = opt.cfg or module_of(source, prefer_ema=False, origin=opt.weights).yaml
    model = Model(description, ch=3, nc=nc, anchors=anchors, heads=heads, origin=opt.weights).to(device)
    weights = state_dict_of(source, prefer_ema=opt.transfer_weights, origin=opt.weights)
    keep_anchors = resumed or not (opt.cfg or anchors) or (opt.transfer_weights and anchors_agree(model, weights))
    exclude = () if keep_anchors else ("anchor",)
    exclude += foreign_heads(model, source, opt.weights)
    transfer_weights(model, weights, exclude=exclude, origin=opt.weights)
    if opt.transfer_weights and not resumed:
        tell_transfer(model, weights, exclude)
    if not resumed and isinstance(source, dict) and source.get("optimizer"):
        log.info("%s is an unfinished run's checkpoint; only its weights are used (--resume would go on)", opt.weights)
    return model


def diagnose_compile(opt: Namespace, hyp: Mapping[str, float], device: torch.device) -> int:
    data = load_data_yaml(opt.data, fetch=False)
    model = build_model(opt, hyp, 1 if opt.single_cls else data.nc, device)
    size = opt.img_size[0]
    return compiling.diagnose(model, torch.zeros(2, 3, size, size, device=device))


# --- the run itself ---------------------------------------------------------------------------------------------------


def train(hyp: Mapping[str, float], opt: Namespace, device: torch.device, world: World, checkpoint=None) -> Outcome:
    """One complete training, fresh or gone on with. Also what evolution runs for each generation."""
    resumed = checkpoint is not None
    device = join(world, device, opt.batch_size)
    settle_options(opt, world, resumed=resumed)
    run_dir, loaded_hyp = Path(opt.save_dir), hyp
    hyp = effective_hyp(hyp, opt)
    log.info("hyperparameters: %s", ", ".join(f"{k}={v}" for k, v in hyp.items()))
    init_seeds(process_seed(opt.seed, world), opt.deterministic)
    with main_first(world):
        data = load_data_yaml(opt.data, allow_download=opt.allow_download)
        model = build_model(opt, hyp, 1 if opt.single_cls else data.nc, device, checkpoint)
    family = YoloFamily(opt, hyp, data, model, device, world, run_dir, resumed=resumed)
    factor = world.size * (4.0 if opt.quad else 1.0)
    settings = settings_of(opt, device, loss_factor=factor, keep_files=not opt.evolve)
    return drive(family, settings, opt, data, device, world, checkpoint, {"hyp.yaml": loaded_hyp})
