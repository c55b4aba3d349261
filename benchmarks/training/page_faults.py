"""Training on a CPU with freed memory kept, as train.py does, and with the C library's defaults.

    python -m benchmarks.training.page_faults [--quick] [--json FILE]

A step is yolov7-tiny's forward and backward (batch 16, 320 px). Each side has a process of its own; they take turns.
"""

import resource
import statistics
import sys
from functools import cache, partial

from benchmarks.measure import note, quick_parser, show_machine, wall_seconds, write_json
from benchmarks.photographs import ROOT
from benchmarks.side_by_side.sides import in_a_process
from yolov7fast.core.process.memory import keep_freed_memory

BATCH, PIXELS = 16, 320


@cache
def network(pixels: int):
    """Made in the process that trains it: threads of the one before it do not survive a fork."""
    import torch

    from yolov7fast.nn.model import Model

    return Model(str(ROOT / "cfg/training/yolov7-tiny.yaml"), ch=3, nc=3), torch.rand(BATCH, 3, pixels, pixels)


def step(pixels: int) -> tuple[float, float, float]:
    """Page faults, seconds, and the most megabytes that the process has had, of one step."""
    model, images = network(pixels)

    def train() -> None:
        sum(raw.sum() for raw in model(images)).backward()
        model.zero_grad()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    seconds = wall_seconds(train)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return float(usage.ru_minflt - before), seconds, usage.ru_maxrss / 1024


def main(argv: list[str] | None = None) -> int:
    opt = quick_parser("benchmarks.training.page_faults", __doc__, "64 px, fewer steps").parse_args(argv)
    work, runs = partial(step, 64 if opt.quick else PIXELS), 3 if opt.quick else 15
    results: dict = {"machine": show_machine(), "runs": runs}
    prepare = {"default": int, "kept": partial(keep_freed_memory, of_any_size=True)}
    sides = {name: in_a_process(work, how) for name, how in prepare.items()}
    turns = [{name: side.run() for name, side in sides.items()} for _ in range(runs + 2)][2:]  # but the first ones
    for name in sides:
        faults, seconds, megabytes = (statistics.median(column) for column in zip(*(turn[name] for turn in turns)))
        results[name] = {"faults": faults, "seconds": seconds, "megabytes": megabytes}
        print(f"{name:<8} {faults:10,.0f} page faults a step {seconds:8.3f} s {megabytes:8.0f} MB at most")
    gain = results["default"]["seconds"] / results["kept"]["seconds"]
    note(results, "a training step on the CPU: the C library's defaults / freed memory kept", gain, "> 1", runs)
    write_json(opt.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
