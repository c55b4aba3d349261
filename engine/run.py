"""What `train.py` does after parsing: a run from its options to its exit code."""

import logging
import os
import random
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from engine import compile as compiling
from engine import hyp as hyper
from engine.cli import train_parser
from engine.config import check_options
from engine.distributed import World, from_main, join, leave, lost_peers_told, main_first, world_from_environment
from engine.heads import anchors_agree, chosen_heads, stored_heads, tell_transfer
from engine.report import Reporter, TensorBoardLogger, WandbLogger
from engine.resume import find_checkpoint, read_resumable, run_folder_of
from engine.step import choose_amp
from engine.trainer import Outcome, Trainer, TrainSettings
from engine.yolo import YoloFamily
from models.checkpoint import load_checkpoint, module_of, state_dict_of, transfer_weights
from models.yolo import Model
from utils.data_yaml import load_data_yaml
from utils.device import select_device
from utils.errors import UserError
from utils.files import check_file, increment_path

log = logging.getLogger(__name__)

# what makes a run that run: it cannot be changed when going on
FIXED_ON_RESUME = (
    "weights", "cfg", "data", "hyp", "batch_size", "img_size", "rect", "image_weights", "multi_scale", "single_cls",
    "adam", "quad", "linear_lr", "label_smoothing", "freeze", "seed", "shuffle", "subset_size", "subset_seed",
    "overfit", "resize_schedule", "auto_lr", "loss_ota", "heads", "head_config", "standard_grouping",
    "geometry_grouping", "transfer_weights",
)  # fmt: skip
NOT_STORED = ("given", "config")  # facts of the command line, not settings of the run

LEARNT_MAP50 = 0.8  # --overfit: this mAP@.5 on its own training images counts as learnt by heart
FELL_TO = 0.7  # and the loss must fall to this share of its first epoch's


def run(opt: Namespace) -> int:
    """Train as the options say; returns the exit code."""
    world = world_from_environment(opt.local_rank)
    logging.basicConfig(format="%(message)s", level=logging.INFO if world.is_main else logging.WARNING)
    checkpoint = None
    if opt.resume and not opt.evolve:
        opt, checkpoint = resumed_run(opt)
    check_options(opt)
    if opt.evolve:
        from engine.evolve import evolve

        return evolve(opt, world)
    opt.cfg, opt.data = check_file(opt.cfg), check_file(opt.data)
    if not opt.cfg and not opt.weights:
        raise UserError("give --cfg FILE to train from scratch, or --weights FILE to start from a checkpoint")
    device = select_device(opt.device, batch_size=opt.batch_size)
    hyp = hyper.load_hyp(opt.hyp)
    if compiling.diagnosis_wanted():
        return diagnose_compile(opt, hyp, device)
    try:
        with lost_peers_told(world):
            outcome = train(hyp, opt, device, world, checkpoint)
            return exit_code(outcome, opt, world)
    finally:
        leave()


# --- preparing --------------------------------------------------------------------------------------------------------


def resumed_run(opt: Namespace) -> tuple[Namespace, dict[str, Any]]:
    """The options of the run that `--resume` names, with what may be changed from the command line, and its state."""
    path = find_checkpoint(opt.resume)
    checkpoint, path = read_resumable(path)
    if not isinstance(checkpoint, dict) or "epoch" not in checkpoint:
        raise UserError(f"--resume {path}: this file holds weights only; start a new run with --weights {path}")
    if checkpoint["epoch"] == -1 and not checkpoint.get("resume"):
        checkpoint, path = unstripped_beside(path)
    run_dir = run_folder_of(path)
    stored = run_dir / "opt.yaml"
    if not stored.is_file():
        raise UserError(f"--resume {path}: {stored} is missing, so the run's options are unknown")
    options = vars(train_parser().parse_args([])) | yaml.safe_load(stored.read_text())
    for name in opt.given:
        if name in FIXED_ON_RESUME and getattr(opt, name) != options[name]:
            raise UserError(
                f"--{name.replace('_', '-')} cannot change when going on (the run has {options[name]!r}); "
                "start a new run with --weights instead"
            )
        options[name] = getattr(opt, name)
    options |= {
        "resume": str(path),
        "save_dir": str(run_dir),
        "batch_size": options["total_batch_size"],
        "given": sorted(set(opt.given) | {"img_size"}),
        "local_rank": opt.local_rank,
    }
    if (run_dir / "hyp.yaml").is_file():
        options["hyp"] = str(run_dir / "hyp.yaml")
    options["cfg"] = options["cfg"] if Path(options["cfg"]).is_file() else ""
    options["weights"] = str(path)
    done = checkpoint["epoch"] + 1
    state = checkpoint.get("resume")
    if done >= options["epochs"] and not (state and state["progress"]["position"]):
        raise UserError(
            f"--resume {path}: nothing to do, the run has {done} epochs of {options['epochs']}; add --epochs N"
        )
    print(f"Resuming {path} after {done} epochs")
    return Namespace(**options), checkpoint


def unstripped_beside(path: Path) -> tuple[dict[str, Any], Path]:
    """A finished run's last.pt is stripped; its last epoch_*.pt still holds the whole state."""
    for candidate in sorted(path.parent.glob("epoch_*.pt"), reverse=True):
        checkpoint = load_checkpoint(candidate)
        if checkpoint.get("epoch", -1) >= 0:
            return checkpoint, candidate
    raise UserError(f"--resume {path}: the file is stripped (its run is finished) and no epoch_*.pt lies beside it")


def settle_options(opt: Namespace, world: World, *, resumed: bool) -> None:
    """What follows from the flags: the run folder's name (the main process chooses), batch in all and of a process."""
    opt.world_size, opt.global_rank = world.size, world.rank
    opt.total_batch_size = opt.batch_size
    opt.batch_size = opt.total_batch_size // world.size
    if not resumed:
        folder = increment_path(Path(opt.project) / opt.name, exist_ok=opt.exist_ok)
        opt.save_dir = from_main(str(folder), world)


def make_run_folder(opt: Namespace, hyp: Mapping[str, float]) -> None:
    """Make the folder and write down what is run: hyp.yaml as loaded, opt.yaml with every option."""
    folder = Path(opt.save_dir)
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    (folder / "hyp.yaml").write_text(yaml.safe_dump(dict(hyp), sort_keys=False))
    stored = {name: value for name, value in vars(opt).items() if name not in NOT_STORED}
    stored["batch_size"] = opt.total_batch_size
    (folder / "opt.yaml").write_text(yaml.safe_dump(stored, sort_keys=False))


def effective_hyp(hyp: Mapping[str, float], opt: Namespace) -> dict[str, float]:
    """The file's values with what the flags change; the file itself stays as it was written down."""
    values = dict(hyp)
    if opt.loss_ota is not None:
        values["loss_ota"] = opt.loss_ota
    if opt.auto_lr:
        values = hyper.auto_lr(values, opt.total_batch_size)
        log.info("--auto-lr: lr0 %g, warmup_epochs %g", values["lr0"], values["warmup_epochs"])
    return values


def init_seeds(seed: int, deterministic: bool) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True, warn_only=True)


def build_model(opt: Namespace, hyp: Mapping[str, float], nc: int, device: torch.device, checkpoint=None) -> Model:
    """The network on its device: from its description, with what fits of the start weights."""
    anchors = hyp.get("anchors")
    resumed = checkpoint is not None
    heads = stored_heads(checkpoint["model"]) if resumed else chosen_heads(opt, nc)
    if not opt.weights:
        return Model(opt.cfg, ch=3, nc=nc, anchors=anchors, heads=heads).to(device)
    source = checkpoint if resumed else load_checkpoint(opt.weights)
    description = opt.cfg or module_of(source, prefer_ema=False, origin=opt.weights).yaml
    model = Model(description, ch=3, nc=nc, anchors=anchors, heads=heads).to(device)
    weights = state_dict_of(source, prefer_ema=opt.transfer_weights, origin=opt.weights)
    keep_anchors = resumed or not (opt.cfg or anchors) or (opt.transfer_weights and anchors_agree(model, weights))
    exclude = () if keep_anchors else ("anchor",)
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
    rank_seed = (2 if opt.seed is None else opt.seed + 1) + world.rank
    init_seeds(rank_seed, opt.deterministic)
    with main_first(world):
        data = load_data_yaml(opt.data)
        model = build_model(opt, hyp, 1 if opt.single_cls else data.nc, device, checkpoint)
    family = YoloFamily(opt, hyp, data, model, device, world, run_dir, resumed=resumed)
    reporter = Reporter(run_dir, YoloFamily.loss_names)
    try:
        if world.is_main:
            make_run_folder(opt, loaded_hyp)
            reporter.loggers = make_loggers(opt, run_dir, checkpoint)
        tell_start(opt, family, world)
        trainer = Trainer(family, settings_of(opt, family, device, world), world, device, run_dir, reporter)
        if resumed:
            restore(trainer, family, checkpoint, reporter)
        elif world.is_main and not opt.evolve:
            family.save_initial()
        begin_logging(reporter.loggers, family, data, opt)
        return trainer.fit()
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"the GPU has no memory left ({str(error).splitlines()[0][:100]}): lower --batch-size or --img-size, "
            "or --test-batch-size if it happened in validation; --amp fp16 halves activations"
        ) from None
    finally:
        family.close()
        reporter.close()


def settings_of(opt: Namespace, family: YoloFamily, device: torch.device, world: World) -> TrainSettings:
    return TrainSettings(
        epochs=opt.epochs,
        amp=choose_amp(opt.amp, device),
        loss_factor=world.size * (4.0 if opt.quad else 1.0),
        max_iter=opt.max_iter,
        patience=opt.patience,
        eval_interval=opt.eval_interval,
        notest=opt.notest,
        nosave=opt.nosave,
        save_every_minutes=opt.save_every,
        skip_nonfinite=opt.skip_nonfinite,
        exact_mid_epoch=opt.seed is not None,
        keep_files=not opt.evolve,
    )


def make_loggers(opt: Namespace, run_dir: Path, checkpoint) -> list:
    if opt.evolve:
        return []
    loggers: list = [TensorBoardLogger(run_dir)]
    log.info("TensorBoard: tensorboard --logdir %s", opt.project)
    if opt.wandb or opt.upload_dataset:
        loggers.append(WandbLogger(opt, run_dir, checkpoint.get("wandb_id") if checkpoint else None))
    return loggers


def begin_logging(loggers: list, family: YoloFamily, data, opt: Namespace) -> None:
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.classes(torch.from_numpy(np.concatenate(family.dataset.labels, 0)[:, 0]))
        elif isinstance(logger, WandbLogger):
            family.wandb_id = logger.id
            if opt.upload_dataset:
                logger.dataset([str(p) for p in np.atleast_1d(data.train)])


def tell_start(opt: Namespace, family: YoloFamily, world: World) -> None:
    if not world.is_main:
        return
    batches = len(family.loader)
    total = batches * opt.epochs
    print(
        f"Image sizes {family.img_size} train, {family.test_size} test\n"
        f"Using {family.loader.num_workers} dataloader workers\n"
        f"Logging results to {opt.save_dir}\n"
        f"Starting training for {opt.epochs} epochs of {batches} batches..."
    )
    if family.schedule.warmup >= total:
        print(
            f"note: the warm-up lasts {family.schedule.warmup} batches, longer than this run of {total}; "
            "for a small data set set warmup_min_iters in the hyp file"
        )


def restore(trainer: Trainer, family: YoloFamily, checkpoint: dict[str, Any], reporter: Reporter) -> None:
    """Put a checkpoint's state back: our own complete one, or what a file of the reference project holds."""
    if checkpoint.get("optimizer") is not None:
        family.optimizer.load_state_dict(checkpoint["optimizer"])
    if checkpoint.get("resume"):
        trainer.resume(checkpoint["resume"])
    else:
        log.warning("this checkpoint holds no random or full-precision state: going on, but not exactly")
        progress = trainer.progress
        progress.epoch = checkpoint["epoch"] + 1
        progress.number = progress.epoch * len(family.loader)
        progress.best_fitness = float(np.asarray(checkpoint["best_fitness"]).reshape(-1)[0])
        if family.ema and checkpoint.get("ema") is not None:
            family.ema.ema.load_state_dict(checkpoint["ema"].float().state_dict())
            family.ema.updates = checkpoint["updates"]
    if trainer.world.is_main and checkpoint.get("training_results") is not None:
        reporter.rewind(checkpoint["training_results"], trainer.progress.epoch)


def exit_code(outcome: Outcome, opt: Namespace, world: World) -> int:
    """Say how it ended. An interrupted run ends with its signal's code; --overfit ends with its verdict."""
    if not world.is_main:
        return outcome.interrupted
    if outcome.interrupted:
        print(f"stopped in epoch {outcome.progress.epoch}; go on with: python train.py --resume {opt.save_dir}")
        return outcome.interrupted
    print(f"{outcome.progress.epoch} epochs completed in {outcome.progress.seconds / 3600:.3f} hours.")
    print(
        f"Results in {opt.save_dir}: weights/best.pt, weights/last.pt, results.png, PR_curve.png, test_batch0_pred.jpg"
    )
    if not opt.overfit:
        return 0
    first, last, map50 = outcome.progress.first_loss, outcome.last_loss, outcome.results[2]
    fell, learnt = last <= FELL_TO * first, map50 >= LEARNT_MAP50
    print(
        f"overfit: loss {first:.4g} -> {last:.4g} ({'fell' if fell else 'did not fall enough'}), "
        f"mAP@.5 {map50:.3f} on its own images ({'learnt' if learnt else f'below {LEARNT_MAP50}'})"
    )
    return 0 if fell and learnt else 1
