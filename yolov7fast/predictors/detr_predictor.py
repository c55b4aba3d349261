"""DETR networks as predictors: the position of the images in a batch, and boxes from queries. No NMS is needed."""

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
from yolov7fast.nn.detr_model import Architecture, DetrNetwork, rebuild
from yolov7fast.predictors.predictor import (
    DEFAULT,
    LARGEST_SIDE,
    MAX_BOXES,
    Finish,
    NetworkPredictor,
    Prediction,
    PredictOptions,
    WeightsFile,
    wanted_rows,
)

GRID = 32  # the coarsest stride of the backbones


class BatchLayout(NamedTuple):
    """Where the images of a batch lie, and the frame that box coordinates are fractions of."""

    image: torch.Tensor  # (B, 4) x, y, width, height in pixels of the batch
    box: torch.Tensor  # (B, 4) the same for the frame of the network's boxes
    canvas: tuple[int, int]  # height and width of the loader's batch, which targets are fractions of
    height: int  # of the network's input
    width: int

    @classmethod
    def of(cls, shapes, canvas, model: DetrNetwork, grid: int = 1) -> "BatchLayout":
        """The layout of a loaded batch.

        Args:
            shapes: per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h))).
            canvas: height and width of the loader's batch.
            model: rows are added below if it needs a larger input.
            grid: if > 1, padding on the right and below is cut down to a multiple of it.
        """
        image, (height, width) = content(shapes), (int(side) for side in canvas)
        full_size = height, width
        if grid > 1:
            reach = (image[:, :2] + image[:, 2:]).amax(0).ceil().long()
            width, height = (min(-(-int(n) // grid) * grid, full) for n, full in zip(reach, (width, height)))
        height = model.least_height(height, width)
        whole = torch.tensor([0.0, 0.0, width, height]).repeat(len(image), 1)
        return cls(image, whole if model.kind.padded_frame else image, full_size, height, width)

    def inputs(self, images: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """uint8 (B, 3, H, W) -> float images (B, 3, h, w) in 0..1 and padding mask (B, h, w), on the device."""
        # cropped on the device: cropping on the host would copy the batch into pageable memory
        images = images.to(device, non_blocking=True)[:, :, : self.height, : self.width].float() / 255.0
        if images.shape[2] < self.height:
            images = F.pad(images, (0, 0, 0, self.height - images.shape[2]))
        (mask,) = send([padding_mask(self.image, self.height, self.width).numpy()], device)
        return images, mask

    def labels(self, targets: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        """Targets (n, 6) image, class, cxcywh as fractions of the canvas -> per image the labels of transformers' loss:
        `class_labels` (m,) and `boxes` (m, 4) cxcywh as fractions of the frame."""
        image = targets[:, 0].long()
        h, w = self.canvas
        pixels = targets[:, 2:] * torch.tensor([w, h, w, h], dtype=torch.float32)
        frame = self.box[image]
        boxes = torch.cat((pixels[:, :2] - frame[:, :2], pixels[:, 2:]), 1) / frame[:, 2:].repeat(1, 2)
        rows = [(image == i).nonzero()[:, 0] for i in range(len(self.box))]
        return [{"class_labels": targets[r, 1].long(), "boxes": boxes[r].clamp(0, 1)} for r in rows]

    def sent_labels(self, targets: torch.Tensor, device: torch.device) -> list[dict[str, torch.Tensor]]:
        """`labels` on the device, copied asynchronously."""
        labels = self.labels(targets)
        sent = iter(send([value.numpy() for label in labels for value in label.values()], device))
        return [{name: next(sent) for name in label} for label in labels]


def best_of(logits: torch.Tensor, kind: Architecture) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (B, q, classes) -> score, class and query, each (B, k), best first.

    With a background class each query has one class. Without, the classes of all queries are ranked together, and one
    query may give several detections.
    """
    if kind.has_background:
        score, label = logits.softmax(-1)[..., :-1].max(-1)
        score, query = score.sort(descending=True)
        return score, label.gather(1, query), query
    classes = logits.shape[-1]
    flat = logits.sigmoid().flatten(1)
    score, place = flat.topk(min(max(logits.shape[1], MAX_BOXES), flat.shape[1]))
    return score, place % classes, place // classes


def boxes_in_pixels(boxes: torch.Tensor, frame: torch.Tensor) -> torch.Tensor:
    """Boxes (B, q, 4) cxcywh as fractions of the frames (B, 4) x, y, width, height -> xyxy in pixels."""
    frame = frame[:, None]
    centre = frame[..., :2] + boxes[..., :2] * frame[..., 2:]
    half = boxes[..., 2:] * frame[..., 2:] / 2
    return torch.cat((centre - half, centre + half), -1)


def decode_queries(
    logits: torch.Tensor, boxes: torch.Tensor, frame: torch.Tensor, kind: Architecture
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (B, q, classes) and boxes (B, q, 4) cxcywh -> boxes (B, k, 4) xyxy in pixels, score and class (B, k), best
    first.

    frame: (B, 4) x, y, width, height in pixels that the boxes are fractions of.
    """
    score, label, query = best_of(logits, kind)
    boxes = boxes_in_pixels(boxes, frame)
    return boxes.gather(1, query[..., None].expand(-1, -1, 4)), score, label


class DetrPredictor(NetworkPredictor):
    """A DETR network.

    Args:
        model: the network.
        options: thresholds and other options.
        with_loss: also compute the loss, which needs targets.
        img_size: training image size, if known.
    """

    uses_nms = False
    stride = GRID

    def __init__(
        self,
        model: DetrNetwork,
        options: PredictOptions = DEFAULT,
        with_loss: bool = False,
        img_size: int | None = None,
    ):
        for wanted, flag in ((options.augment, "--augment"), (options.hybrid, "--save-hybrid")):
            if wanted:
                raise UserError(f"{flag} is for YOLO networks; leave it out for DETR")
        if options.agnostic:
            raise UserError("--agnostic-nms has no meaning for DETR, which needs no NMS; leave it out")
        parameter = next(model.parameters())
        super().__init__(parameter.device)
        self.model, self.options, self.with_loss, self.img_size = model.eval(), options, with_loss, img_size
        self.precision = str(parameter.dtype).removeprefix("torch.")
        self.names = model.names
        if with_loss:
            attach_loss(model)

    @torch.no_grad()
    def launch(self, images: torch.Tensor, shapes: Sequence[Any] = (), targets: torch.Tensor | None = None) -> Finish:
        """Start a batch. With the loss, it waits for the network, because the matching is done on the host."""
        layout = BatchLayout.of(shapes, images.shape[2:], self.model)
        labels = None
        if self.with_loss:
            labels = layout.sent_labels(torch.zeros(0, 6) if targets is None else targets, self.device)
        start = self.queue.mark()
        output = self.model(*layout.inputs(images, self.device), labels)
        end = self.queue.mark()
        losses = {name: output.loss_dict[name] for name in PARTS} if self.with_loss else {}
        (frame,) = send([layout.box.numpy()], self.device)
        boxes, score, label = decode_queries(output.logits.float(), output.pred_boxes.float(), frame, self.model.kind)
        rows = torch.cat((boxes, score[..., None], label[..., None].to(boxes)), -1)
        return partial(self._finish, rows, losses, (start, end, self.queue.mark()))

    @torch.no_grad()
    def _finish(self, rows: torch.Tensor, losses, marks) -> Prediction:
        """Copy and filter all rows (B, k, 6). marks: queue marks before and after the network, and after the rows."""
        start, end, decoded = marks
        with self.queue.beside(decoded):
            clock = HostMark()
            detections = [wanted_rows(found, self.options) for found in rows.cpu()]
        nms_ms = end.elapsed_time(decoded) + clock.elapsed_time(HostMark())
        return Prediction(detections, start.elapsed_time(end), nms_ms, losses)


def load_predictor(files: Sequence[WeightsFile], device: torch.device, options: PredictOptions) -> DetrPredictor:
    """The EMA network of a checkpoint."""
    if len(files) > 1:
        raise UserError(f"--weights: an ensemble is for YOLO networks; give one of {len(files)} DETR checkpoints")
    (file,) = files
    model = load_network(file).to(device)
    size = file.content.get("img_size")
    if size is not None and not is_whole(size, 1, LARGEST_SIDE):
        raise CheckpointError(f"{file.path} is damaged: its image size is {shown(size)}")
    return DetrPredictor(model, options, img_size=size)


def load_network(file: WeightsFile) -> DetrNetwork:
    """The network of a checkpoint with its EMA weights, which a stripped file stores as `model`."""
    model = rebuild(file.content, file.path)
    try:
        model.load_state_dict(file.content.get("ema") or file.content.get("model"))
    except (TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{file.path} is damaged: its weights do not fit its network ({reason})") from None
    return model.eval()
