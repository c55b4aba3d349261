"""The speed section of `yolov7fast check`: the fastest options of a machine, and the fraction of its peak that they
reach."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from yolov7fast.cli.flags import flags_of
from yolov7fast.core.device import time_synchronized
from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.process.output import logging_at
from yolov7fast.core.text import printable
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.shapes import NAMES, make_shapes
from yolov7fast.machine.gpu_check import HYP, INFO, TINY, CheckLine, narrow_cfg, step_config, usable_cores
from yolov7fast.machine.profiler import build_step, measure, random_batch_data
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.memory_plan import Workload, assumed_labels
from yolov7fast.training.step import choose_amp

Options = tuple[str, ...]  # of train.py
STEP_OPTIONS: tuple[Options, ...] = ((), ("--channels-last",))
GPU_OPTIONS: tuple[Options, ...] = (("--channels-last", "--compile"), ("--channels-last", "--cuda-graph"))
LOADER_OPTIONS: tuple[Options, ...] = ((), ("--fast-dataloader", "--cache-images", "disk"))
GAIN = 1.03  # options are considered faster from this factor on
SIZE, CLASSES = 320, 80
LOADER_BATCH, IMAGE_SIZE, WAVES = 16, 400, 4  # of the loaders that are measured; batches of each worker
ROUNDS = 5  # of the measured peak; the fastest counts


class Peak(NamedTuple):
    """The measured peak of a device: floating-point operations per second of a matrix product, bytes per second of a
    copy."""

    flops: float
    bandwidth: float


def check_speed(device: torch.device, folder: Path) -> Iterator[CheckLine]:
    """Steps and loaders with each set of options, the fastest command line, and how close its step is to the peak."""
    on_gpu = device.type == "cuda"
    batch, iters = (64, 30) if on_gpu else (4, 3)
    rates: dict[Options, float] = {}
    for options in known([*STEP_OPTIONS, *(GPU_OPTIONS if on_gpu else ())]):  # a CPU's compiler takes minutes
        with logged_warnings() as problems:
            profiles = step_profiles(device, folder, options, batch, iters)
        for kind, profile in profiles.items():
            text = step_text(profile) + "".join(f"; {printable(problem, 160)}" for problem in problems[:1])
            yield CheckLine(f"yolov7-tiny, {SIZE}, batch {batch}, {kind}, {words(options)}", INFO, text)
        if "plain" in profiles:
            ratio = profiles["ota"]["total_ms"] / profiles["plain"]["total_ms"]
            yield CheckLine("OTA / plain", INFO, f"a step with OTA takes {ratio:.3f} times one with the plain loss")
        if not (options and problems):  # an option that failed is not recommended
            rates[options] = profiles["ota"]["images_per_s"]
    step = fastest(rates)
    yield CheckLine("fraction of the peak", INFO, light_text(device, batch, batch / rates[step]))
    workers = max(usable_cores() - 2, 1)
    loaders: dict[Options, float] = {}
    for options in known(LOADER_OPTIONS):
        try:
            rate = loaders[options] = loader_rate(folder, options, workers)
            enough = "more" if rate > rates[step] else "LESS"
            text = f"{rate:.0f} images/s with {workers} workers, {enough} than the fastest step takes"
        except (OSError, RuntimeError, UserError) as error:  # such as a small /dev/shm
            text = f"failed: {one_line(error, 160)}"
        yield CheckLine(f"loader, {SIZE}, {words(options)}", INFO, text)
    chosen = " ".join(["--workers", str(workers), *(fastest(loaders) if loaders else ()), *step])
    yield CheckLine("fastest command line", INFO, f"python train.py --data YOUR.yaml --batch-size {batch} {chosen}")


def words(options: Options) -> str:
    return " ".join(options) or "no option"


def known(candidates: Sequence[Options]) -> list[Options]:
    """The options whose flags all exist in train.py."""
    flags = {flag.name for flag in flags_of("train").values()}
    return [options for options in candidates if all(word in flags for word in options if word.startswith("--"))]


def fastest(rates: Mapping[Options, float]) -> Options:
    """The options with the highest rate; later ones must exceed it by more than the scatter of the measurement."""
    best = next(iter(rates))
    for options, rate in rates.items():
        if rate > GAIN * rates[best]:
            best = options
    return best


@contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """Warnings of the package inside the block, such as a failed compilation."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("yolov7fast")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


# --- the step ---------------------------------------------------------------------------------------------------------


def step_profiles(device: torch.device, folder: Path, options: Options, batch: int, iters: int) -> dict[str, dict]:
    """Profiles of a step with these options: with OTA and, if there are no options, also with the plain loss."""
    config = step_config(TINY, SIZE, batch, folder, *options)
    family, step = build_step(config, random_batch_data(CLASSES), device, targets=17)
    kinds = ("ota",) if options else ("plain", "ota")
    return measure(family, step, kinds, iters, 1 + 4 * (device.type == "cuda"), device)


def step_text(profile: Mapping) -> str:
    stages = ", ".join(f"{name} {row['mean_ms']:.1f}" for name, row in profile["stages"].items())
    text = f"{profile['images_per_s']:.0f} images/s, {profile['total_ms']:.1f} ms a step: {stages}"
    if profile.get("kernel_ms"):  # 0: torch.profiler may be unable to trace the GPU
        busy = profile["kernel_ms"] / profile["total_ms"]
        text += f"; host time {profile['host_ms']:.1f}, GPU time {profile['kernel_ms']:.1f} (utilisation {busy:.0%})"
    return text


def light_text(device: torch.device, batch: int, seconds: float) -> str:
    """The fraction of the measured peak that a step of this duration reaches ("speed of light")."""
    dtype = choose_amp("auto", device).dtype
    hyp = load_hyp(check_file(HYP, "hyp"))
    cost = Workload(check_file(TINY, "cfg"), CLASSES, SIZE, hyp, assumed_labels(), dtype).cost(batch)
    peak = measured_peak(device, dtype)
    compute, memory = cost.flops / peak.flops, cost.traffic / peak.bandwidth
    return (
        f"the fastest step takes {seconds * 1e3:.1f} ms. {cost.flops / 1e12:.3f} TFLOP at {peak.flops / 1e12:.2f} "
        f"TFLOP/s (matrix product) need {compute * 1e3:.1f} ms, {cost.traffic / 1e9:.1f} GB of memory traffic (each "
        f"operator alone) at {peak.bandwidth / 1e9:.0f} GB/s (copy) {memory * 1e3:.1f} ms: "
        f"{max(compute, memory) / seconds:.0%} of the peak"
    )


def measured_peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """Measure the peak by a large matrix product and a large copy."""
    side, size = (8192, 1 << 29) if device.type == "cuda" else (512, 1 << 25)
    a = torch.rand(side, side, device=device).to(dtype)
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    return Peak(2 * side**3 / shortest(lambda: a @ a), 2 * size / shortest(lambda: target.copy_(source)))


def shortest(work: Callable[[], object], repeats: int = 10) -> float:
    """Seconds of one call in the fastest of several rounds."""
    work()
    found = []
    for _ in range(ROUNDS):
        began = time_synchronized()
        for _ in range(repeats):
            work()
        found.append((time_synchronized() - began) / repeats)
    return max(min(found), 1e-9)


# --- the loader -------------------------------------------------------------------------------------------------------


def loader_rate(folder: Path, options: Options, workers: int) -> float:
    """Images per second of the loader in its second epoch, with existing caches and busy workers."""
    count = LOADER_BATCH * WAVES * workers
    images = make_shapes(folder / "loader", train=count, val=1, size=IMAGE_SIZE) / "images"
    lines = {"train": str(images / "train"), "val": str(images / "val"), "nc": len(NAMES), "names": list(NAMES)}
    file = folder / "loader.yaml"
    file.write_text(yaml.safe_dump(lines))
    cfg = narrow_cfg(TINY, 0.125, folder)
    config = step_config(cfg, SIZE, LOADER_BATCH, folder, "--workers", str(workers), *options)
    with logging_at(logging.ERROR, "yolov7fast"):  # about the drawn images
        family, _ = build_step(replace(config, data=str(file)), load_data_yaml(str(file)), torch.device("cpu"))
    try:
        family.loader.set_epoch(0)
        for _ in family.loader:
            pass
        family.loader.set_epoch(1)
        times = [time.perf_counter() for _ in family.loader]
    finally:
        family.close()
    times = times[min(workers, len(times) - 2) :]  # the first batch of each worker includes its start
    return LOADER_BATCH * (len(times) - 1) / (times[-1] - times[0])
