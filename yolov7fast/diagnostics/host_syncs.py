"""Does a training step make the host wait for the device? Every kind of step, watched operator by operator."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.diagnostics.results import LEFT_OUT, Line, judged
from yolov7fast.diagnostics.setting import Setting
from yolov7fast.diagnostics.stand_in import STAND_IN, stand_in_device
from yolov7fast.diagnostics.steps import Kind, build_step
from yolov7fast.diagnostics.waits import Wait, WaitFinder, cuda_watched, is_own
from yolov7fast.nn.detr import HOW_TO_INSTALL

STEP_FILE = "yolov7fast/training/step.py"
MATCHING_COPY = ("yolov7fast/losses/detr_matching.py", "to_host")
REMEDY = "report the source lines below: each stops the host until the device has caught up"


@contextmanager
def watched_device(setting: Setting) -> Iterator[tuple[torch.device, Callable[[], AbstractContextManager[WaitFinder]]]]:
    """The device to step on, and what watches a block: CUDA's own watcher too where there is CUDA, else a stand-in."""
    if setting.on_gpu:

        @contextmanager
        def watched() -> Iterator[WaitFinder]:
            torch.cuda.synchronize()
            with WaitFinder() as finder, cuda_watched(finder):
                yield finder

        yield setting.device, watched
        return
    with stand_in_device() as pages:
        yield STAND_IN, lambda: WaitFinder(pages.holds)


def step_waits(kind: Kind, setting: Setting) -> dict[str, dict[Wait, int]]:
    """By loss, what one step waits for and how often; a step before it has sent what is sent once."""
    found = {}
    with watched_device(setting) as (device, watched):
        trained = build_step(kind, device, setting.folder)
        for loss in kind.losses:
            trained.run(0, loss)
            with watched() as finder:
                trained.run(1, loss)
            found[loss] = finder.waits()
    return found


def of_library(wait: Wait) -> bool:
    """Whether transformers waits: in a line of its own, in the backward pass of an index that it took, or in the one
    copy to the host that its matching needs."""
    backward = wait.place.file == STEP_FILE and wait.operator.startswith("index_put")
    return not is_own(wait.place) or backward or (wait.place.file, wait.place.function) == MATCHING_COPY


def check_steps(kind: Kind, setting: Setting) -> list[Line]:
    """Green: no line of the package waits. What transformers does in its own loss is listed and not judged."""
    try:
        waits = step_waits(kind, setting)
    except UserError as error:
        if str(error) == HOW_TO_INSTALL:
            return [Line(kind.name, LEFT_OUT, "transformers is not installed", HOW_TO_INSTALL)]
        raise
    return [_line(kind, loss, found, setting) for loss, found in waits.items()]


def _line(kind: Kind, loss: str, waits: dict[Wait, int], setting: Setting) -> Line:
    name = f"{kind.name}, {loss} loss"
    on = "" if setting.on_gpu else ", on a stand-in for a device"
    library = {wait: n for wait, n in waits.items() if kind.family == "detr" and of_library(wait)}
    own = {wait: n for wait, n in waits.items() if wait not in library}
    text = f"{counted(sum(own.values()), 'host sync')}{' of our own' if library else ''}{on}"
    if library:
        lines = counted(len(library), "line")
        text += f"; {sum(library.values())} in {lines} of transformers and of the matching, which runs on the host"
    places = tuple(f"{n} x {wait}" for wait, n in own.items())
    return judged(name, not own, text, REMEDY, places, host_syncs=sum(own.values()))
