"""The checks of `yolov7fast check`: environment, host syncs, correctness against the CPU, exact resume."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch.nn.utils import parameters_to_vector

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.device import unused_gpu
from yolov7fast.core.errors import one_line
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.programs import program
from yolov7fast.core.torch_build import nvidia_gpus, reinstall_command
from yolov7fast.data.shapes import NAMES, make_shapes
from yolov7fast.machine.profiler import ProfiledFamily, build_step, random_batch_data
from yolov7fast.nn.model_parser import read_description
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.memory_plan import available_ram
from yolov7fast.training.optimizer import Rates
from yolov7fast.training.step import TrainStep

PASSED, FAILED, INFO, SKIPPED = "ok", "FAIL", "info", "skipped"
GB = 1e9
CORES_PER_GPU = 4
SYNC_WARNING = "synchronizing CUDA operation"
TINY, HYP = "cfg/training/yolov7-tiny.yaml", "data/hyp.scratch.tiny.yaml"
# networks whose step must have no host sync, with their image sizes and assigners
WATCHED = ((TINY, 64, ("plain", "ota")), ("cfg/training/yolov7-w6.yaml", 128, ("ota",)))
# by precision: largest relative error of the loss and of the change of the weights. In half precision only the last
# layer is compared: in an untrained network rounding errors grow on the way back.
TOLERANCE = {"off": (1e-4, 1e-3), "fp16": (2e-2, 0.3), "bf16": (5e-2, 0.8)}
RATES = Rates((0.01, 0.01, 0.01), 0.9, 1)
IMAGES, BATCH, EPOCHS = 24, 4, 2  # of the run that is killed and resumed
LONGEST = 180.0  # seconds of such a run


class CheckLine(NamedTuple):
    name: str
    status: str
    text: str
    remedy: str = ""


def judged(name: str, ok: bool, text: str, remedy: str = "report this line in an issue") -> CheckLine:
    return CheckLine(name, PASSED if ok else FAILED, text, "" if ok else remedy)


def check_environment(device: torch.device, folder: Path) -> Iterator[CheckLine]:
    """GPU and driver, free memory of each kind, cores."""
    yield gpu_line(device)
    for name, (free, least, remedy) in free_memory(device).items():
        yield judged(name, free >= least * GB, f"{free / GB:.2f} GB free, {least} GB wanted", remedy)
    seen, cores = len(os.sched_getaffinity(0)), usable_cores()
    wanted = CORES_PER_GPU * torch.cuda.device_count() if device.type == "cuda" else 1
    ok, text = wanted <= cores > 0.75 * seen, f"{seen} visible, {cores} usable, {wanted} required"
    yield judged("cores", ok, text, f"--workers {cores} --fast-dataloader and OMP_NUM_THREADS={cores}, or more cores")


def free_memory(device: torch.device) -> dict[str, tuple[float, float, str]]:
    """Free bytes, required GB and remedy, by kind of memory."""
    files = "free some space: caches and checkpoints are written below this folder"
    found: dict[str, tuple[float, float, str]] = {
        "RAM": (available_ram(), 4, "fewer --workers, no --cache-images ram, or more memory"),
        "disk": (shutil.disk_usage(".").free, 5, files),
    }
    if Path("/dev/shm").is_dir():  # required: 8 workers with 2 batches each of 16 images at 640 pixels
        remedy = "--fast-dataloader, which does not use it, or start the container with --shm-size 8g"
        found["/dev/shm"] = (shutil.disk_usage("/dev/shm").free, 0.32, remedy)
    if device.type == "cuda":
        remedy = "end the processes that nvidia-smi shows, or use a smaller --batch-size"
        found["GPU memory"] = (torch.cuda.mem_get_info(device)[0], 4, remedy)
    return found


def gpu_line(device: torch.device) -> CheckLine:
    """Whether torch can use the GPU that the driver lists, and its build contains code for it."""
    if device.type == "cuda":
        gpus = nvidia_gpus()
        build = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
        text = f"{torch.cuda.get_device_name(device)}, driver {gpus[0].driver if gpus else '?'}, {build}"
        try:
            return judged("GPU", bool((torch.ones(2, device=device) * 2).sum() == 4), text)
        except RuntimeError as error:
            return judged("GPU", False, f"{text}: {one_line(error)}", reinstall_command(gpus))
    if unused := unused_gpu():
        return judged("GPU", False, *unused)
    return CheckLine("GPU", SKIPPED, "no NVIDIA GPU, or not selected")


def usable_cores() -> int:
    """Cores that this process may use, within the limit of a container."""
    seen = len(os.sched_getaffinity(0))
    return int(min(seen, max(cpu_quota() or seen, 1)))


def cpu_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Number of cores that the container may use; None: all."""
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        quota, period = map(int, file.read_text().split())
        return quota / period


def step_config(cfg: str, size: int, batch: int, folder: Path, *options: str) -> YoloTrainConfig:
    """The config of `train.py` with these options, which writes nothing."""
    files = ["--cfg", check_file(cfg, "cfg"), "--hyp", check_file(HYP, "hyp")]
    words = [*files, "--img-size", str(size), "--batch-size", str(batch), *options]
    config = YoloTrainConfig.from_options(vars(parser_for("train").parse_args(words)))
    return replace(config, save_dir=str(folder), noautoanchor=True, keep_files=False)


def step_on_random_batch(
    device: torch.device, cfg: str, size: int, batch: int, folder: Path, amp: str = "auto"
) -> tuple[ProfiledFamily, TrainStep]:
    """A training step as `train.py` builds it, with the same weights and images on every device."""
    torch.manual_seed(1)
    return build_step(step_config(cfg, size, batch, folder, "--amp", amp), random_batch_data(4), device, targets=17)


def narrow_cfg(cfg: str, width: float, folder: Path) -> str:
    """A file in `folder` with the network of `cfg` at a fraction of its width."""
    path = folder / f"{Path(cfg).stem}_{width:g}.yaml"
    path.write_text(yaml.safe_dump({**read_description(check_file(cfg, "cfg")), "width_multiple": width}))
    return str(path)


@contextlib.contextmanager
def reported_syncs() -> Iterator[list[str]]:
    """Source lines at which CUDA reports a host sync inside the block; complete after the block."""
    found, before = [], torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
            found += [f"{Path(w.filename).name}:{w.lineno}" for w in caught if SYNC_WARNING in str(w.message)]


def check_host_syncs(device: torch.device, folder: Path) -> Iterator[CheckLine]:
    """The second step of each network and loss must have no host sync."""
    if device.type != "cuda":
        yield CheckLine("host syncs", SKIPPED, "CUDA reports them")
        return
    for cfg, size, assigners in WATCHED:
        family, step = step_on_random_batch(device, narrow_cfg(cfg, 0.125, folder), size, 2, folder)
        for family.assigner in assigners:
            step(family.loader[0], 0, RATES)
            torch.cuda.synchronize()
            with reported_syncs() as found:
                step(family.loader[0], 1, RATES)
            places = ": " + ", ".join(dict.fromkeys(found)) if found else ""
            yield judged(f"{Path(cfg).stem}, {family.assigner}", not found, f"{len(found)} host syncs{places}")


def step_change(device: torch.device, folder: Path, assigner: str, amp: str) -> tuple[float, torch.Tensor, int]:
    """Loss and change of all weights of one step, and the number of weights of the last layer."""
    family, step = step_on_random_batch(device, narrow_cfg(TINY, 0.25, folder), 128, 8, folder, amp)
    model: Any = family.model
    step.scaler = torch.amp.GradScaler(device.type, init_scale=128.0, enabled=step.scaler.is_enabled())  # no overflow
    family.assigner, before = assigner, parameters_to_vector(model.parameters()).detach().cpu()
    step(family.loader[0], 0, RATES)
    change = parameters_to_vector(model.parameters()).detach().cpu() - before
    return step.sync_metrics().means[-1], change, sum(p.numel() for p in model.model[-1].parameters())


def check_correctness(device: torch.device, folder: Path) -> Iterator[CheckLine]:
    """One step of each loss in each precision against the CPU."""
    for assigner, (amp, most) in product(("plain", "ota"), TOLERANCE.items()):
        loss, change, last = step_change(torch.device("cpu"), folder, assigner, "off")
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):  # else off
            found, moved, _ = step_change(device, folder, assigner, amp)
        part = slice(None) if amp == "off" else slice(-last, None)
        errors = abs(found / loss - 1), float((moved - change)[part].norm() / change[part].norm())
        text = f"loss differs by {errors[0]:.1e} (at most {most[0]:g}), weights by {errors[1]:.1e} ({most[1]:g})"
        yield judged(f"step, {assigner}, --amp {amp}", errors[0] <= most[0] and errors[1] <= most[1], text)


def check_resume(device: torch.device, folder: Path) -> Iterator[CheckLine]:
    """A run that is killed within an epoch must resume to the same weights as an uninterrupted run, bit for bit."""
    log, words = folder / "resume.log", train_words(device, folder)
    whole, killed = folder / "whole/run", folder / "killed/run"
    codes = [
        run_training([*words, "--project", str(whole.parent)], log),
        run_training([*words, "--project", str(killed.parent)], log, kill_at=killed / "weights/last.pt"),
        run_training([*program("train").child(), "--resume", str(killed)], log),
    ]
    if codes != [0, -signal.SIGKILL, 0]:
        end = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
        yield judged("kill and resume", False, f"exit codes {codes} of run, killed run and resumed run: {end}")
        return
    name = f"weights/epoch_{EPOCHS - 1:03d}.pt"
    one, other = checkpoint_tensors(whole / name), checkpoint_tensors(killed / name)
    different = [key for key in one.keys() | other.keys() if key not in one or key not in other]
    different += [key for key in one.keys() & other.keys() if not torch.equal(one[key], other[key])]
    text = f"{len(different)} of {len(one)} tensors differ"
    yield judged("kill and resume", not different, text, "resume at the end of an epoch: --save-every 0; report this")


def train_words(device: torch.device, folder: Path) -> list[str]:
    """The command of a run that saves after each of its 12 iterations."""
    images = make_shapes(folder / "shapes", train=IMAGES, val=4, size=96) / "images"
    lines = {"train": str(images / "train"), "val": str(images / "val"), "nc": len(NAMES), "names": list(NAMES)}
    (folder / "shapes.yaml").write_text(yaml.safe_dump(lines))
    return [
        *(*program("train").child(), "--cfg", narrow_cfg(TINY, 0.125, folder), "--data", str(folder / "shapes.yaml")),
        *("--hyp", "data/hyp.small.yaml", "--img", "64", "--batch-size", str(BATCH), "--epochs", str(EPOCHS)),
        *("--workers", "2", "--fast-dataloader", "--noautoanchor", "--notest", "--seed", "0", "--deterministic"),
        *("--loss-ota", "1", "--save-every", "0.00001", "--name", "run"),
        *(() if device.type == "cuda" else ("--device", "cpu")),
    ]


def run_training(words: list[str], log: Path, kill_at: Path | None = None) -> int:
    """Exit code of a training; kill_at: a file, the training is killed once it exists."""
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with log.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=environment)
        end = time.monotonic() + LONGEST
        try:
            while process.poll() is None and time.monotonic() < end and not (kill_at and kill_at.is_file()):
                time.sleep(0.005)
        finally:
            process.kill()
    return process.wait()


def checkpoint_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Network, EMA and optimizer state of a complete checkpoint, by name."""
    checkpoint: Any = load_checkpoint(path)
    found = {f"{part}.{k}": v for part in ("model", "ema") for k, v in checkpoint["resume"][part].items()}
    for key, values in checkpoint["optimizer"]["state"].items():
        found |= {f"optimizer.{key}.{k}": v for k, v in values.items() if isinstance(v, torch.Tensor)}
    return found
