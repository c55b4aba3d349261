"""The set loss of transformers: class, L1 and GIoU losses of every decoder layer, matched by `losses.detr_matching`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from yolov7fast.losses.detr_matching import BoxesNotFinite, Found, matched_together
from yolov7fast.nn.detr import Detector

PARTS = {"box": ("loss_bbox",), "giou": ("loss_giou",), "cls": ("loss_ce", "loss_vfl")}  # name -> keys begin with


class SetLoss:
    """Stands where the network keeps its loss function. It runs in full precision, whatever the network runs in.

    transformers divides by the number of boxes of one process. Where several train together (`shared`), and their
    gradients are averaged, each divides by the mean number instead, as if one process had seen the whole batch. All of
    them must then call it together: validation, which the first does alone, keeps a separate loss.
    """

    def __init__(self, detector: Detector):
        self.compute = detector.network.loss_function
        self.weights = {name: 1.0 for name in PARTS}  # RT-DETR's parts are weighted already
        config = detector.network.config
        if detector.kind.has_background:
            self.weights |= {"box": config.bbox_loss_coefficient, "giou": config.giou_loss_coefficient}
        # DETR's class loss is a mean over queries; everything else is divided by the number of boxes
        self.by_boxes = [name for name in PARTS if name != "cls" or not detector.kind.has_background]
        self.shared = False
        self.mark: Callable[[str], None] = _ignore
        self.timed = False  # the matcher is timed as a separate stage

    def __call__(self, logits: torch.Tensor, labels, device, boxes: torch.Tensor, config, *args, **kwargs):
        """(total, {part: value} summing up to it, per-layer outputs). Outputs that are not numbers give a loss of NaN,
        which the training step knows how to treat; the matching notices them, or transformers raises an error."""
        self.mark("forward")
        factor = _mean_count_factor(labels, device) if self.shared else None
        with torch.autocast(logits.device.type, enabled=False):
            wide = [_float(value) for value in (logits, boxes, *args)]
            kwargs = {key: _float(value) for key, value in kwargs.items()}
            try:
                with matched_together(self._matching):
                    total, found, layers = self.compute(wide[0], labels, device, wide[1], config, *wide[2:], **kwargs)
            except (BoxesNotFinite, ValueError) as error:
                if isinstance(error, ValueError) and all(bool(torch.isfinite(value).all()) for value in wide[:2]):
                    raise
                lost = wide[1].sum() * torch.nan
                return lost, dict.fromkeys(PARTS, lost.detach()), None
        parts = {name: self._part(name, found) for name in PARTS}
        if factor is not None:
            total = total + (factor - 1) * sum(parts[name] for name in self.by_boxes)
            parts |= {name: parts[name] * factor for name in self.by_boxes}
        return total, {name: part.detach() for name, part in parts.items()}, layers

    def _matching(self, match: Callable[[], list[Found]]) -> list[Found]:
        if not self.timed:
            return match()
        self.mark("loss")
        found = match()
        self.mark("assignment")
        return found

    def _part(self, name: str, found: dict[str, torch.Tensor]) -> torch.Tensor:
        of_layers = [value for key, value in found.items() if key.startswith(PARTS[name])]
        return self.weights[name] * torch.stack(of_layers).sum()


def _mean_count_factor(labels: list[dict[str, torch.Tensor]], device) -> torch.Tensor:
    """This process's number of boxes, which transformers divides by, over the mean number of all processes."""
    own = float(sum(len(label["class_labels"]) for label in labels))
    count = torch.tensor(own, device=device)
    dist.all_reduce(count)
    return max(own, 1.0) / (count / dist.get_world_size()).clamp(min=1.0)


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
    """While open, the matcher (cost block, its copy to the host, SciPy's assignment) is timed as a separate stage."""
    loss.timed = True
    try:
        yield
    finally:
        loss.timed = False
