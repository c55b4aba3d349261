"""Proof that an exported file answers as the .pt file does: both see the same images, at several batches and sizes.

Of YOLO networks all scores are compared, and the boxes of the best rows of each image, before suppression, where no
decision lies between the numbers; then that the file's own suppression chose from its own rows what `metrics.nms` would
have chosen. Networks that need no suppression (DETR) are compared by their detections.

A float32 network determines its answer up to rounding only. Where that is coarser than the bounds, which the .pt file
run in float64 shows, twice the rounding counts instead, and the report says so.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.core.optional import need
from yolov7fast.export.network import Source
from yolov7fast.export.plan import Plan
from yolov7fast.export.samples import Batch, Case, cases, make_batch
from yolov7fast.export.suppression import PLUGIN, Suppression
from yolov7fast.metrics.nms import greedy_nms
from yolov7fast.nn.heads import Detect
from yolov7fast.runtimes.answers import detections_of, predictions_of
from yolov7fast.runtimes.forms import Form
from yolov7fast.runtimes.sessions import OnnxSession, open_session

BEST_ROWS = 1000  # of an image, whose boxes are compared


class Difference(NamedTuple):
    """The largest differences between two answers."""

    box: float = 0.0  # pixels
    score: float = 0.0

    def with_(self, other: "Difference") -> "Difference":
        return Difference(max(self.box, other.box), max(self.score, other.score))

    def within(self, bounds: "Difference") -> bool:
        return self.box <= bounds.box and self.score <= bounds.score

    def __str__(self) -> str:
        return f"{self.box:.1e} px, {self.score:.1e} of score"


BOUNDS = Difference(1e-3, 1e-4)
HALF_BOUNDS = Difference(8.0, 0.05)  # half precision has three digits: of a box of 1000 pixels the last is a pixel


@dataclass(frozen=True)
class Report:
    """What a proof found."""

    runtime: str
    cases: list[Case]
    images: int
    difference: Difference
    bounds: Difference
    rounded: bool  # the bounds are those of float32 rounding, being coarser than the usual ones
    detections: int  # that suppression inside the file chose as `metrics.nms` does

    def __str__(self) -> str:
        tried = ", ".join(map(str, self.cases))
        text = f"{self.runtime} on {self.images} images, {tried}: largest difference {self.difference}"
        if self.detections:
            text += f"; {self.detections} detections chosen alike"
        if self.rounded:
            text += f" (float32 rounding of the .pt file itself allows {self.bounds})"
        return text


class Rows(NamedTuple):
    """An answer before suppression: boxes (B, N, 4) in pixels and scores (B, N, any)."""

    boxes: torch.Tensor
    scores: torch.Tensor


def prove(path: Path, source: Source, plan: Plan, images: list[np.ndarray], target: Path) -> Report:
    """Compare the file `path` with the network it was made of. target: its final name, for messages.

    Raises UserError where the difference is beyond the bounds.
    """
    compare = YoloProof(path, source, plan)
    found, bounds, rounded = Difference(), HALF_BOUNDS if plan.half else BOUNDS, False
    tried = cases(plan, source.stride)
    for number, case in enumerate(tried):
        batch = make_batch(images, case, first=number)
        difference = compare.difference(batch)
        if not difference.within(bounds):
            rounding = compare.rounding(batch)
            coarser = Difference(2 * rounding.box, 2 * rounding.score).with_(bounds)
            if not difference.within(coarser):
                raise UserError(
                    f"{target} is not written: at {case} its answer differs by {difference} from that of "
                    f"{source.weights}, more than {bounds} (float32 rounding there is {rounding})"
                )
            bounds, rounded = coarser, True
        found = found.with_(difference)
    return Report(compare.runtime, tried, len(images), found, bounds, rounded, compare.chosen)


def file_inputs(batch: Batch, plan: Plan, with_content: bool) -> dict[str, np.ndarray]:
    """A batch as the file takes it."""
    images = batch.images
    if not plan.uint8:
        images = np.ascontiguousarray(images[..., ::-1].transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(255)
    return {"images": images} | ({"content": batch.content()} if with_content else {})


class YoloProof:
    """Compares rows before suppression, and what suppression makes of them."""

    def __init__(self, path: Path, source: Source, plan: Plan):
        self.source, self.plan, self.chosen = source, plan, 0
        if plan.form is Form.TENSORRT:
            self.file = without_plugin(path, plan)
        else:
            self.file = open_session(path)
        self.runtime = self.file.runtime
        decides = plan.form in (Form.END2END, Form.NMS)
        self.inside = open_session(path, extra=("boxes", "score", "label")) if decides else None

    def difference(self, batch: Batch) -> Difference:
        inputs = file_inputs(batch, self.plan, False)
        outputs, wanted = self.file.run(inputs), self._wanted(batch, self.source.model)
        if self.inside is not None:
            return self._decided(inputs, outputs).with_(rows_difference(self._rows, wanted))
        if self.plan.form is Form.TENSORRT:
            return rows_difference(Rows(*(torch.from_numpy(outputs[name]) for name in ("boxes", "scores"))), wanted)
        predictions = predictions_of(outputs, self.file.metadata)
        return rows_difference(Rows(predictions[..., :4], predictions[..., 4:]), wanted)

    def _decided(self, inputs, outputs) -> Difference:
        """Between the file's detections and those that `metrics.nms` chooses from the file's own rows."""
        inside = self.inside.run(inputs)
        boxes, score, label = (torch.from_numpy(inside[name]) for name in ("boxes", "score", "label"))
        self._rows = Rows(boxes, score[..., None])
        wanted = chosen(boxes, score, label, self.plan.suppression)
        self.chosen += sum(map(len, wanted))
        return in_order(detections_of(outputs, self.file.metadata, len(boxes)), wanted)

    def rounding(self, batch: Batch) -> Difference:
        exact = self._wanted(batch, deepcopy(self.source.model).double())
        return rows_difference(self._wanted(batch, self.source.model), exact)

    @torch.no_grad()
    def _wanted(self, batch: Batch, model: torch.nn.Module) -> Rows:
        """The answer of the .pt file, as the file's rows have it."""
        images = torch.from_numpy(np.ascontiguousarray(batch.images[..., ::-1].transpose(0, 3, 1, 2)))
        predictions = model(images.to(next(model.parameters()).dtype) / 255.0)[0]
        if not self.plan.form.has_suppression:
            return Rows(predictions[..., :4], predictions[..., 4:])
        boxes, scores = Detect.boxes_and_scores(predictions)
        if scores.shape[-1] == 1:
            scores = predictions[..., 4:5]
        if self.plan.form is Form.TENSORRT:
            return Rows(predictions[..., :4], scores)
        return Rows(boxes, scores.amax(-1, keepdim=True))


def without_plugin(path: Path, plan: Plan) -> OnnxSession:
    """A session of the graph up to TensorRT's plugin, which only TensorRT can run; its structure is checked."""
    onnx = need("onnx", "--end2end")
    model = onnx.load(path)
    node = model.graph.node.pop()
    expected = ["num_dets", "det_boxes", "det_scores", "det_classes"]
    if node.op_type != PLUGIN or list(node.input) != ["boxes", "scores"] or list(node.output) != expected:
        raise UserError(f"{path}: the last node is not {PLUGIN} on boxes and scores")
    del model.graph.output[:]
    for name in node.input:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return OnnxSession(model.SerializeToString(), path)


def rows_difference(found: Rows, wanted: Rows) -> Difference:
    """Of all scores, and of the boxes of the best rows."""
    if found.boxes.shape != wanted.boxes.shape:
        return Difference(float("inf"), float("inf"))
    best = wanted.scores.amax(-1)
    rows = best.topk(min(BEST_ROWS, best.shape[1])).indices[..., None].expand(-1, -1, 4)
    boxes = (found.boxes.gather(1, rows) - wanted.boxes.gather(1, rows)).abs().max()
    return not_a_number_is_infinite(boxes, (found.scores - wanted.scores).abs().max())


def not_a_number_is_infinite(box: torch.Tensor, score: torch.Tensor) -> Difference:
    return Difference(*(value if value == value else float("inf") for value in (float(box), float(score))))


def chosen(boxes, score, label, settings: Suppression) -> list[torch.Tensor]:
    """What `metrics.nms` keeps of rows: per image (k, 6) xyxy, score, class."""
    kept = []
    for image in range(len(boxes)):
        confident = (score[image] > settings.conf_thres).nonzero()[:, 0]
        rows = torch.cat((boxes[image], score[image][:, None], label[image][:, None]), 1)[confident]
        apart = rows[:, :4] + rows[:, 5:6] * settings.class_offset
        order = greedy_nms(apart.numpy(), rows[:, 4].numpy(), settings.iou_thres)[: settings.topk]
        kept.append(rows[torch.from_numpy(order)])
    return kept


def in_order(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> Difference:
    """Between detections that must be the same ones in the same order."""
    total = Difference()
    for a, b in zip(found, wanted):
        a = a[: max(len(b), 300)]  # `metrics.nms` ends there; a file may be told to go on
        if a.shape != b.shape or not torch.equal(a[:, 5], b[:, 5]):
            return Difference(float("inf"), float("inf"))
        if len(a):
            total = total.with_(
                not_a_number_is_infinite((a[:, :4] - b[:, :4]).abs().max(), (a[:, 4] - b[:, 4]).abs().max())
            )
    return total
