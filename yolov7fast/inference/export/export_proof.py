"""Proof that an exported file gives the results of its .pt file, on the same images at several batches and sizes.

For YOLO networks all scores and the boxes of the best rows of each image are compared before NMS; then the detections
of NMS inside the file are compared with those that `predictors.nms` selects from the file's own rows. Networks without
NMS (DETR) are compared by their detections.

Float32 rounding limits how exact a network is. Where a difference exceeds the bounds, the .pt file is also run in
float64, and twice its own rounding error is allowed up to a limit. Images on which rounding exceeds that limit are not
decisive, as with a barely trained network that selects its queries among equal ones; at least one image must be.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from yolov7fast.core.errors import UserError, need
from yolov7fast.data.augment.transforms import letterbox
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.detr_dataset import content, padding_mask
from yolov7fast.data.image_io import read_image
from yolov7fast.data.labels import find_images
from yolov7fast.data.shapes import draw_scene
from yolov7fast.inference.export.export_network import ExportSource
from yolov7fast.inference.export.export_plan import ExportPlan, NmsSettings
from yolov7fast.nn.heads import Detect
from yolov7fast.predictors.export_metadata import DETECTIONS, ExportForm
from yolov7fast.predictors.exported_predictor import dense_predictions, included_detections, query_detections
from yolov7fast.predictors.nms import MAX_DETECTIONS, greedy_nms
from yolov7fast.predictors.runtime_sessions import TENSORRT_PLUGIN, OnnxSession, open_session

BEST_ROWS = 1000  # of an image, whose boxes are compared
LOW_SCORE = 0.001  # detections of DETR networks above it are compared
IMAGES = 6
DRAWN_SIZE = 640
BATCHES = (1, 3, 2)  # IMAGES in all


class Difference(NamedTuple):
    """The largest differences between two results."""

    box: float = 0.0  # pixels
    score: float = 0.0

    def with_(self, other: "Difference") -> "Difference":
        return Difference(max(self.box, other.box), max(self.score, other.score))

    def within(self, bounds: "Difference") -> bool:
        return self.box <= bounds.box and self.score <= bounds.score

    def __str__(self) -> str:
        return f"{self.box:.1e} px, {self.score:.1e} of score"


OTHER = Difference(float("inf"), float("inf"))  # different detections or shapes
BOUNDS = Difference(1e-3, 1e-4)
ROUNDING_LIMIT = Difference(0.05, 5e-4)
HALF_BOUNDS = Difference(2.0, 0.05)  # half precision has three digits: the last digit of 1000 pixels is one pixel


class ProofCase(NamedTuple):
    """A tested batch size and image size."""

    batch: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.height}x{self.width}"


class ProofBatch(NamedTuple):
    """Letterboxed images and their positions."""

    images: np.ndarray  # uint8 (B, h, w, 3) BGR
    shapes: list[Any]  # per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h)))

    def planes(self) -> np.ndarray:
        """uint8 (B, 3, h, w) RGB."""
        return np.ascontiguousarray(self.images[..., ::-1].transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class ProofReport:
    """The result of a proof."""

    runtime: str
    cases: list[ProofCase]
    images: int
    difference: Difference
    bounds: Difference
    undecided: int  # images on which the .pt file itself is not exact
    detections: int  # compared detections of NMS inside the file
    note: str = ""

    def __str__(self) -> str:
        tried = ", ".join(dict.fromkeys(map(str, self.cases)))
        text = f"{self.runtime} on {self.images} images, {tried}: largest difference {self.difference}"
        if self.detections:
            text += f"; {self.detections} detections selected identically"
        if not self.difference.within(self.bounds):
            text += " (within float32 rounding of the .pt file itself)"
        if self.note:
            text += f"; {self.note}"
        if self.undecided:
            text += f"; on {self.undecided} more images the .pt file itself is not exact"
        return text


def prove(path: Path, source: ExportSource, plan: ExportPlan, images: list[np.ndarray], target: Path) -> ProofReport:
    """Compare the file `path` with its network. target: its final name, for messages.

    Raises UserError if the difference exceeds the bounds.
    """
    comparison: Any = (YoloComparison if source.is_yolo else DetrComparison)(path, source, plan)
    bounds = HALF_BOUNDS if plan.half else BOUNDS
    tried, largest, decided, undecided = cases(plan, source), Difference(), 0, 0
    for number, case in enumerate(tried):
        batch = make_batch(images, case, first=sum(c.batch for c in tried[:number]))
        found = comparison.differences(batch)
        rounding = [Difference()] * len(found)
        if not all(difference.within(bounds) for difference in found):
            rounding = rounding_error(comparison, batch)
        for difference, own in zip(found, rounding):
            if not own.within(ROUNDING_LIMIT):
                undecided += 1
            elif difference.within(bounds) or difference.within(Difference(2 * own.box, 2 * own.score)):
                decided, largest = decided + 1, largest.with_(difference)
            else:
                raise UserError(
                    f"{target} is not written: at {case} its result differs by {difference} from that of "
                    f"{source.weights}; {bounds} is allowed (float32 rounding there is {own})"
                )
    if not decided:
        raise UserError(
            f"{target} is not written: nothing can be compared, since the result of {source.weights} itself changes by "
            "pixels with rounding, as with a barely trained network; train it longer"
        )
    note = f"{TENSORRT_PLUGIN} itself was not run: only TensorRT has it" if plan.form is ExportForm.TENSORRT else ""
    return ProofReport(comparison.file.runtime, tried, decided, largest, bounds, undecided, comparison.selected, note)


# --- images -----------------------------------------------------------------------------------------------------------


def sample_images(data: DataYaml | None, count: int = IMAGES) -> list[np.ndarray]:
    """Images (h, w, 3) BGR from the val images of a data set, or drawn."""
    if data is None:
        return [draw_scene(0, index, DRAWN_SIZE)[0] for index in range(count)]
    files = find_images(data.split("val"))
    return [read_image(path) for path in files[:: max(len(files) // count, 1)][:count]]


def cases(plan: ExportPlan, source: ExportSource) -> list[ProofCase]:
    """The cases to test: several batches and sizes where they are dynamic."""
    height, width = plan.size
    half_height, half_width = (max(side // 2 // source.stride, 1) * source.stride for side in plan.size)
    sizes = [(height, width)]
    if "height" in plan.free:
        sizes += [(half_height, half_width), (half_height, width)]
        if not source.is_yolo:
            sizes = [(source.model.least_height(h, w), w) for h, w in sizes]
    batches = BATCHES if "batch" in plan.free else [plan.batch] * len(BATCHES)
    return [ProofCase(batch, *sizes[i % len(sizes)]) for i, batch in enumerate(batches)]


def make_batch(images: list[np.ndarray], case: ProofCase, first: int = 0) -> ProofBatch:
    """The images from `first` on, letterboxed to the size of the case."""
    chosen = [images[(first + i) % len(images)] for i in range(case.batch)]
    boxed = [letterbox(image, (case.height, case.width), auto=False) for image in chosen]
    shapes = [(image.shape[:2], ((r[1], r[0]), pad)) for image, (_, r, pad) in zip(chosen, boxed)]
    return ProofBatch(np.stack([padded for padded, _, _ in boxed]), shapes)


# --- comparison -------------------------------------------------------------------------------------------------------


def file_inputs(batch: ProofBatch, plan: ExportPlan, with_content: bool) -> dict[str, np.ndarray]:
    """A batch as the file takes it."""
    images = batch.images if plan.uint8 else batch.planes().astype(np.float32) / np.float32(255)
    return {"images": images} | ({"content": content(batch.shapes).numpy()} if with_content else {})


class DenseRows(NamedTuple):
    """A result before NMS: boxes (B, N, 4) in pixels and scores (B, N, any)."""

    boxes: torch.Tensor
    scores: torch.Tensor


def rounding_error(comparison: Any, batch: ProofBatch) -> list[Difference]:
    """The rounding error of the network on each image: float32 compared with float64."""
    model = comparison.source.model
    exact = comparison.expected(batch, deepcopy(model).double())
    return comparison.compare(comparison.expected(batch, model), exact)


class YoloComparison:
    """Compares rows before NMS, and the selection of NMS."""

    def __init__(self, path: Path, source: ExportSource, plan: ExportPlan):
        self.source, self.plan, self.selected = source, plan, 0
        self.file = without_plugin(path) if plan.form is ExportForm.TENSORRT else open_session(path)
        selects = plan.form in (ExportForm.END2END, ExportForm.NMS)
        self.inside = open_session(path, extra=("boxes", "score", "label")) if selects else None

    def differences(self, batch: ProofBatch) -> list[Difference]:
        """The difference on each image between the file and the network."""
        inputs = file_inputs(batch, self.plan, False)
        outputs, wanted = self.file.run(inputs), self.expected(batch, self.source.model)
        if self.inside is not None:
            inside = self.inside.run(inputs)
            boxes, score, label = (torch.from_numpy(inside[name]) for name in ("boxes", "score", "label"))
            chosen = selected_rows(boxes, score, label, self.plan.nms)
            self.selected += sum(map(len, chosen))
            found = included_detections(outputs, self.file.metadata, len(boxes))
            choice = map(ordered_difference, found, chosen)
            return [a.with_(b) for a, b in zip(choice, self.compare(DenseRows(boxes, score[..., None]), wanted))]
        if self.plan.form is ExportForm.TENSORRT:
            boxes, scores = (torch.from_numpy(outputs[name]) for name in ("boxes", "scores"))
            return self.compare(DenseRows(boxes, scores), wanted)
        predictions = dense_predictions(outputs, self.file.metadata)
        return self.compare(DenseRows(predictions[..., :4], predictions[..., 4:]), wanted)

    @torch.no_grad()
    def expected(self, batch: ProofBatch, model: Any) -> DenseRows:
        """The result of a network, in its own precision, for the rows of the file."""
        images = torch.from_numpy(batch.planes())
        predictions = model(images.to(next(model.parameters()).dtype) / 255.0)[0]
        if not self.plan.form.has_nms:
            return DenseRows(predictions[..., :4], predictions[..., 4:])
        boxes, scores = Detect.boxes_and_scores(predictions)
        if scores.shape[-1] == 1:
            scores = predictions[..., 4:5]
        if self.plan.form is ExportForm.TENSORRT:
            return DenseRows(predictions[..., :4], scores)
        return DenseRows(boxes, scores.amax(-1, keepdim=True))

    @staticmethod
    def compare(found: DenseRows, wanted: DenseRows) -> list[Difference]:
        """The difference on each image: all scores, and the boxes of the best rows."""
        if found.boxes.shape != wanted.boxes.shape or found.scores.shape != wanted.scores.shape:
            return [OTHER] * len(wanted.boxes)
        best = wanted.scores.amax(-1)
        rows = best.topk(min(BEST_ROWS, best.shape[1])).indices[..., None].expand(-1, -1, 4)
        boxes = (found.boxes.gather(1, rows) - wanted.boxes.gather(1, rows)).abs().amax((1, 2))
        scores = (found.scores - wanted.scores).abs().amax((1, 2))
        return list(map(difference_of, boxes, scores))


def without_plugin(path: Path) -> OnnxSession:
    """A session of the graph before TensorRT's plugin, which other runtimes cannot run; the plugin node is checked."""
    onnx = need("onnx", "--end2end")
    model = onnx.load(path)
    node = model.graph.node.pop()
    inputs, outputs = list(node.input), list(node.output)
    if node.op_type != TENSORRT_PLUGIN or inputs != ["boxes", "scores"] or outputs != list(DETECTIONS):
        raise UserError(f"{path}: the last node is not {TENSORRT_PLUGIN} on boxes and scores")
    del model.graph.output[:]
    for name in node.input:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return OnnxSession(model.SerializeToString(), path)


def difference_of(box: torch.Tensor, score: torch.Tensor) -> Difference:
    """The difference, infinite for NaN."""
    return Difference(*(float(value.nan_to_num(float("inf"))) for value in (box, score)))


def selected_rows(boxes, score, label, settings: NmsSettings) -> list[torch.Tensor]:
    """The detections that `predictors.nms` keeps: per image (k, 6) xyxy, score, class."""
    kept = []
    for image in range(len(boxes)):
        confident = (score[image] > settings.conf_thres).nonzero()[:, 0]
        rows = torch.cat((boxes[image], score[image][:, None], label[image][:, None]), 1)[confident]
        apart = rows[:, :4] + rows[:, 5:6] * settings.class_offset
        order = greedy_nms(apart.numpy(), rows[:, 4].numpy(), settings.iou_thres)[: settings.topk]
        kept.append(rows[torch.from_numpy(order)])
    return kept


def ordered_difference(found: torch.Tensor, wanted: torch.Tensor) -> Difference:
    """The difference between detections (k, 6) of an image that must be the same in the same order."""
    found = found[:MAX_DETECTIONS]  # `predictors.nms` keeps no more; a file may
    if found.shape != wanted.shape or not torch.equal(found[:, 5], wanted[:, 5]):
        return OTHER
    apart = (found - wanted).abs()
    return difference_of(apart[:, :4].max(), apart[:, 4].max()) if len(found) else Difference()


class DetrComparison:
    """Compares detections, since a network that selects its queries may return them in another order."""

    def __init__(self, path: Path, source: ExportSource, plan: ExportPlan):
        self.source, self.plan, self.selected = source, plan, 0
        self.file = open_session(path, thresholds={"conf_thres": LOW_SCORE} if plan.form is ExportForm.NMS else None)

    def differences(self, batch: ProofBatch) -> list[Difference]:
        """The difference on each image between the file and the network."""
        inputs = file_inputs(batch, self.plan, True)
        outputs, metadata = self.file.run(inputs), self.file.metadata
        if self.plan.form is ExportForm.NMS:
            found = included_detections(outputs, metadata, len(batch.images))
        else:
            size = batch.images.shape[1], batch.images.shape[2]
            found = query_detections(outputs, metadata, torch.from_numpy(inputs["content"]), size)
        self.selected += sum(map(len, found))
        return self.compare(found, self.expected(batch, self.source.model))

    @torch.no_grad()
    def expected(self, batch: ProofBatch, model: Any) -> list[torch.Tensor]:
        """The detections above the threshold of the file, and as many as it returns."""
        images, frames = torch.from_numpy(batch.planes()), content(batch.shapes)
        height, width = images.shape[2], images.shape[3]
        dtype = next(model.parameters()).dtype
        output = model(images.to(dtype) / 255.0, padding_mask(frames, height, width))
        outputs = {"logits": output.logits.numpy(), "boxes": output.pred_boxes.numpy()}
        found = query_detections(outputs, self.file.metadata, frames, (height, width))
        if self.plan.form is ExportForm.NMS:
            found = [rows[rows[:, 4] > LOW_SCORE][: self.plan.nms.topk] for rows in found]
        return [rows.float() for rows in found]

    @staticmethod
    def compare(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[Difference]:
        """The difference on each image between detections in any order."""
        return list(map(paired_difference, found, wanted))


def paired_difference(found: torch.Tensor, wanted: torch.Tensor) -> Difference:
    """The difference between detections (k, 6) of an image in any order, matched within classes at the least cost."""
    if len(found) != len(wanted):
        return OTHER
    boxes = (found[:, None, :4] - wanted[:, :4]).abs().amax(-1)
    scores = (found[:, None, 4] - wanted[:, 4]).abs()
    cost = (boxes + 100 * scores).nan_to_num(1e9) + 1e9 * (found[:, None, 5] != wanted[:, 5])
    rows, columns = linear_sum_assignment(cost.double().numpy())
    if (found[rows, 5] != wanted[columns, 5]).any():
        return OTHER
    return difference_of(boxes[rows, columns].max(), scores[rows, columns].max()) if len(rows) else Difference()
