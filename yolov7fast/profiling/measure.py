"""The timed loop: real training steps, stage by stage; several losses take turns, batch by batch."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tqdm import tqdm

from yolov7fast.families.yolo.family import YoloFamily
from yolov7fast.profiling.op_counter import OpCounter
from yolov7fast.profiling.report import summarise
from yolov7fast.training.step import TrainStep
from yolov7fast.training.timing import StageTimer

TRACED = 3  # iterations in a trace


@contextmanager
def timed_assignment(losses: Sequence, timers: Sequence[StageTimer]) -> Iterator[None]:
    """Let each loss mark the end of candidate search and matching on its timer: the assignment becomes a stage.

    Only while the block runs: what is counted or traced afterwards must not reach the timers.
    """
    for loss, timer in zip(losses, timers, strict=True):
        for name in ("plan", "match"):
            setattr(loss, name, _marked(getattr(loss, name), timer))
    try:
        yield
    finally:
        for loss in losses:
            del loss.plan, loss.match  # the methods of the class show again


def _marked(method, timer: StageTimer):
    def run(*args, **kwargs):
        timer.mark("loss")
        result = method(*args, **kwargs)
        timer.mark("assignment")
        return result

    return run


def batches(loader, count: int) -> Iterator[tuple]:
    """`count` batches, in as many epochs as it takes."""
    epoch = given = 0
    while given < count:
        loader.set_epoch(epoch)
        for batch in loader:
            yield batch
            given += 1
            if given == count:
                return
        epoch += 1


def in_turn(kinds: Sequence[str], rounds: int) -> Iterator[str]:
    """Each kind once a round, every second round in reverse order, so that a drift falls on all alike."""
    for number in range(rounds):
        yield from kinds if number % 2 == 0 else reversed(kinds)


def measure(
    family: YoloFamily, step: TrainStep, kinds: Sequence[str], opt: Namespace, device: torch.device
) -> dict[str, dict]:
    """Profiles by kind of loss (name of its assigner), as they are written to profile.json.

    Both losses train the one network of the family and take their batches from one loader.
    """
    timers = {kind: StageTimer(device) for kind in kinds}
    sizes: dict[str, list[int]] = {kind: [] for kind in kinds}
    counters = {}
    rates = family.schedule.rates(0, 0, 0)._replace(accumulate=1)
    total = (opt.warm_iters + opt.iters + 1) * len(kinds)
    stream = batches(family.loader, total)
    with tqdm(total=total, desc="profiling", mininterval=1) as bar:

        def iteration(kind: str, *timer: StageTimer) -> int:
            batch = next(stream)
            family.assigner = kind
            step(batch, 0, rates, *timer)
            bar.update()
            return len(batch[0])

        for kind in in_turn(kinds, opt.warm_iters):
            iteration(kind)
        step.sync_metrics()  # the device has done the warm-up before the clocks start
        with timed_assignment([family.losses[kind] for kind in kinds], [timers[kind] for kind in kinds]):
            for kind in in_turn(kinds, opt.iters):
                timers[kind].follow()
                sizes[kind].append(iteration(kind, timers[kind]))
            step.sync_metrics()
        for kind in kinds:
            with OpCounter() as counters[kind]:
                iteration(kind)
    return {kind: summarise(timers[kind].totals(), sizes[kind], counters[kind]) for kind in kinds}


def write_trace(family: YoloFamily, step: TrainStep, kind: str, path: Path) -> None:
    """A Chrome trace of a few iterations with one kind of loss."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    rates = family.schedule.rates(0, 0, 0)._replace(accumulate=1)
    family.assigner = kind
    with torch.profiler.profile(activities=activities) as profiler:
        for number, batch in enumerate(batches(family.loader, TRACED)):
            step(batch, number, rates)
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
    print(f"trace of {TRACED} iterations: {path} (open it in chrome://tracing or ui.perfetto.dev)")
