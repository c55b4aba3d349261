"""From sources to detections: batches pictures of one shape, asks a detector, hands the boxes on.

Which detector it is does not matter here: it is a function from pictures to boxes (see `Predict`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.loop import Prediction, Stopwatch
from yolov7fast.inference.output import PredictionOutput, Window
from yolov7fast.inference.sources import Frame, LoadImages, LoadStreams
from yolov7fast.metrics.boxes import scale_coords
from yolov7fast.metrics.nms import non_max_suppression
from yolov7fast.plots.draw import Names, class_name

# takes uint8 (B, 3, h, w) RGB on the host and, per image, ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h)))
Predict = Callable[[torch.Tensor, Sequence[Any]], Prediction]


@dataclass
class YoloDetect:
    """A YOLO network (or an ensemble) with its suppression as a `Predict` function; a box has its best class only."""

    model: torch.nn.Module
    device: torch.device
    conf_thres: float = 0.25
    iou_thres: float = 0.45
    classes: Sequence[int] | None = None
    agnostic: bool = False
    augment: bool = False

    def __post_init__(self):
        self.dtype = torch.float16 if self.device.type == "cuda" else torch.float32  # half pays on GPUs only
        self.model = self.model.to(self.device, self.dtype).eval()

    @torch.no_grad()
    def __call__(self, images: torch.Tensor, shapes=()) -> Prediction:
        images = images.to(self.device, non_blocking=True).to(self.dtype) / 255.0
        clock = Stopwatch()
        output = self.model(images, augment=self.augment)[0]
        inference_ms = clock.lap()
        found = non_max_suppression(output, self.conf_thres, self.iou_thres, self.classes, self.agnostic)
        return Prediction([boxes.float().cpu() for boxes in found], inference_ms, clock.lap())

    def warm_up(self, img_size: int) -> None:
        """One pass over an empty picture, so that the first real one is not charged for the GPU's start."""
        if self.device.type == "cuda":
            self(torch.zeros(1, 3, img_size, img_size, dtype=torch.uint8))


@dataclass
class Summary:
    """What a run of prediction came to."""

    pictures: int = 0
    detections: int = 0
    seconds: float = 0.0
    stopped: bool = False  # by the user, before the sources' end


def predict_source(
    source: LoadImages | LoadStreams,
    predict: Predict,
    names: Names,
    output: PredictionOutput,
    batch_size: int = 1,
    window: Window | None = None,
) -> Summary:
    """Detect on everything a source gives: print a line for each picture, write what `output` is to write.

    Ctrl-C, or q in the window, ends it early with all files complete. No readable picture at all is an error.
    """
    summary, start = Summary(), time.perf_counter()
    total = source.total if isinstance(source, LoadImages) else None
    bar = tqdm(total=total, unit="img", desc="detect", disable=None)  # no bar where the output is a file
    try:
        for frames in batches(source, batch_size):
            found = detect_batch(frames, predict)
            for frame, (boxes, inference_ms, nms_ms) in zip(frames, found):
                saved = output.write(frame, boxes)
                line = frame.prefix + describe(boxes, names)
                tqdm.write(f"{line}Done. ({inference_ms:.1f}ms) Inference, ({nms_ms:.1f}ms) NMS")
                if saved:
                    tqdm.write(f" The image with the result is saved in: {saved}")
                summary.pictures += 1
                summary.detections += len(boxes)
                bar.update()
                if window and not window.show(frame, output.picture(frame, boxes)):
                    summary.stopped = True
            if summary.stopped:
                break
    except KeyboardInterrupt:
        summary.stopped = True
    finally:
        bar.close()
        source.close()
        output.close()
    summary.seconds = time.perf_counter() - start
    if not summary.pictures and not summary.stopped:
        raise UserError(f"nothing could be read: {'; '.join(source.skipped[:5])}")
    return summary


def batches(source: LoadImages | LoadStreams, batch_size: int) -> Iterator[list[Frame]]:
    """Lists of successive frames with one letterboxed shape, at most `batch_size` long; order is kept.

    Streams give their own lists: what is new at one moment.
    """
    if isinstance(source, LoadStreams):
        yield from source.frames()
        return
    waiting: list[Frame] = []
    for frame in source.frames():
        if waiting and frame.image.shape != waiting[0].image.shape:
            yield waiting
            waiting = []
        waiting.append(frame)
        if len(waiting) == batch_size:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def detect_batch(frames: Sequence[Frame], predict: Predict) -> list[tuple[torch.Tensor, float, float]]:
    """Per frame: boxes (k, 6) in whole pixels of the original picture, inference and NMS milliseconds (its share)."""
    images = torch.from_numpy(np.stack([frame.image for frame in frames]))
    prediction = predict(images, [letterbox_shapes(frame, images.shape[2:]) for frame in frames])
    share = prediction.inference_ms / len(frames), prediction.nms_ms / len(frames)
    results = []
    for frame, boxes in zip(frames, prediction.detections):
        boxes = boxes.clone()
        boxes[:, :4] = scale_coords(images.shape[2:], boxes[:, :4], frame.original.shape).round()
        results.append((boxes, *share))
    return results


def letterbox_shapes(frame: Frame, size: Sequence[int]) -> tuple:
    """Where a frame's picture lies in its letterbox of `size` (h, w), as loaders of data sets say it."""
    h, w = frame.original.shape[:2]
    ratio = min(size[0] / h, size[1] / w)
    return (h, w), ((ratio, ratio), ((size[1] - w * ratio) / 2, (size[0] - h * ratio) / 2))


def describe(boxes: torch.Tensor, names: Names) -> str:
    """'21 RBCs, 1 WBC, ' : how many of each class, by ascending class."""
    classes, counts = boxes[:, 5].unique(return_counts=True)
    pairs = zip(classes.tolist(), counts.tolist())
    return "".join(f"{n} {class_name(names, c)}{'s' * (n > 1)}, " for c, n in pairs)
