"""The memory of a training step, from shapes alone: the step runs on PyTorch's meta device, which holds no values.

Activations are what autograd saves for the backward pass, each storage once; they are counted by the layer that saves
them. The peak is the largest sum of storages that live at one time, as an allocator without waste would see it.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from yolov7fast.losses.build import build_loss
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.nn.model import Model
from yolov7fast.profiling.op_counter import PeakMemory
from yolov7fast.training.hyperparameters import scale_gains

LOSS = "loss"  # stands among the layers

# what autocast runs in the lower precision, as far as the blocks use it; all else follows its inputs by promotion
LOWERED = {F.conv2d, F.linear, F.conv_transpose2d, torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm}
LOWERED |= {torch.Tensor.__matmul__, torch.Tensor.__rmatmul__}
RAISED = {F.softmax, torch.softmax, torch.Tensor.softmax}  # and in fp32


class StepBytes(NamedTuple):
    """Bytes of one step. activations: saved by autograd, the loss's among them; by_layer: the same, layer by layer in
    their order, then `LOSS`; peak: the most at one time beyond weights, their gradients and the images."""

    activations: int
    by_layer: dict[str, int]
    peak: int


class MetaAutocast(TorchFunctionMode):
    """Mixed precision for tensors on `meta`, which torch.autocast does not know: weights are cast once a step."""

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


class SavedBytes:
    """Bytes that autograd saves while `counting`, each storage once, by the layer that runs."""

    def __init__(self, model: Model):
        self.model = model
        self.by_layer: Counter[str] = Counter()
        self.layer = LOSS
        held = [*model.parameters(), *model.buffers()]
        self.seen = {t.untyped_storage()._cdata: t.untyped_storage() for t in held}  # the network's own do not count

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        hooks = []
        for layer in self.model.model:
            hooks.append(layer.register_forward_pre_hook(lambda m, _: self._enter(name_of(m))))
            hooks.append(layer.register_forward_hook(lambda *_: self._enter(LOSS)))
        try:
            with saved_tensors_hooks(self._pack, lambda tensor: tensor):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, layer: str) -> None:
        self.layer = layer

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen[storage._cdata] = storage  # held, so that its address stays taken
            self.by_layer[self.layer] += storage.nbytes()
        return tensor


def name_of(layer: Any) -> str:
    """`12 Conv`, by number and kind."""
    return f"{layer.i} {str(layer.type).rpartition('.')[2]}"


def meta_network(cfg: str | dict[str, Any], classes: int, hyp: Mapping[str, Any], img_size: int, **heads: Any) -> Model:
    """A network without values, ready for its loss; heads: see `Model`."""
    with torch.device("meta"):
        model = Model(cfg, ch=3, nc=classes, anchors=hyp.get("anchors"), **heads)
    head: Any = model.model[-1]
    head.anchors = readable_anchors(model)
    model.hyp = scale_gains(hyp, levels=head.nl, classes=classes, img_size=img_size, smoothing=0.0)
    model.gr = 1.0
    return model.train()


def readable_anchors(model: Model) -> torch.Tensor:
    """(levels, anchors, 2) in cells, on the host: the description's, or evenly spread ones where it has a number."""
    head: Any = model.model[-1]
    described = model.yaml["anchors"]
    if isinstance(described, Sequence) and not isinstance(described, str):
        pixels = torch.tensor(described, dtype=torch.float32).view(head.nl, -1, 2)
    else:
        steps = torch.arange(1, head.na + 1, dtype=torch.float32)
        pixels = (steps * head.stride.view(-1, 1)).unsqueeze(-1).expand(-1, -1, 2)
    return pixels / head.stride.view(-1, 1, 1)


def loss_of(model: Model, assigner: str) -> Any:
    """The loss that trains this network; the network must still have readable anchors."""
    auxiliary = isinstance(model.model[-1], IAuxDetect)
    return build_loss(model, "ota" if auxiliary and assigner == "plain" else assigner)


def measure_step(
    model: Model, batch: int, img_size: int, targets: torch.Tensor, assigner: str, dtype: torch.dtype = torch.float32
) -> StepBytes:
    """Run one step of `meta_network` on a batch; targets: (N, 6) on the host; dtype: of mixed precision."""
    criterion = loss_of(model, assigner)
    model.to("meta")
    for parameter in model.parameters():  # of the batches before: gradients accumulate
        parameter.grad = torch.zeros_like(parameter)
    images = torch.empty(batch, model.yaml["ch"], img_size, img_size, device="meta")
    saved = SavedBytes(model)
    saved.seen[images.untyped_storage()._cdata] = images.untyped_storage()
    with PeakMemory() as peak:
        with saved.counting(), MetaAutocast(dtype) if dtype is not torch.float32 else contextlib.nullcontext():
            outputs = model(images)
            total, _ = criterion(outputs, targets, images)
        activations = sum(saved.by_layer.values())
        saved.seen.clear()
        del outputs
        total.backward()
    head: Any = model.model[-1]
    head.anchors = readable_anchors(model)
    model.zero_grad()
    order = [name_of(layer) for layer in model.model] + [LOSS]
    by_layer = {name: saved.by_layer[name] for name in order if saved.by_layer[name]}
    return StepBytes(activations, by_layer, peak.peak)
