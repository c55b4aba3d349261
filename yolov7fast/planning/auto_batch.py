"""`--batch-size auto`: the batch that fits this machine, by the plan and, on a GPU, by one probing step.

It is a divisor of the nominal batch, so that accumulated batches make exactly the nominal one and the run learns as any
other does, and never more than it: larger batches would take fewer optimizer steps.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from yolov7fast.core.errors import UserError
from yolov7fast.losses.build import assigner_name
from yolov7fast.losses.yolo import LOSS_NAMES
from yolov7fast.nn.model import Model
from yolov7fast.planning.density import dense_targets
from yolov7fast.planning.memory import GIB, MARGIN, Workload
from yolov7fast.planning.step_memory import loss_of
from yolov7fast.training.ema import ModelEMA
from yolov7fast.training.hyperparameters import scale_gains
from yolov7fast.training.optimizer import Rates
from yolov7fast.training.step import Amp, TrainStep

log = logging.getLogger(__name__)
WORKER_BYTES = 400 << 20  # of a loader process with its part of a batch
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


class Limits(NamedTuple):
    """What limits the batch besides memory. replicas: GPUs or processes that share it evenly."""

    nominal: int
    images: int
    replicas: int = 1


def available_memory(device: torch.device, workers: int) -> int:
    """Bytes that a training may use: what other processes leave of the GPU or, less the loader processes, of RAM."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return max(free_ram() - workers * WORKER_BYTES, 0)


def free_ram(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Bytes of RAM that can be had without swapping, within the limit of a container."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        raise UserError("--batch-size auto: this system does not say how much memory is free; give a number") from None
    try:
        room = int((cgroup / "memory.max").read_text()) - int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return free
    return max(min(free, room), 0)


def allowed_batches(limits: Limits) -> list[int]:
    """Batches over all replicas, largest first: divisors of the nominal batch, each replica getting equal parts."""
    most = max(min(limits.nominal, limits.images), limits.replicas)
    fitting = [n for n in range(most, 0, -1) if n % limits.replicas == 0]
    exact = [n for n in fitting if limits.nominal % n == 0]
    return exact or fitting


def choose_batch(
    work: Workload,
    capacity: int,
    limits: Limits,
    probe: Callable[[Workload, int], int] | None = None,
) -> int:
    """The batch over all replicas, for `capacity` bytes on each. probe: runs a step of a batch and gives its peak in
    bytes, or raises torch.OutOfMemoryError."""
    candidates = allowed_batches(limits)
    per_replica = candidates[0] // limits.replicas
    fits = work.largest_batch(capacity, per_replica)
    left = [n for n in candidates if n // limits.replicas <= fits]
    for batch in left:
        peak = _probed(probe, work, batch // limits.replicas) if probe else None
        if probe and (peak is None or peak > capacity * (1 - MARGIN)):
            found = "runs out of memory" if peak is None else f"takes {peak / GIB:.2f} GB"
            log.info("--batch-size auto: a probing step of batch %d %s; trying a smaller one", batch, found)
            continue
        measured = "" if peak is None else f", {peak / GIB:.2f} GB measured"
        need = work.plan(batch // limits.replicas).total
        log.info(
            "--batch-size auto: %d images, %.2f GB planned%s, of %.2f GB (%d%% left free)%s",
            *(batch, need / GIB, measured, capacity / GIB, MARGIN * 100, _accumulated(batch, limits.nominal)),
        )
        return batch
    raise UserError(
        f"--batch-size auto: not even {limits.replicas} image(s) of {work.img_size} pixels fit into "
        f"{capacity / GIB:.2f} GB; lower --img-size, choose a smaller --cfg, or free memory"
    )


def _accumulated(batch: int, nominal: int) -> str:
    steps = max(round(nominal / batch), 1)
    return f"; {steps} batches make an optimizer step, the nominal batch of {nominal}" if steps > 1 else ""


def _probed(probe: Callable[[Workload, int], int], work: Workload, batch: int) -> int | None:
    """What the probe measured; None: out of memory. Here, so that its tensors are gone when a smaller one is tried."""
    try:
        return probe(work, batch)
    except torch.OutOfMemoryError:
        return None


def probe_on(device: torch.device) -> Callable[[Workload, int], int]:
    """A probe that trains a throw-away network for one step on the densest batch, and gives the device's peak."""

    def probe(work: Workload, batch: int) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        try:
            run_step(work, batch, device)
            return torch.cuda.max_memory_reserved(device)
        finally:
            torch.cuda.empty_cache()

    return probe


class ProbeRecipe:
    """A network with its loss, on one batch of random images."""

    loss_names: ClassVar[tuple[str, ...]] = (*LOSS_NAMES, "total")

    def __init__(self, criterion: Any):
        self.criterion = criterion

    def to_device(self, batch, device: torch.device):
        return batch[0].to(device, non_blocking=True).float() / 255.0, batch[1]

    def forward_loss(self, net, batch, mark):
        outputs = net(batch[0])
        mark("forward")
        return self.criterion(outputs, batch[1], batch[0])


def run_step(work: Workload, batch: int, device: torch.device) -> TrainStep:
    """One whole step as training runs it: network, loss of the densest batch, optimizer, EMA. Returns it."""
    model = Model(work.cfg, ch=3, nc=work.classes, anchors=work.hyp.get("anchors"), **work.heads).train()
    head: Any = model.model[-1]
    model.hyp = scale_gains(work.hyp, levels=head.nl, classes=work.classes, img_size=work.img_size, smoothing=0.0)
    model.gr = 1.0
    criterion = loss_of(model, assigner_name(work.hyp))
    model.to(device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(work.frozen) if work.frozen else True)
    parameters = list(model.parameters())
    make = torch.optim.Adam if work.adam else torch.optim.SGD
    optimizer = make(parameters, lr=1e-6, **({} if work.adam else {"momentum": 0.9, "nesterov": True}))
    amp = Amp(work.dtype is not torch.float32, work.dtype)
    step = TrainStep(ProbeRecipe(criterion), model, model, optimizer, ModelEMA(model), device, amp=amp)
    images = torch.zeros(batch, model.yaml["ch"], work.img_size, work.img_size, dtype=torch.uint8)
    step((images, dense_targets(work.labels, work.hyp, batch)), 0, Rates((1e-6,), 0.9, 1))
    step.sync_metrics()
    return step
