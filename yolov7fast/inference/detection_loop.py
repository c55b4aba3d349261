"""The detection loop: batches images of one shape, runs a predictor and writes the results.

Reading, the network and writing overlap: batches are read ahead by one thread, and results are written by another one.
Decoding, resizing and encoding images release Python's lock. The order of the images is kept.
"""

import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice, repeat
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from yolov7fast.core.boxes import scale_coords
from yolov7fast.core.drawing import Names
from yolov7fast.core.errors import UserError
from yolov7fast.core.process.threads import ThreadPool, in_order
from yolov7fast.core.text import printable
from yolov7fast.inference.detection_output import PredictionOutput, Show, class_counts
from yolov7fast.inference.slicing import Slicing, merge, tile_frames
from yolov7fast.inference.sources import Frame, LoadImages, LoadStreams
from yolov7fast.predictors.predictor import Predictor

READ_AHEAD = 2  # batches
UNWRITTEN = 64  # results that may wait to be written, which bounds memory
T = TypeVar("T")


@dataclass
class DetectSummary:
    """Totals of a run of detect.py."""

    images: int = 0
    detections: int = 0
    seconds: float = 0.0
    skipped: int = 0  # images, videos and other sources that could not be used
    stopped: bool = False  # by the user, before the end of the sources


class Detected(NamedTuple):
    """A frame with its detections."""

    frame: Frame
    boxes: torch.Tensor  # (k, 6): xyxy in whole pixels of the original image, score, class
    inference_ms: float
    nms_ms: float


def predict_source(
    source: LoadImages | LoadStreams,
    predictor: Predictor,
    output: PredictionOutput,
    batch_size: int = 1,
    show: Show | None = None,
    slicing: Slicing | None = None,
    overlapped: bool = True,
) -> DetectSummary:
    """Run a detector on a source, print a line per image and write the results.

    Ctrl-C, or q in the window, stops the run early with all files complete. Raises UserError if no image is readable.

    Args:
        source: the images.
        predictor: the detector.
        output: writes the results.
        batch_size: images of one shape per batch.
        show: shows an image on the screen and returns False to stop.
        slicing: also detect on the tiles of large images.
        overlapped: read and write in parallel with the network; never used for live streams and windows.
    """
    summary, start = DetectSummary(), time.perf_counter()
    overlapped = overlapped and show is None and not isinstance(source, LoadStreams)
    waiting: deque[tuple[Detected, Future]] = deque()  # results that are being written

    def report(most: int = 0) -> None:
        """Print the lines of written results, until at most `most` are unwritten."""
        while waiting and (len(waiting) > most or waiting[0][1].done()):
            item, future = waiting.popleft()
            saved, frame = future.result(), item.frame
            line = frame.prefix + describe(item.boxes, predictor.names, predictor.options.conf_thres)
            tqdm.write(f"{line}, Done. ({item.inference_ms:.1f}ms) Inference, ({item.nms_ms:.1f}ms) NMS")
            if saved:
                tqdm.write(f" The image with the result is saved in: {printable(str(saved))}")
            summary.images += 1
            summary.detections += len(item.boxes)
            bar.update()

    batches = read_ahead(batched(source, batch_size)) if overlapped else batched(source, batch_size)
    with progress_bar(source) as bar, closing(output), closing(source), ThreadPool(1, "writer") as writer:
        try:
            with closing(batches):
                for frames in batches:
                    for item in detect_batch(frames, predictor):
                        item = detect_tiles(item, predictor, source.img_size, batch_size, slicing) if slicing else item
                        waiting.append((item, writer.submit(output.write, item.frame, item.boxes)))
                        report(UNWRITTEN if overlapped else 0)
                        if show and not show(item.frame, output.drawn(item.frame, item.boxes)):
                            summary.stopped = True
                    if summary.stopped:
                        break
        except KeyboardInterrupt:
            summary.stopped = True
        report()
    summary.skipped = len(source.skipped)
    summary.seconds = time.perf_counter() - start
    if not summary.images and not summary.stopped:
        raise UserError(f"nothing could be read: {'; '.join(source.skipped[:5])}")
    return summary


@contextmanager
def progress_bar(source: LoadImages | LoadStreams) -> Iterator[tqdm]:
    """A progress bar on a terminal, with log messages above it.

    It writes to a duplicate of stderr, because stderr is redirected while an image is decoded.
    """
    total = source.total if isinstance(source, LoadImages) else None
    try:
        terminal = os.fdopen(os.dup(2), "w")
    except OSError:  # no stderr, as in a service
        terminal = None
    bar = tqdm(total=total, unit="img", desc="detect", disable=None, file=terminal)  # hidden unless it is a terminal
    try:
        with logging_redirect_tqdm():
            yield bar
    finally:
        bar.close()
        if terminal:
            terminal.close()


def read_ahead(items: Iterable[T], depth: int = READ_AHEAD) -> Generator[T, None, None]:
    """The items, up to `depth` of which are produced in advance by a thread. Its errors are raised in their place."""
    iterator = iter(items)

    def take(_) -> list[T]:
        return list(islice(iterator, 1))  # empty at the end

    with closing(in_order(take, repeat(None), 1, ahead=depth, name="read ahead")) as taken:
        for found in taken:
            if not found:
                return
            yield found[0]


def detect_tiles(whole: Detected, predictor: Predictor, img_size: int, batch_size: int, slicing: Slicing) -> Detected:
    """The detections of a frame merged with those of its tiles; times are sums."""
    tiles = tile_frames(whole.frame, slicing, img_size, predictor.stride, predictor.fixed_size)
    found = [item for frames in of_one_shape(tiles, batch_size) for item in detect_batch(frames, predictor)]
    if not found:
        return whole
    shape, options = whole.frame.original.shape[:2], predictor.options
    parts = [item.boxes for item in found]
    boxes = merge(whole.boxes, parts, slicing.tiles(*shape), shape, options.iou_thres, options.agnostic)
    inference_ms = sum(item.inference_ms for item in (whole, *found))
    return Detected(whole.frame, boxes, inference_ms, sum(item.nms_ms for item in (whole, *found)))


def batched(source: LoadImages | LoadStreams, batch_size: int) -> Generator[list[Frame], None, None]:
    """Lists of successive frames of one letterboxed shape, at most `batch_size` long; streams give their own lists."""
    yield from source.frames() if isinstance(source, LoadStreams) else of_one_shape(source.frames(), batch_size)


def of_one_shape(frames: Iterable[Frame], batch_size: int) -> Iterator[list[Frame]]:
    """Lists of successive frames of one letterboxed shape, at most `batch_size` long."""
    batch: list[Frame] = []
    for frame in frames:
        if batch and (len(batch) == batch_size or frame.image.shape != batch[0].image.shape):
            yield batch
            batch = []
        batch.append(frame)
    if batch:
        yield batch


def detect_batch(frames: Sequence[Frame], predictor: Predictor) -> list[Detected]:
    """The detections of frames of one shape; the time of the batch is divided among them."""
    images = torch.from_numpy(np.stack([frame.image for frame in frames]))
    (height, width), shapes = images.shape[2:], []
    for h, w in (frame.original.shape[:2] for frame in frames):  # the position of each image in its letterbox
        ratio = min(height / h, width / w)
        shapes.append(((h, w), ((ratio, ratio), ((width - w * ratio) / 2, (height - h * ratio) / 2))))
    prediction = predictor(images, shapes)
    inference_ms, nms_ms = prediction.inference_ms / len(frames), prediction.nms_ms / len(frames)
    found = []
    for frame, boxes in zip(frames, prediction.detections):
        boxes = boxes.float().cpu().clone()
        boxes[:, :4] = scale_coords(images.shape[2:], boxes[:, :4], frame.original.shape).round()
        found.append(Detected(frame, boxes, inference_ms, nms_ms))
    return found


def describe(boxes: torch.Tensor, names: Names, conf_thres: float) -> str:
    """The number of detections by class, or a note that there are none."""
    return class_counts(boxes, names) or f"no detections above {conf_thres:g} (--conf-thres)"
