"""The set loss of transformers: matching (SciPy's assignment), class, L1 and GIoU losses, of every decoder layer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import torch

from models.detr import Detector, transformers

PARTS = {"box": ("loss_bbox",), "giou": ("loss_giou",), "cls": ("loss_ce", "loss_vfl")}  # name -> keys begin with


class SetLoss:
    """Stands where the network keeps its loss function. It runs in full precision, whatever the network runs in."""

    def __init__(self, detector: Detector):
        self.compute = detector.network.loss_function
        self.weights = {name: 1.0 for name in PARTS}  # RT-DETR's parts are weighted already
        config = detector.network.config
        if detector.kind.has_background:
            self.weights |= {"box": config.bbox_loss_coefficient, "giou": config.giou_loss_coefficient}
        self.mark: Callable[[str], None] = _ignore

    def __call__(self, logits: torch.Tensor, labels, device, boxes: torch.Tensor, config, *args, **kwargs):
        """(total, {part: value} summing up to it, per-layer outputs). Boxes that are not numbers give a loss of NaN,
        which the training step knows how to treat; transformers would stop with an error."""
        self.mark("forward")
        with torch.autocast(logits.device.type, enabled=False):
            wide = [_float(value) for value in (logits, boxes, *args)]
            kwargs = {key: _float(value) for key, value in kwargs.items()}
            if not bool(torch.isfinite(wide[1]).all()):
                lost = wide[1].sum() * torch.nan
                return lost, dict.fromkeys(PARTS, lost.detach()), None
            total, found, layers = self.compute(wide[0], labels, device, wide[1], config, *wide[2:], **kwargs)
        return total, {name: self._part(name, found) for name in PARTS}, layers

    def _part(self, name: str, found: dict[str, torch.Tensor]) -> torch.Tensor:
        of_layers = [value.detach() for key, value in found.items() if key.startswith(PARTS[name])]
        return self.weights[name] * torch.stack(of_layers).sum()


def _ignore(stage: str) -> None:
    pass


def _float(value):
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def attach_loss(detector: Detector) -> SetLoss:
    """Give the network its loss, unless it has it already."""
    present = detector.network.loss_function
    loss = present if isinstance(present, SetLoss) else SetLoss(detector)
    detector.network.loss_function = loss
    return loss


@contextmanager
def matcher_timed(loss: SetLoss) -> Iterator[None]:
    """While open, the matcher (cost matrix, its copy to the host, SciPy's assignment) is a stage of its own."""
    library = transformers()
    modules = (library.loss.loss_for_object_detection, library.loss.loss_rt_detr)
    matchers = [(modules[0].HungarianMatcher, modules[0]), (modules[1].RTDetrHungarianMatcher, modules[1])]
    kept = [(matcher, matcher.forward) for matcher, _ in matchers]

    def timed(forward):
        @wraps(forward)
        def run(*args, **kwargs):
            loss.mark("loss")
            found = forward(*args, **kwargs)
            loss.mark("assignment")
            return found

        return run

    for matcher, forward in kept:
        matcher.forward = timed(forward)
    try:
        yield
    finally:
        for matcher, forward in kept:
            matcher.forward = forward
