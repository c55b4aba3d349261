"""From sources to detections: batches images of one shape, asks a predictor, hands the boxes on.

Which detector it is does not matter here (see `predictors.base.Predictor`).
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.core.boxes import scale_coords
from yolov7fast.core.errors import UserError
from yolov7fast.inference.frames import Frame
from yolov7fast.inference.output import PredictionOutput, Window
from yolov7fast.inference.sources import LoadImages
from yolov7fast.inference.streams import LoadStreams
from yolov7fast.plots.draw import Names, class_name
from yolov7fast.predictors.base import Predictor


@dataclass
class Summary:
    """What a run of prediction came to."""

    images: int = 0
    detections: int = 0
    seconds: float = 0.0
    stopped: bool = False  # by the user, before the sources' end


def predict_source(
    source: LoadImages | LoadStreams,
    predictor: Predictor,
    output: PredictionOutput,
    batch_size: int = 1,
    window: Window | None = None,
) -> Summary:
    """Detect on everything a source gives: print a line for each image, write what `output` is to write.

    Ctrl-C, or q in the window, ends it early with all files complete. No readable image at all is an error.
    """
    summary, start = Summary(), time.perf_counter()
    total = source.total if isinstance(source, LoadImages) else None
    bar = tqdm(total=total, unit="img", desc="detect", disable=None)  # no bar where the output is a file
    try:
        for frames in batches(source, batch_size):
            found = detect_batch(frames, predictor)
            for frame, (boxes, inference_ms, nms_ms) in zip(frames, found):
                saved = output.write(frame, boxes)
                line = frame.prefix + describe(boxes, predictor.names, predictor.options.conf_thres)
                tqdm.write(f"{line}, Done. ({inference_ms:.1f}ms) Inference, ({nms_ms:.1f}ms) NMS")
                if saved:
                    tqdm.write(f" The image with the result is saved in: {saved}")
                summary.images += 1
                summary.detections += len(boxes)
                bar.update()
                if window and not window.show(frame, output.drawn(frame, boxes)):
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
    if not summary.images and not summary.stopped:
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


def detect_batch(frames: Sequence[Frame], predictor: Predictor) -> list[tuple[torch.Tensor, float, float]]:
    """Per frame: boxes (k, 6) in whole pixels of the original image, and its part of the batch's inference and NMS
    milliseconds."""
    images = torch.from_numpy(np.stack([frame.image for frame in frames]))
    prediction = predictor(images, [letterbox_shapes(frame, images.shape[2:]) for frame in frames])
    times = prediction.inference_ms / len(frames), prediction.nms_ms / len(frames)
    results = []
    for frame, boxes in zip(frames, prediction.detections):
        boxes = boxes.float().cpu().clone()
        boxes[:, :4] = scale_coords(images.shape[2:], boxes[:, :4], frame.original.shape).round()
        results.append((boxes, *times))
    return results


def letterbox_shapes(frame: Frame, size: Sequence[int]) -> tuple:
    """Where a frame's image lies in its letterbox of `size` (h, w), as loaders of data sets say it."""
    h, w = frame.original.shape[:2]
    ratio = min(size[0] / h, size[1] / w)
    return (h, w), ((ratio, ratio), ((size[1] - w * ratio) / 2, (size[0] - h * ratio) / 2))


def describe(boxes: torch.Tensor, names: Names, conf_thres: float) -> str:
    """'21 RBC, 1 WBC': how many of each class, by ascending class. Names stay as they are: not every name is an
    English noun that takes an s."""
    if not len(boxes):
        return f"no detections above {conf_thres:g} (--conf-thres)"
    classes, counts = boxes[:, 5].unique(return_counts=True)
    return ", ".join(f"{n} {class_name(names, c)}" for c, n in zip(classes.tolist(), counts.tolist()))
