"""Batches through a detector, so that its device computes one while the host reads what it found in the one before."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple

import torch

from yolov7fast.core.device import wait_for_device
from yolov7fast.core.process.threads import ThreadPool
from yolov7fast.predictors.predictor import Finish, Prediction

AHEAD = 4  # tasks that may wait in `Background`: more would only hold memory
# a `predictors.predictor.Predictor`, or any function that is called like one
Predict = Callable[[torch.Tensor, Sequence[Any], torch.Tensor], Prediction]
Launch = Callable[[torch.Tensor, Sequence[Any], torch.Tensor], Finish]


class LoadedBatch(NamedTuple):
    """A batch of a loader, which may use the memory of its images and targets again."""

    images: torch.Tensor  # uint8 (B, 3, H, W), the loader's
    targets: torch.Tensor  # (n, 6), a copy
    paths: Sequence[str]
    shapes: Sequence[Any]  # per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h)))
    shown: torch.Tensor  # the images for sinks: a copy where they look at them


Predicted = tuple[LoadedBatch, Prediction]


def loaded(loader: Iterable, copied: int) -> Iterator[LoadedBatch]:
    """The batches of a loader; of the first `copied` the images are copied, too."""
    for index, (images, targets, paths, shapes) in enumerate(loader):
        yield LoadedBatch(images, targets.clone(), paths, shapes, images.clone() if index < copied else images)


def predictions(
    predict: Predict, batches: Iterable[LoadedBatch], ahead: bool = True
) -> Generator[Predicted, None, None]:
    """Each batch with what the detector says of it, in order.

    ahead: the next batch may be asked for before the former is given out, which a detector that `runs_ahead` makes use
    of. All others answer at once: on a CPU there is nothing to overlap, and a second output would only take memory.
    """
    launch: Launch | None = getattr(predict, "launch", None)
    if ahead and launch is not None and getattr(predict, "runs_ahead", False):
        yield from _launched_ahead(launch, batches)
    else:
        for batch in batches:
            yield batch, predict(batch.images, batch.shapes, batch.targets)


def _launched_ahead(launch: Launch, batches: Iterable[LoadedBatch]) -> Generator[Predicted, None, None]:
    """A batch is finished after the next one was launched; no more than these two are on the device.

    One that is given up is waited for: the device may still be reading its images.
    """
    launched: deque[tuple[LoadedBatch, Finish]] = deque()
    try:
        for batch in batches:
            launched.append((batch, launch(batch.images, batch.shapes, batch.targets)))
            if len(launched) == 2:
                yield _finished(launched)
        while launched:
            yield _finished(launched)
    finally:
        if launched:
            wait_for_device()


def _finished(launched: deque[tuple[LoadedBatch, Finish]]) -> Predicted:
    """The oldest; once it is given out, nothing holds its output on the device."""
    batch, finish = launched.popleft()
    return batch, finish()


class Background:
    """`put` hands work over and returns; what it raises is raised by a later `put` or `wait`.

    Work is done in order by one thread, in parallel with the network and the loader.
    """

    def __init__(self):
        self.pool = ThreadPool(1, thread_name_prefix="evaluation")
        self.waiting: deque[Future] = deque()

    def __enter__(self) -> "Background":
        return self

    def put(self, work: Callable[[], None]) -> None:
        while self.waiting and (len(self.waiting) >= AHEAD or self.waiting[0].done()):
            self.waiting.popleft().result()
        self.waiting.append(self.pool.submit(work))

    def wait(self) -> None:
        """Until all work is done."""
        while self.waiting:
            self.waiting.popleft().result()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Work not yet begun is dropped where an error ends the evaluation; else all of it is waited for."""
        try:
            if kind is None:
                self.wait()
        finally:
            self.pool.shutdown(cancel_futures=True)
