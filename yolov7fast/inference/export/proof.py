"""Proof that an exported file answers as the .pt file does: both see the same images, at several batches and sizes.

Of YOLO networks all scores are compared, and the boxes of the best rows of each image, before suppression, where no
decision lies between the numbers; then that the file's own suppression chose from its own rows what `evaluation.nms`
would have chosen. Networks that need no suppression (DETR) are compared by their detections.

A float32 network determines its answer up to rounding only. Where a difference is beyond the bounds, the .pt file is
run in float64, too: twice its own rounding is allowed, up to a limit, and the report says so. An image on which
rounding is beyond that limit decides nothing (a network that is hardly trained picks its queries among equals); at
least one image must decide.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch

from yolov7fast.core.errors import UserError, need
from yolov7fast.data.detr_dataset import padding_mask
from yolov7fast.inference.export.network import Source
from yolov7fast.inference.export.plan import Plan
from yolov7fast.inference.export.samples import Batch, Case, cases, make_batch
from yolov7fast.inference.export.suppression import Suppression
from yolov7fast.nn.heads import Detect
from yolov7fast.predictors.exported.answers import detections_of, predictions_of, query_detections
from yolov7fast.predictors.exported.forms import Form
from yolov7fast.predictors.exported.sessions import TENSORRT_PLUGIN, OnnxSession, Session, open_session
from yolov7fast.predictors.nms import MAX_DETECTIONS, greedy_nms

BEST_ROWS = 1000  # of an image, whose boxes are compared
LOW_SCORE = 0.001  # detections of DETR networks above it are compared


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


OTHER = Difference(float("inf"), float("inf"))  # nothing to compare: other detections, another shape
BOUNDS = Difference(1e-3, 1e-4)
ROUNDING_LIMIT = Difference(0.05, 5e-4)
HALF_BOUNDS = Difference(2.0, 0.05)  # half precision has three digits: of a box of 1000 pixels the last is a pixel


@dataclass(frozen=True)
class Report:
    """What a proof found."""

    runtime: str
    cases: list[Case]
    images: int
    difference: Difference
    bounds: Difference
    undecided: int  # images on which the .pt file itself is not determined
    detections: int  # that suppression inside the file chose as `evaluation.nms` does
    note: str = ""

    def __str__(self) -> str:
        tried = ", ".join(dict.fromkeys(map(str, self.cases)))
        text = f"{self.runtime} on {self.images} images, {tried}: largest difference {self.difference}"
        if self.detections:
            text += f"; {self.detections} detections chosen alike"
        if self.difference.box > self.bounds.box or self.difference.score > self.bounds.score:
            text += " (within float32 rounding of the .pt file itself)"
        if self.note:
            text += f"; {self.note}"
        if self.undecided:
            text += f"; on {self.undecided} more images the .pt file itself is not determined"
        return text


class Rows(NamedTuple):
    """An answer before suppression: boxes (B, N, 4) in pixels and scores (B, N, any)."""

    boxes: torch.Tensor
    scores: torch.Tensor


def prove(path: Path, source: Source, plan: Plan, images: list[np.ndarray], target: Path) -> Report:
    """Compare the file `path` with the network it was made of. target: its final name, for messages.

    Raises UserError where the difference is beyond the bounds.
    """
    compare = YoloProof(path, source, plan) if source.is_yolo else DetrProof(path, source, plan)
    bounds = HALF_BOUNDS if plan.half else BOUNDS
    tried, largest, decided, undecided = cases(plan, source), Difference(), 0, 0
    for number, case in enumerate(tried):
        batch = make_batch(images, case, first=sum(c.batch for c in tried[:number]))
        found = compare.differences(batch)
        rounding = [Difference()] * len(found)
        if not all(difference.within(bounds) for difference in found):
            rounding = compare.rounding(batch)
        for difference, own in zip(found, rounding):
            if not own.within(ROUNDING_LIMIT):
                undecided += 1
            elif difference.within(bounds) or difference.within(Difference(2 * own.box, 2 * own.score)):
                decided, largest = decided + 1, largest.with_(difference)
            else:
                raise UserError(
                    f"{target} is not written: at {case} its answer differs by {difference} from that of "
                    f"{source.weights}; {bounds} is allowed (float32 rounding there is {own})"
                )
    if not decided:
        raise UserError(
            f"{target} is not written: nothing can be compared, since the answer of {source.weights} itself changes by "
            "pixels with rounding, as that of a network that is hardly trained; train it longer"
        )
    note = f"{TENSORRT_PLUGIN} itself was not run: only TensorRT has it" if plan.form is Form.TENSORRT else ""
    return Report(compare.runtime, tried, decided, largest, bounds, undecided, compare.chosen, note)


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

    def differences(self, batch: Batch) -> list[Difference]:
        """Of each image."""
        inputs = file_inputs(batch, self.plan, False)
        outputs, wanted = self.file.run(inputs), self._wanted(batch, self.source.model)
        if self.inside is not None:
            decided = self._decided(inputs, outputs)
            return [a.with_(b) for a, b in zip(decided, rows_difference(self._rows, wanted))]
        if self.plan.form is Form.TENSORRT:
            return rows_difference(Rows(*(torch.from_numpy(outputs[name]) for name in ("boxes", "scores"))), wanted)
        predictions = predictions_of(outputs, self.file.metadata)
        return rows_difference(Rows(predictions[..., :4], predictions[..., 4:]), wanted)

    def _decided(self, inputs, outputs) -> list[Difference]:
        """Between the file's detections and those that `evaluation.nms` chooses from the file's own rows."""
        inside = cast(Session, self.inside).run(inputs)
        boxes, score, label = (torch.from_numpy(inside[name]) for name in ("boxes", "score", "label"))
        self._rows = Rows(boxes, score[..., None])
        wanted = chosen(boxes, score, label, self.plan.suppression)
        self.chosen += sum(map(len, wanted))
        return in_order(detections_of(outputs, self.file.metadata, len(boxes)), wanted)

    def rounding(self, batch: Batch) -> list[Difference]:
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
    if node.op_type != TENSORRT_PLUGIN or list(node.input) != ["boxes", "scores"] or list(node.output) != expected:
        raise UserError(f"{path}: the last node is not {TENSORRT_PLUGIN} on boxes and scores")
    del model.graph.output[:]
    for name in node.input:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return OnnxSession(model.SerializeToString(), path)


def rows_difference(found: Rows, wanted: Rows) -> list[Difference]:
    """Of each image: all scores, and the boxes of the best rows."""
    if found.boxes.shape != wanted.boxes.shape or found.scores.shape != wanted.scores.shape:
        return [OTHER] * len(wanted.boxes)
    best = wanted.scores.amax(-1)
    rows = best.topk(min(BEST_ROWS, best.shape[1])).indices[..., None].expand(-1, -1, 4)
    boxes = (found.boxes.gather(1, rows) - wanted.boxes.gather(1, rows)).abs().amax((1, 2))
    scores = (found.scores - wanted.scores).abs().amax((1, 2))
    return [difference_of(box, score) for box, score in zip(boxes, scores)]


def difference_of(box: torch.Tensor, score: torch.Tensor) -> Difference:
    """NaN is as different as can be."""
    return Difference(*(value if value == value else float("inf") for value in (float(box), float(score))))


def chosen(boxes, score, label, settings: Suppression) -> list[torch.Tensor]:
    """What `evaluation.nms` keeps of rows: per image (k, 6) xyxy, score, class."""
    kept = []
    for image in range(len(boxes)):
        confident = (score[image] > settings.conf_thres).nonzero()[:, 0]
        rows = torch.cat((boxes[image], score[image][:, None], label[image][:, None]), 1)[confident]
        apart = rows[:, :4] + rows[:, 5:6] * settings.class_offset
        order = greedy_nms(apart.numpy(), rows[:, 4].numpy(), settings.iou_thres)[: settings.topk]
        kept.append(rows[torch.from_numpy(order)])
    return kept


def in_order(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[Difference]:
    """Of each image, between detections that must be the same ones in the same order."""
    differences = []
    for a, b in zip(found, wanted):
        a = a[:MAX_DETECTIONS]  # `evaluation.nms` ends there; a file may keep more
        if a.shape != b.shape or not torch.equal(a[:, 5], b[:, 5]):
            differences.append(OTHER)
        else:
            boxes, scores = (a[:, :4] - b[:, :4]).abs(), (a[:, 4] - b[:, 4]).abs()
            differences.append(difference_of(boxes.max(), scores.max()) if len(a) else Difference())
    return differences


class DetrProof:
    """Compares detections: a network that picks its queries may give them in another order."""

    def __init__(self, path: Path, source: Source, plan: Plan):
        self.source, self.plan, self.chosen = source, plan, 0
        self.file = open_session(path, thresholds={"conf_thres": LOW_SCORE} if plan.form is Form.NMS else None)
        self.runtime = self.file.runtime

    def differences(self, batch: Batch) -> list[Difference]:
        """Of each image."""
        inputs = file_inputs(batch, self.plan, True)
        outputs, metadata = self.file.run(inputs), self.file.metadata
        if self.plan.form is Form.NMS:
            found = detections_of(outputs, metadata, len(batch.images))
        else:
            size = batch.images.shape[1], batch.images.shape[2]
            found = query_detections(outputs, metadata, torch.from_numpy(inputs["content"]), size)
        self.chosen += sum(map(len, found))
        return list(map(paired, found, self._wanted(batch, self.source.model)))

    def rounding(self, batch: Batch) -> list[Difference]:
        exact = self._wanted(batch, deepcopy(self.source.model).double())
        return list(map(paired, self._wanted(batch, self.source.model), exact))

    @torch.no_grad()
    def _wanted(self, batch: Batch, model) -> list[torch.Tensor]:
        """Detections of the .pt file, above the same threshold and as many as the file gives."""
        dtype = next(model.parameters()).dtype
        images = torch.from_numpy(np.ascontiguousarray(batch.images[..., ::-1].transpose(0, 3, 1, 2)))
        content = torch.from_numpy(batch.content())
        output = model(images.to(dtype) / 255.0, padding_mask(content, *images.shape[2:]))
        answers = {"logits": output.logits.numpy(), "boxes": output.pred_boxes.numpy()}
        found = query_detections(answers, self.file.metadata, content, (images.shape[2], images.shape[3]))
        if self.plan.form is Form.NMS:
            found = [rows[rows[:, 4] > LOW_SCORE][: self.plan.suppression.topk] for rows in found]
        return [rows.float() for rows in found]


def paired(found: torch.Tensor, wanted: torch.Tensor) -> Difference:
    """Between detections (k, 6) of an image, each with the nearest of its class that is left."""
    if len(found) != len(wanted):
        return OTHER
    total, left = Difference(), list(range(len(wanted)))
    for row in found:
        same = [i for i in left if wanted[i, 5] == row[5]]
        if not same:
            return OTHER
        boxes, scores = (wanted[same, :4] - row[:4]).abs().amax(1), (wanted[same, 4] - row[4]).abs()
        nearest = int((boxes + 100 * scores).argmin())
        left.remove(same[nearest])
        total = total.with_(difference_of(boxes[nearest], scores[nearest]))
    return total
