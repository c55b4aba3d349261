"""DETR networks as predictors: what lies where in a batch, and boxes from queries. No suppression is needed."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError
from yolov7fast.core.device import HostMark, send
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.settings_files import is_whole
from yolov7fast.data.detr_dataset import content, padding_mask
from yolov7fast.losses.detr_loss import PARTS, attach_loss
from yolov7fast.nn.detr_model import Architecture, Detector, rebuild
from yolov7fast.predictors.base import (
    DEFAULT,
    MAX_BOXES,
    Finish,
    NetworkPredictor,
    Prediction,
    PredictOptions,
    Source,
    wanted_rows,
)

LARGEST_SIDE = 1 << 16  # pixels of an image
GRID = 32  # the coarsest stride of the backbones


class Frames(NamedTuple):
    """Where the images of a batch lie, and what boxes are fractions of."""

    image: torch.Tensor  # (B, 4) x, y, width, height in pixels of the batch
    box: torch.Tensor  # (B, 4) the same for the frame that a network's boxes are fractions of
    canvas: tuple[int, int]  # height and width of the loader's batch, which targets are fractions of
    height: int  # of what the network sees
    width: int

    @classmethod
    def of(cls, shapes, canvas, model: Detector, grid: int = 1) -> "Frames":
        """grid > 1: cut padding off right and below, down to a multiple of it. Where the network needs more room, there
        is more below."""
        image, (height, width) = content(shapes), (int(side) for side in canvas)
        if grid > 1:
            reach = (image[:, :2] + image[:, 2:]).amax(0).ceil().long()
            width, height = (min(-(-int(n) // grid) * grid, full) for n, full in zip(reach, (width, height)))
        height = model.least_height(height, width)
        whole = torch.tensor([0.0, 0.0, width, height]).repeat(len(image), 1)
        full_height, full_width = (int(side) for side in canvas)
        box = whole if model.kind.padded_frame else image
        return cls(image, box, (full_height, full_width), height, width)

    def inputs(self, images: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """uint8 (B, 3, H, W) -> images in 0..1 and padding mask (B, h, w), on the device."""
        # cut on the device: a part of a batch has gaps, which the host would close first, into pageable memory
        images = images.to(device, non_blocking=True)[:, :, : self.height, : self.width].float() / 255.0
        if images.shape[2] < self.height:
            images = F.pad(images, (0, 0, 0, self.height - images.shape[2]))
        (mask,) = send([padding_mask(self.image, self.height, self.width).numpy()], device)
        return images, mask

    def labels(self, targets: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        """Targets (n, 6) image, class, cxcywh as fractions of the canvas -> per image what transformers' loss takes."""
        image = targets[:, 0].long()
        h, w = self.canvas
        pixels = targets[:, 2:] * torch.tensor([w, h, w, h], dtype=torch.float32)
        frame = self.box[image]
        boxes = torch.cat((pixels[:, :2] - frame[:, :2], pixels[:, 2:]), 1) / frame[:, 2:].repeat(1, 2)
        rows = [(image == i).nonzero()[:, 0] for i in range(len(self.box))]
        return [{"class_labels": targets[r, 1].long(), "boxes": boxes[r].clamp(0, 1)} for r in rows]

    def sent_labels(self, targets: torch.Tensor, device: torch.device) -> list[dict[str, torch.Tensor]]:
        """`labels` on the device, without waiting for the copy."""
        labels = self.labels(targets)
        sent = iter(send([value.numpy() for label in labels for value in label.values()], device))
        return [{name: next(sent) for name in label} for label in labels]

    def to_pixels(self, boxes: torch.Tensor) -> torch.Tensor:
        """(B, q, 4) cxcywh, fractions of the frame -> xyxy in pixels of the batch."""
        frame = send([self.box.numpy()], boxes.device)[0][:, None]
        centre = frame[..., :2] + boxes[..., :2] * frame[..., 2:]
        half = boxes[..., 2:] * frame[..., 2:] / 2
        return torch.cat((centre - half, centre + half), -1)


def best_of(logits: torch.Tensor, kind: Architecture) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, q, classes) -> score, class, query, each (B, k), best first.

    With a background class each query has its one class; independent classes compete over all queries, so that one
    query may answer with several.
    """
    if kind.has_background:
        score, label = logits.softmax(-1)[..., :-1].max(-1)
        score, query = score.sort(descending=True)
        return score, label.gather(1, query), query
    classes = logits.shape[-1]
    flat = logits.sigmoid().flatten(1)
    score, place = flat.topk(min(max(logits.shape[1], MAX_BOXES), flat.shape[1]))
    return score, place % classes, place // classes


class DetrPredictor(NetworkPredictor):
    """A DETR network as a predictor (`base.Predictor`).

    with_loss: measure the loss too, for which the targets are needed. img_size: what it was trained for.
    """

    fixed_size = False
    border = 0.0
    uses_nms = False
    stride = GRID

    def __init__(
        self,
        model: Detector,
        options: PredictOptions = DEFAULT,
        with_loss: bool = False,
        img_size: int | None = None,
    ):
        for wanted, flag in ((options.augment, "--augment"), (options.hybrid, "--save-hybrid")):
            if wanted:
                raise UserError(f"{flag} is for YOLO networks; leave it out for DETR")
        if options.agnostic:
            raise UserError("--agnostic-nms has no meaning for DETR, which suppresses no boxes; leave it out")
        parameter = next(model.parameters())
        super().__init__(parameter.device)
        self.model, self.options, self.with_loss, self.img_size = model.eval(), options, with_loss, img_size
        self.precision = str(parameter.dtype).removeprefix("torch.")
        self.thread_safe = self.device.type == "cpu" and not with_loss
        self.names: Sequence[str] = model.names
        if with_loss:
            attach_loss(model)

    @torch.no_grad()
    def launch(self, images: torch.Tensor, shapes: Sequence[Any] = (), targets: torch.Tensor | None = None) -> Finish:
        """The loss, where it is wanted, waits for the network: its matching is done on the host."""
        frames = Frames.of(shapes, images.shape[2:], self.model)
        labels = None
        if self.with_loss:
            labels = frames.sent_labels(torch.zeros(0, 6) if targets is None else targets, self.device)
        begun = self.queue.mark()
        output = self.model(*frames.inputs(images, self.device), labels)
        ended = self.queue.mark()
        losses = {name: output.loss_dict[name] for name in PARTS} if self.with_loss else {}
        score, label, query = best_of(output.logits.float(), self.model.kind)
        boxes = frames.to_pixels(output.pred_boxes.float())
        boxes = boxes.gather(1, query[..., None].expand(-1, -1, 4))
        rows = torch.cat((boxes, score[..., None], label[..., None].to(boxes)), -1)
        return partial(self._finish, rows, losses, (begun, ended, self.queue.mark()))

    @torch.no_grad()
    def _finish(self, rows: torch.Tensor, losses, marks) -> Prediction:
        """rows (B, k, 6): all that the network found. marks: before and after the network, and behind the rows."""
        begun, ended, chosen = marks
        with self.queue.beside(chosen):
            clock = HostMark()
            detections = [wanted_rows(found, self.options) for found in rows.cpu()]
        nms_ms = ended.elapsed_time(chosen) + clock.elapsed_time(HostMark())
        return Prediction(detections, begun.elapsed_time(ended), nms_ms, losses)

    def warm_up(self, img_size: int) -> None:
        """Nothing: the first batch is not measured apart."""


def load_predictor(sources: Sequence[Source], device: torch.device, options: PredictOptions) -> DetrPredictor:
    """The averaged network of a checkpoint."""
    if len(sources) > 1:
        raise UserError(f"--weights: an ensemble is for YOLO networks; give one of {len(sources)} DETR checkpoints")
    (source,) = sources
    model = load_network(source).to(device)
    size = source.content.get("img_size")
    if size is not None and not is_whole(size, 1, LARGEST_SIDE):
        raise CheckpointError(f"{source.path} is damaged: its image size is {shown(size)}")
    return DetrPredictor(model, options, img_size=size)


def load_network(source: Source) -> Detector:
    """The network that a checkpoint describes, with its averaged weights; a stripped file holds them as `model`."""
    model = rebuild(source.content, source.path)
    try:
        model.load_state_dict(source.content.get("ema") or source.content.get("model"))
    except (TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{source.path} is damaged: its weights do not fit its network ({reason})") from None
    return model.eval()
