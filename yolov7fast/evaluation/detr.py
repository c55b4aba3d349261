"""DETR networks as evaluation and prediction ask for detectors: what lies where in a batch, and boxes from queries."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from yolov7fast.checkpoint.api import CheckpointError, is_detr, load_checkpoint
from yolov7fast.core.errors import UserError
from yolov7fast.data.detr_dataset import content, padding_mask
from yolov7fast.evaluation.loop import EvalResult, Prediction, Stopwatch, evaluate
from yolov7fast.evaluation.outputs import Outputs
from yolov7fast.losses.detr import PARTS, attach_loss
from yolov7fast.metrics.coco import find_annotations
from yolov7fast.nn.detr import Architecture, Detector, rebuild

GRID = 32  # the coarsest stride of the backbones
MOST_BOXES = 300


class Frames(NamedTuple):
    """Where the pictures of a batch lie, and what boxes are shares of."""

    picture: torch.Tensor  # (B, 4) x, y, width, height in pixels of the batch
    box: torch.Tensor  # (B, 4) the same for the frame that a network's boxes are shares of
    canvas: tuple[int, int]  # height and width of the loader's batch, which targets are shares of
    height: int  # of what the network sees
    width: int

    @classmethod
    def of(cls, shapes, canvas, model: Detector, grid: int = 1) -> "Frames":
        """grid > 1: cut padding off right and below, down to a multiple of it. Where the network needs more room, there
        is more below."""
        picture, (height, width) = content(shapes), (int(side) for side in canvas)
        if grid > 1:
            reach = (picture[:, :2] + picture[:, 2:]).amax(0).ceil().long()
            width, height = (min(-(-int(n) // grid) * grid, full) for n, full in zip(reach, (width, height)))
        height = model.least_height(height, width)
        whole = torch.tensor([0.0, 0.0, width, height]).repeat(len(picture), 1)
        return cls(picture, whole if model.kind.padded_frame else picture, tuple(map(int, canvas)), height, width)

    def inputs(self, images: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """uint8 (B, 3, H, W) -> images in 0..1 and padding mask (B, h, w), on the device."""
        images = images[:, :, : self.height, : self.width].to(device, non_blocking=True).float() / 255.0
        if images.shape[2] < self.height:
            images = F.pad(images, (0, 0, 0, self.height - images.shape[2]))
        return images, padding_mask(self.picture, self.height, self.width).to(device, non_blocking=True)

    def labels(self, targets: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        """Targets (n, 6) image, class, cxcywh as shares of the canvas -> per image what transformers' loss takes."""
        image = targets[:, 0].long()
        h, w = self.canvas
        pixels = targets[:, 2:] * torch.tensor([w, h, w, h], dtype=torch.float32)
        frame = self.box[image]
        boxes = torch.cat((pixels[:, :2] - frame[:, :2], pixels[:, 2:]), 1) / frame[:, 2:].repeat(1, 2)
        rows = [(image == i).nonzero()[:, 0] for i in range(len(self.box))]
        return [{"class_labels": targets[r, 1].long(), "boxes": boxes[r].clamp(0, 1)} for r in rows]

    def to_pixels(self, boxes: torch.Tensor) -> torch.Tensor:
        """(B, q, 4) cxcywh, shares of the frame -> xyxy in pixels of the batch."""
        frame = self.box.to(boxes)[:, None]
        centre = frame[..., :2] + boxes[..., :2] * frame[..., 2:]
        half = boxes[..., 2:] * frame[..., 2:] / 2
        return torch.cat((centre - half, centre + half), -1)


def best_of(logits: torch.Tensor, kind: Architecture) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, q, classes) -> score, class, query, each (B, k), best first.

    With a class for nothing each query has its one class; independent classes compete over all queries, so that one
    query may answer with several.
    """
    if kind.has_background:
        score, label = logits.softmax(-1)[..., :-1].max(-1)
        score, query = score.sort(descending=True)
        return score, label.gather(1, query), query
    classes = logits.shape[-1]
    flat = logits.sigmoid().flatten(1)
    score, place = flat.topk(min(max(logits.shape[1], MOST_BOXES), flat.shape[1]))
    return score, place % classes, place // classes


class DetrPredict:
    """A detector as a function from a batch to boxes, for evaluation and prediction. No suppression is needed.

    with_loss: measure the loss too, for which the targets are needed.
    """

    def __init__(self, model: Detector, conf_thres: float = 0.001, classes=None, with_loss: bool = False):
        self.model, self.conf_thres, self.classes = model.eval(), conf_thres, classes
        self.device = next(model.parameters()).device
        self.with_loss = with_loss
        if with_loss:
            attach_loss(model)

    @torch.no_grad()
    def __call__(self, images: torch.Tensor, targets: torch.Tensor, shapes) -> Prediction:
        frames = Frames.of(shapes, images.shape[2:], self.model)
        labels = None
        if self.with_loss:
            labels = [{k: v.to(self.device) for k, v in label.items()} for label in frames.labels(targets)]
        clock = Stopwatch()
        output = self.model(*frames.inputs(images, self.device), labels)
        inference_ms = clock.lap()
        loss = torch.stack([output.loss_dict[name] for name in PARTS]) if self.with_loss else None
        score, label, query = best_of(output.logits.float(), self.model.kind)
        boxes = frames.to_pixels(output.pred_boxes.float())
        boxes = boxes.gather(1, query[..., None].expand(-1, -1, 4))
        rows = torch.cat((boxes, score[..., None], label[..., None].to(boxes)), -1).cpu()
        return Prediction([self._kept(found) for found in rows], inference_ms, clock.lap(), loss)

    def _kept(self, rows: torch.Tensor) -> torch.Tensor:
        keep = rows[:, 4] > self.conf_thres
        if self.classes is not None:
            keep &= torch.isin(rows[:, 5], torch.tensor(self.classes, dtype=rows.dtype))
        return rows[keep][:MOST_BOXES]

    def on_pictures(self, images: torch.Tensor, shapes) -> Prediction:
        """The same for pictures without labels (`inference.predict.Predict`)."""
        return self(images, torch.zeros(0, 6), shapes)


def load_detector(path: str | Path, device: torch.device) -> tuple[Detector, dict[str, Any]]:
    """The averaged network of a checkpoint and the checkpoint; nothing in the file is run."""
    if not path:
        raise UserError("no checkpoint is named: give --weights FILE")
    checkpoint = load_checkpoint(path)
    if not is_detr(checkpoint):
        raise CheckpointError(f"{path} is not a checkpoint of tools/train_detr.py; for YOLO use test.py or detect.py")
    model = rebuild(checkpoint, path)
    try:
        model.load_state_dict(checkpoint["ema"])
    except (KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is damaged: its weights do not fit its network ({reason})") from None
    return model.to(device).eval(), checkpoint


def evaluate_detr(
    model: Detector,
    loader,
    data,
    save_dir: Path,
    *,
    imgsz: int,
    batch_size: int,
    conf_thres: float = 0.001,
    single_cls: bool = False,
    verbose: bool = False,
    plots: bool = True,
    with_loss: bool = False,
    alone: bool = False,
    v5_metric: bool = False,
    save_txt: bool = False,
    save_conf: bool = False,
    save_json: bool = False,
    annotations: str | None = None,
    task: str = "val",
    weights: str = "",
) -> EvalResult:
    """Measure a detector on a loader; tables, pictures and files are those of every evaluation here."""
    outputs = Outputs(Path(save_dir), data, single_cls, loader.dataset, alone)
    outputs.check_labels(needed=alone and not (save_json or save_txt))
    if save_txt:
        outputs.add_text(save_conf)
    if save_json:
        outputs.add_json(find_annotations(data, task, annotations), False, f"{Path(weights).stem}_predictions.json")
    if plots:
        outputs.add_pictures()
    predict = DetrPredict(model, conf_thres, with_loss=with_loss)
    options = {"imgsz": imgsz, "batch_size": batch_size, "single_cls": single_cls, "v5_metric": v5_metric}
    result = evaluate(predict, loader, len(outputs.names), **options, sinks=outputs.sinks)
    settings = {"weights": [weights], "data": data.path, "task": task, "conf_thres": conf_thres, **options}
    settings["precision"] = str(next(model.parameters()).dtype)
    return outputs.finish(result, settings, verbose)
