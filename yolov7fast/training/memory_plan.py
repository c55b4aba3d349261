"""Memory of a YOLO training step by batch size, and the batch that `--batch-size auto` chooses.

The step runs on PyTorch's meta device, which computes shapes without values. Activations are the storages that are
still alive after the forward pass and the loss; the peak is the largest sum of storages that are alive at one time.
"""

import contextlib
import logging
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, module_of
from yolov7fast.core.errors import UserError
from yolov7fast.core.resize_schedule import parse_resize_schedule
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.losses.assigners import assigner_name
from yolov7fast.losses.loss_builder import build_loss
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.nn.model import Model
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.family import class_names, subset_of
from yolov7fast.training.step import choose_amp
from yolov7fast.training.yolo_network import chosen_heads, description_of

log = logging.getLogger(__name__)
GIB = 1 << 30
GPU_RESERVE = GIB  # CUDA context and cuDNN workspaces: an assumption, PyTorch does not report them
MARGIN = 0.1  # fraction of the memory that is left free
WORKER_BYTES = 400 << 20  # of a loader process
LARGEST_SCALE = 1.5  # of --multi-scale
CGROUP = Path("/sys/fs/cgroup")

# functions that autocast runs in the lower precision (those that the blocks use), and those that it runs in float32
LOWERED = {F.conv2d, F.linear, F.conv_transpose2d, torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm}
LOWERED |= {torch.Tensor.__matmul__, torch.Tensor.__rmatmul__}
RAISED = {F.softmax, torch.softmax, torch.Tensor.softmax}


def dense_targets(labels: Sequence[np.ndarray], hyp: Mapping[str, float], batch: int) -> torch.Tensor:
    """(N, 6) image, class, xywh of a batch whose first sample is the densest one possible, the others as the mean.

    labels: for each image float32 (m, 5) class, xywh. A mosaic shows the four densest images; mixup doubles its boxes.
    """
    counts = np.array([len(rows) for rows in labels])
    order = np.argsort(-counts, kind="stable").tolist()
    usual = labels[int(np.abs(counts - counts.mean()).argmin())]
    tiles = 4 if hyp["mosaic"] else 1
    repeats = 2 if hyp["mosaic"] and hyp["mixup"] else 1
    densest = np.concatenate([labels[order[i % len(order)]][:, :5] for i in range(tiles)] * repeats)
    samples = [densest] + [np.concatenate([usual[:, :5]] * tiles)] * (batch - 1)
    rows = np.concatenate(samples)
    rows[:, 3:] /= 2 if hyp["mosaic"] else 1  # four images at half their size; their positions do not matter
    image = np.repeat(np.arange(batch), [len(rows) for rows in samples])
    return torch.from_numpy(np.concatenate([image[:, None], rows], 1).astype(np.float32))


def assumed_labels(mean: int = 7, most: int = 93, images: int = 64) -> list[np.ndarray]:
    """Labels for a plan without a data set: as dense as COCO, `mean` boxes an image and `most` in the densest."""
    sides = (np.geomspace(0.02, 0.6, count) for count in (most, *[mean] * (images - 1)))
    return [np.stack([0 * side, 0 * side + 0.5, 0 * side + 0.5, side, side], 1).astype(np.float32) for side in sides]


class PeakMemory(TorchDispatchMode):
    """Bytes of the storages that were created in the block: alive `now`, and at most at one time (`peak`); what the
    operators compute (`flops`, of convolutions and matrix products) and read and write (`traffic`, in bytes)."""

    def __init__(self):
        super().__init__()
        self.alive, self.now, self.peak, self.flops, self.traffic = {}, 0, 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if count := flop_registry.get(func.overloadpacket):
            self.flops += count(*args, **kwargs, out_val=out)
        if not func.is_view:
            self.traffic += sum(t.nbytes for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor))
        inputs = {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        for storage in (t.untyped_storage() for t in tree_leaves(out) if isinstance(t, torch.Tensor)):
            key = storage._cdata
            if key not in self.alive and key not in inputs:
                self.alive[key] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, key)
        return out

    def _freed(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


class MetaAutocast(TorchFunctionMode):
    """Mixed precision for tensors on `meta`, which torch.autocast does not support: weights are cast once a step."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype
        self.cast: dict[int, torch.Tensor] = {}

    def _lowered(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
            return value
        if not isinstance(value, nn.Parameter):
            return value.to(self.dtype)
        if id(value) not in self.cast:
            self.cast[id(value)] = value.to(self.dtype)
        return self.cast[id(value)]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in LOWERED:
            args, kwargs = tuple(map(self._lowered, args)), {k: self._lowered(v) for k, v in kwargs.items()}
        elif func in RAISED:
            args = (args[0].float(), *args[1:])
        return func(*args, **kwargs)


class StepCost(NamedTuple):
    """Bytes of one step: kept for the backward pass, and the peak, both without weights, gradients and images. Work of
    forward pass, loss and backward pass: floating-point operations, bytes of memory traffic if no operators are fused.
    """

    activations: int
    peak: int
    flops: int
    traffic: int


def meta_network(cfg: str | dict[str, Any], classes: int, hyp: Mapping[str, Any], img_size: int, **heads: Any) -> Model:
    """A network on meta with the attributes that its loss reads; heads: see `Model`."""
    with torch.device("meta"):
        model = Model(cfg, ch=3, nc=classes, anchors=hyp.get("anchors"), **heads)
    head: Any = model.model[-1]
    head.anchors = host_anchors(model)
    model.hyp = hyper.scale_gains(hyp, levels=head.nl, classes=classes, img_size=img_size, smoothing=0.0)
    model.gr = 1.0
    return model.train()


def host_anchors(model: Model) -> torch.Tensor:
    """(levels, anchors, 2) in cells, with values: those of the description, or spread evenly where it has a number."""
    head: Any = model.model[-1]
    described = model.yaml["anchors"]
    if isinstance(described, Sequence) and not isinstance(described, str):
        pixels = torch.tensor(described, dtype=torch.float32).view(head.nl, -1, 2)
    else:
        steps = torch.arange(1, head.na + 1, dtype=torch.float32)
        pixels = (steps * head.stride.view(-1, 1)).unsqueeze(-1).expand(-1, -1, 2)
    return pixels / head.stride.view(-1, 1, 1)


def loss_of(model: Model, assigner: str) -> Any:
    """The loss that trains this network, whose anchors must still have values."""
    auxiliary = isinstance(model.model[-1], IAuxDetect)
    return build_loss(model, "ota" if auxiliary and assigner == "plain" else assigner)


def measure_step(
    model: Model, batch: int, img_size: int, targets: torch.Tensor, assigner: str, dtype: torch.dtype = torch.float32
) -> StepCost:
    """Run one step of a `meta_network`; targets: (N, 6) on the host; dtype: of mixed precision."""
    criterion = loss_of(model, assigner)
    model.to("meta")
    for parameter in model.parameters():  # gradients exist before the step: they are counted with the network
        parameter.grad = torch.zeros_like(parameter)
    images = torch.empty(batch, model.yaml["ch"], img_size, img_size, device="meta")
    with PeakMemory() as memory:
        with MetaAutocast(dtype) if dtype is not torch.float32 else contextlib.nullcontext():
            outputs = model(images)
            total, items = criterion(outputs, targets, images)
        del outputs, items
        activations = memory.now
        total.backward()
    head: Any = model.model[-1]
    head.anchors = host_anchors(model)
    model.zero_grad()
    return StepCost(activations, memory.peak, memory.flops, memory.traffic)


class MemoryPlan(NamedTuple):
    """Bytes of a training on one device, by purpose."""

    network: int  # weights, gradients, optimizer state and EMA
    images: int
    step: int
    reserve: int

    @property
    def total(self) -> int:
        return sum(self)


@dataclass(frozen=True)
class Workload:
    """The properties of a training on which its memory depends.

    labels: of the training set, for each image float32 (m, 5); dtype: of mixed precision, float32 without.
    """

    cfg: str | dict[str, Any]
    classes: int
    img_size: int
    hyp: Mapping[str, Any]
    labels: Sequence[np.ndarray]
    dtype: torch.dtype = torch.float32
    adam: bool = False
    reserve: int = GPU_RESERVE
    heads: Mapping[str, Any] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()  # prefixes of parameters that are not trained

    @cached_property
    def model(self) -> Model:
        model = meta_network(self.cfg, self.classes, self.hyp, self.img_size, **self.heads)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (self.frozen and name.startswith(self.frozen)))
        return model

    @cached_property
    def network_bytes(self) -> int:
        """Weights, gradients, optimizer state (one value a trained parameter, with Adam two) and EMA."""
        weights = sum(t.nbytes for t in [*self.model.parameters(), *self.model.buffers()])
        trained = sum(p.nbytes for p in self.model.parameters() if p.requires_grad)
        return 2 * weights + trained * (3 if self.adam else 2)

    def plan(self, batch: int) -> MemoryPlan:
        """The memory of one batch. Images are counted as uint8, as sent by the loader, and as float32."""
        images = batch * self.model.yaml["ch"] * self.img_size**2 * (1 + 4)
        return MemoryPlan(self.network_bytes, images, self.cost(batch).peak, self.reserve)

    def cost(self, batch: int) -> StepCost:
        targets = dense_targets(self.labels, self.hyp, batch)
        return measure_step(self.model, batch, self.img_size, targets, assigner_name(self.hyp), self.dtype)


class BatchLimits(NamedTuple):
    """Limits of the batch besides memory. replicas: GPUs or processes that share it evenly."""

    nominal: int
    images: int
    replicas: int = 1


def available_memory(device: torch.device, workers: int) -> int:
    """Bytes that a training may use: free memory of the GPU, or free RAM without that of the loader processes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return max(available_ram() - workers * WORKER_BYTES, 0)


def available_ram(cgroup: Path = CGROUP) -> int:
    """Bytes of RAM that are available without swapping, within the limit of a container, which psutil does not know."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limit = int((cgroup / "memory.max").read_text()) - int((cgroup / "memory.current").read_text())
        free = max(min(free, limit), 0)
    return free


def allowed_batches(limits: BatchLimits) -> list[int]:
    """Batches over all replicas, largest first.

    They divide the nominal batch, so that accumulated batches add up to the nominal one, and never exceed it: a
    larger batch would take fewer optimizer steps. Each replica gets an equal part.
    """
    most = max(min(limits.nominal, limits.images), limits.replicas)
    equal_parts = [n for n in range(most, 0, -1) if n % limits.replicas == 0]
    return [n for n in equal_parts if limits.nominal % n == 0] or equal_parts


def choose_batch(work: Workload, capacity: int, limits: BatchLimits) -> int:
    """The largest allowed batch over all replicas that fits into `capacity` bytes on each, with `MARGIN` left free."""
    for batch in allowed_batches(limits):
        planned = work.plan(batch // limits.replicas).total
        if planned > capacity * (1 - MARGIN):
            continue
        steps = max(round(limits.nominal / batch), 1)
        accumulated = f"; {steps} batches make an optimizer step, the nominal batch of {limits.nominal}"
        log.info(
            "--batch-size auto: %d images, %.2f GB planned, of %.2f GB (%d%% left free)%s",
            *(batch, planned / GIB, capacity / GIB, MARGIN * 100, accumulated if steps > 1 else ""),
        )
        return batch
    raise UserError(
        f"--batch-size auto: not even {limits.replicas} image(s) of {work.img_size} pixels fit into "
        f"{capacity / GIB:.2f} GB; lower --img-size, choose a smaller --cfg, or free memory"
    )


# --- a run ------------------------------------------------------------------------------------------------------------


def batch_that_fits(config: YoloTrainConfig, device: torch.device, processes: int) -> int:
    """The batch over all processes that --batch-size auto chooses for a run."""
    work, images = planned_work(config, device)
    limits = BatchLimits(int(hyper.get(work.hyp, "nominal_batch")), images, processes)
    return choose_batch(work, available_memory(device, config.workers), limits)


def planned_work(config: YoloTrainConfig, device: torch.device) -> tuple[Workload, int]:
    """The work of a run on `device`, and the number of its training images. Files are as `find_files` found them."""
    data = load_data_yaml(config.data, val_fraction=config.val_fraction, allow_download=config.allow_download)
    images = LoadImagesAndLabels(
        data.split("train"),
        config.img_size[0],
        single_cls=config.single_cls,
        subset=subset_of(config),
        prefix="train: ",
        cache_dir=config.cache_dir or None,
        keep_partial_labels=config.keep_partial_labels,
    )
    nc = len(class_names(data, config.single_cls))
    heads = chosen_heads(config, nc)
    weights = config.weights
    sizes = [config.img_size[0], *(step.size for step in parse_resize_schedule(config.resize_schedule))]
    largest = max(sizes) * (LARGEST_SCALE if config.multi_scale else 1) * (2 if config.quad else 1)
    frozen = range(config.freeze[0]) if len(config.freeze) == 1 else config.freeze
    work = Workload(
        config.cfg or description_of(module_of(load_checkpoint(weights), False, weights), weights),
        nc,
        math.ceil(largest / 32) * 32,
        hyper.with_assigner(hyper.load_hyp(config.hyp), config.loss_ota, config.assigner),
        images.labels,
        choose_amp(config.amp, device).dtype,
        config.adam,
        reserve=GPU_RESERVE if device.type == "cuda" else 0,
        heads={"heads": heads} if heads else {},
        frozen=tuple(f"model.{number}." for number in frozen),
    )
    stride = int(work.model.stride.max())
    if work.img_size % stride:
        work = replace(work, img_size=math.ceil(work.img_size / stride) * stride)
    return work, len(images)
