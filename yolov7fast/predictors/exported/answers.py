"""What the outputs of an exported file mean: predictions before suppression, or detections, whatever its form."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from yolov7fast.core.boxes import decode_wh, decode_xy
from yolov7fast.nn.detr_model import ARCHITECTURES
from yolov7fast.nn.heads import make_grid
from yolov7fast.predictors.detr import best_of
from yolov7fast.predictors.exported.forms import Form
from yolov7fast.predictors.exported.metadata import Metadata

Outputs = Mapping[str, np.ndarray]


def predictions_of(outputs: Outputs, metadata: Metadata) -> torch.Tensor:
    """Outputs of the raw or grid form -> (B, N, 5 + classes), as a head gives it."""
    if metadata.form is Form.GRID:
        return torch.from_numpy(outputs["output"])
    raw = [torch.from_numpy(outputs[name]) for name in metadata.outputs]
    levels = len(metadata.strides)
    heads = [raw[first : first + levels] for first in range(0, len(raw), levels)]
    if not metadata.head_classes:
        return decoded(heads[0], metadata)
    own = [own_columns(decoded(head, metadata), ids) for head, ids in zip(heads, metadata.head_classes)]
    return torch.cat([widened(p, ids, len(metadata.names)) for p, ids in zip(own, metadata.head_classes)], 1)


def decoded(levels: Sequence[torch.Tensor], metadata: Metadata) -> torch.Tensor:
    """Raw outputs (B, A, rows, columns, 5 + C) of all levels -> (B, N, 5 + C)."""
    parts = []
    for raw, stride, anchors in zip(levels, metadata.strides, metadata.anchors):
        s = raw.sigmoid()
        xy = decode_xy(s[..., 0:2], make_grid(raw.shape[3], raw.shape[2], raw.device)) * stride
        wh = decode_wh(s[..., 2:4], torch.tensor(anchors).view(1, -1, 1, 1, 2))
        parts.append(torch.cat((xy, wh, s[..., 4:]), -1).flatten(1, 3))
    return torch.cat(parts, 1)


def own_columns(predictions: torch.Tensor, classes: Sequence[int]) -> torch.Tensor:
    """Without the columns of other heads' classes, of which only full heads have any."""
    if predictions.shape[-1] == 5 + len(classes):
        return predictions
    return predictions[..., [*range(5), *(5 + c for c in classes)]]


def widened(predictions: torch.Tensor, classes: Sequence[int], nc: int) -> torch.Tensor:
    """A head's predictions with its classes in the columns of their global numbers, zeros elsewhere.

    A head of one class among several says everything with its objectness.
    """
    full = predictions.new_zeros(*predictions.shape[:2], 5 + nc)
    full[..., :5] = predictions[..., :5]
    full[..., [5 + c for c in classes]] = 1.0 if len(classes) == 1 and nc > 1 else predictions[..., 5:]
    return full


def detections_of(outputs: Outputs, metadata: Metadata, batch: int) -> list[torch.Tensor]:
    """Outputs of a form with suppression inside -> per image (k, 6): xyxy in pixels, score, class; best first."""
    if metadata.form is Form.END2END:
        rows = torch.from_numpy(outputs["output"])
        found = [rows[rows[:, 0] == image][:, [1, 2, 3, 4, 6, 5]] for image in range(batch)]
        return [d[d[:, 4].sort(descending=True, stable=True)[1]] for d in found]
    counts = outputs["num_dets"][:, 0].tolist()
    columns = (outputs["det_boxes"], outputs["det_scores"][..., None], outputs["det_classes"][..., None])
    rows = torch.from_numpy(np.concatenate([c.astype(np.float32) for c in columns], -1))
    return [rows[image, :count] for image, count in enumerate(counts[:batch])]


def query_detections(
    outputs: Outputs, metadata: Metadata, content: torch.Tensor, size: tuple[int, int]
) -> list[torch.Tensor]:
    """Logits and boxes of a DETR network -> per image (k, 6): xyxy in pixels of the input, score, class; best first.

    content: (B, 4) x, y, width, height of each image inside the input of `size` (h, w).
    """
    kind = ARCHITECTURES[metadata.kind]
    score, label, query = best_of(torch.from_numpy(outputs["logits"]), kind)
    whole = torch.tensor([[0.0, 0.0, size[1], size[0]]])
    frame = (whole if kind.padded_frame else content)[:, None]
    boxes = torch.from_numpy(outputs["boxes"]).gather(1, query[..., None].expand(-1, -1, 4))
    centre = frame[..., :2] + boxes[..., :2] * frame[..., 2:]
    half = boxes[..., 2:] * frame[..., 2:] / 2
    return list(torch.cat((centre - half, centre + half, score[..., None], label[..., None].float()), -1))
