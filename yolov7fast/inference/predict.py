"""From sources to detections: batches images of one shape, asks a predictor, hands the boxes on.

Which detector it is does not matter here (see `predictors.base.Predictor`).
"""

import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from yolov7fast.core.boxes import scale_coords
from yolov7fast.core.drawing import Names, class_name
from yolov7fast.core.errors import UserError
from yolov7fast.core.process.threads import in_order
from yolov7fast.inference.frames import Frame
from yolov7fast.inference.output import PredictionOutput, Window
from yolov7fast.inference.pipeline import Writer, read_ahead
from yolov7fast.inference.slicing import Slicing, merge, tile_frames
from yolov7fast.inference.sources import LoadImages
from yolov7fast.inference.streams import LoadStreams
from yolov7fast.predictors.base import Predictor

MOST_LANES = 4  # batches that the network runs on at once: bounds memory, and one thread reads for all


@dataclass
class Summary:
    """What a run of prediction came to."""

    images: int = 0
    detections: int = 0
    seconds: float = 0.0
    skipped: int = 0  # images, videos and other sources that could not be used
    stopped: bool = False  # by the user, before the sources' end


class Detected(NamedTuple):
    """A frame with what was found on it."""

    frame: Frame
    boxes: torch.Tensor  # (k, 6), whole pixels of the original image
    inference_ms: float
    nms_ms: float


def predict_source(
    source: LoadImages | LoadStreams,
    predictor: Predictor,
    output: PredictionOutput,
    batch_size: int = 1,
    window: Window | None = None,
    slicing: Slicing | None = None,
    overlapped: bool = True,
) -> Summary:
    """Detect on everything a source gives: print a line for each image, write what `output` is to write.

    Ctrl-C, or q in the window, ends it early with all files complete. No readable image at all is an error.
    slicing: detect on tiles of large images, too. overlapped: read ahead and write behind the network; live streams and
    windows are never read ahead, since they show what is new.
    """
    summary, start = Summary(), time.perf_counter()
    overlapped = overlapped and window is None and not isinstance(source, LoadStreams)
    writer: Writer[Detected] = Writer()
    items = batches(source, batch_size)
    items = read_ahead(items) if overlapped else items
    lanes = lanes_of(predictor, batch_size) if overlapped else 1
    found = detected_batches(items, predictor, source, batch_size, slicing, lanes)
    with progress_bar(source) as bar:

        def report(done: Iterable[tuple[Detected, Path | None]]) -> None:
            for item, saved in done:
                _print_line(item, saved, predictor)
                summary.images += 1
                summary.detections += len(item.boxes)
                bar.update()

        try:
            for batch in found:
                for item in batch:
                    if overlapped:
                        report(writer.submit(item, output.write, item.frame, item.boxes))
                    else:
                        report([(item, output.write(item.frame, item.boxes))])
                    if window and not window.show(item.frame, output.drawn(item.frame, item.boxes)):
                        summary.stopped = True
                if summary.stopped:
                    break
            report(writer.finished())
        except KeyboardInterrupt:
            summary.stopped = True
            report(writer.finished())
        finally:
            found.close()
            items.close()
            writer.close()
            source.close()
            output.close()
    summary.skipped = len(source.skipped)
    summary.seconds = time.perf_counter() - start
    if not summary.images and not summary.stopped:
        raise UserError(f"nothing could be read: {'; '.join(source.skipped[:5])}")
    return summary


@contextmanager
def progress_bar(source: LoadImages | LoadStreams) -> Iterator[tqdm]:
    """A bar on the terminal, with what is logged meanwhile above it. It has a handle of its own: reading an image
    catches what decoders print to stderr."""
    total = source.total if isinstance(source, LoadImages) else None
    try:
        terminal = os.fdopen(os.dup(2), "w")
    except OSError:  # no stderr at all, as in a service
        terminal = None
    bar = tqdm(total=total, unit="img", desc="detect", disable=None, file=terminal)  # none where the output is a file
    try:
        with logging_redirect_tqdm():
            yield bar
    finally:
        bar.close()
        if terminal:
            terminal.close()


def _print_line(item: Detected, saved: Path | None, predictor: Predictor) -> None:
    line = item.frame.prefix + describe(item.boxes, predictor.names, predictor.options.conf_thres)
    tqdm.write(f"{line}, Done. ({item.inference_ms:.1f}ms) Inference, ({item.nms_ms:.1f}ms) NMS")
    if saved:
        tqdm.write(f" The image with the result is saved in: {saved}")


def lanes_of(predictor: Predictor, batch_size: int) -> int:
    """How many batches the network runs on at once: where it may, PyTorch's threads are divided among some batches,
    since two threads that work on one small layer wait for each other more than two that work on images of their own.
    """
    return min(torch.get_num_threads(), MOST_LANES) if batch_size > 1 and predictor.thread_safe else 1


def detected_batches(
    items: Iterable[list[Frame]],
    predictor: Predictor,
    source: LoadImages | LoadStreams,
    batch_size: int,
    slicing: Slicing | None,
    lanes: int,
) -> Generator[list[Detected], None, None]:
    """What is found on each batch, in order; `lanes` of them at once."""

    def work(frames: list[Frame]) -> list[Detected]:
        return list(detect_frames(frames, predictor, source, batch_size, slicing))

    if lanes == 1:
        yield from map(work, items)
        return
    threads = torch.get_num_threads()
    try:
        few = max(threads // lanes, 1)
        yield from in_order(work, items, lanes, lambda: torch.set_num_threads(few), name="network")
    finally:
        torch.set_num_threads(threads)


def detect_frames(
    frames: Sequence[Frame],
    predictor: Predictor,
    source: LoadImages | LoadStreams,
    batch_size: int,
    slicing: Slicing | None,
) -> Iterator[Detected]:
    """What is found on each frame of a batch, on its tiles, too, if it is to be sliced."""
    for frame, found in zip(frames, detect_batch(frames, predictor)):
        if slicing is None:
            yield Detected(frame, *found)
        else:
            yield detect_tiles(Detected(frame, *found), predictor, source.img_size, batch_size, slicing)


def detect_tiles(whole: Detected, predictor: Predictor, img_size: int, batch_size: int, slicing: Slicing) -> Detected:
    """A frame's detections merged with those of its tiles; times are those of all."""
    tiles = tile_frames(whole.frame, slicing, img_size, predictor.stride, predictor.fixed_size)
    found: list[tuple[torch.Tensor, float, float]] = []
    for frames in of_one_shape(tiles, batch_size):
        found += detect_batch(frames, predictor)
    if not found:
        return whole
    shape = whole.frame.original.shape[:2]
    options = predictor.options
    places = slicing.tiles(*shape)
    boxes = merge(whole.boxes, [f[0] for f in found], places, shape, options.iou_thres, options.agnostic)
    inference_ms, nms_ms = (sum(ms) for ms in zip(*(f[1:] for f in found)))
    return Detected(whole.frame, boxes, whole.inference_ms + inference_ms, whole.nms_ms + nms_ms)


def batches(source: LoadImages | LoadStreams, batch_size: int) -> Generator[list[Frame], None, None]:
    """Lists of successive frames with one letterboxed shape, at most `batch_size` long; order is kept.

    Streams give their own lists: what is new at one moment.
    """
    yield from source.frames() if isinstance(source, LoadStreams) else of_one_shape(source.frames(), batch_size)


def of_one_shape(frames: Iterable[Frame], batch_size: int) -> Iterator[list[Frame]]:
    """Lists of successive frames with one letterboxed shape."""
    waiting: list[Frame] = []
    for frame in frames:
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
