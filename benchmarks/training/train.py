"""Whole training steps and epochs: OTA against plain, the fast flags against the default, compiled against eager.

Both sides are built once and run in turn in one process. `python -m benchmarks.training.train [--quick] [--json FILE]`
"""

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.measure import in_turn, note, quick_parser, show_machine, wall_seconds, write_json
from benchmarks.photographs import photographs
from yolov7fast.cli.commands.profile import parse
from yolov7fast.data.data_yaml import DataYaml, load_data_yaml
from yolov7fast.machine.profiler import batches, build_step
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.train import init_seeds

FAST = ["--fast-dataloader", "--cache-images", "disk", "--channels-last"]
CPU = torch.device("cpu")
PARTS = ("step", "epoch", "growth", "compile")
GROWTH = ((4, 320), (8, 320), (4, 640))  # batch, pixels; the central size is that of `loss_kinds`


class Side:
    """A network with its loader and step, ready to train batch after batch."""

    def __init__(self, arguments: list[str], scratch: Path, data: DataYaml, ota: int = 1):
        opt = parse(["--device", "cpu", *arguments])
        config = YoloTrainConfig.from_options(vars(opt) | {"hyp": load_hyp(opt.hyp) | {"loss_ota": ota}})
        cache_dir = opt.cache_dir or str(scratch)
        config = replace(config, cache_dir=cache_dir, save_dir=str(scratch), keep_files=False)
        init_seeds(1, False)
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            self.family, self.step = build_step(config, data, CPU, opt.targets if data.train is None else None)
        self.family.assigner = "ota" if ota else "plain"
        self.rates = self.family.schedule.rates(0, 0, 0)._replace(accumulate=1)
        self.epoch = 0

    def steps(self, count: int) -> None:
        for batch in batches(self.family.loader, count):
            self.step(batch, 0, self.rates)

    def whole_epoch(self) -> None:
        self.family.loader.set_epoch(self.epoch)
        self.epoch += 1
        for batch in self.family.loader:
            self.step(batch, 0, self.rates)

    def close(self) -> None:
        self.family.close()


def compare(sides: dict[str, Side], work: Callable[[Side], None], runs: int) -> dict[str, float]:
    """Median seconds of each side, run in turn after one warm-up each."""
    for side in sides.values():
        work(side)
    timed = {name: (lambda side=side: wall_seconds(lambda: work(side))) for name, side in sides.items()}
    medians = in_turn(timed, runs)
    for side in sides.values():
        side.close()
    return medians


def synthetic_arguments(batch: int, size: int) -> list[str]:
    return ["--synthetic", "--batch-size", str(batch), "--img", str(size)]


def loss_kinds(scratch: Path, runs: int) -> dict:
    """A whole step with OTA against one with the plain loss: yolov7-tiny, 320 pixels, batch 16, 80 classes."""
    data = DataYaml("--synthetic", 80, [str(n) for n in range(80)])
    sides = {name: Side(synthetic_arguments(16, 320), scratch, data, ota) for name, ota in (("plain", 0), ("ota", 1))}
    medians = compare(sides, lambda side: side.steps(1), runs)
    return {"seconds": medians, "ratio": medians["ota"] / medians["plain"]}


def growth(scratch: Path, runs: int, quick: bool) -> dict:
    """The same ratio at other batch sizes and sizes; at the cheapest of them with --quick."""
    data = DataYaml("--synthetic", 80, [str(n) for n in range(80)])
    found = {}
    for batch, size in GROWTH[:1] if quick else GROWTH:
        sides = {n: Side(synthetic_arguments(batch, size), scratch, data, ota) for n, ota in (("plain", 0), ("ota", 1))}
        medians = compare(sides, lambda side: side.steps(1), runs)
        found[f"batch {batch}, {size} px"] = medians["ota"] / medians["plain"]
    return found


def epochs(scratch: Path, runs: int) -> dict:
    """A whole epoch on photographs: the fast flags against the default; tiny, 320 pixels, batch 16, 2 workers."""
    data = load_data_yaml(photographs(scratch))
    common = ["--batch-size", "16", "--img", "320", "--workers", "2", "--notest"]
    sides = {"default": Side(common, scratch, data), "fast": Side([*common, *FAST], scratch, data)}
    medians = compare(sides, Side.whole_epoch, runs)
    return {"seconds": medians, "ratio": medians["default"] / medians["fast"], "data": Path(data.train).parts[-3]}


def compiled(scratch: Path, runs: int) -> dict:
    """A step of the compiled network against the plain one, after compilation."""
    data = DataYaml("--synthetic", 80, [str(n) for n in range(80)])
    arguments = synthetic_arguments(8, 320)
    sides = {"eager": Side(arguments, scratch, data), "compiled": Side([*arguments, "--compile"], scratch, data)}
    medians = compare(sides, lambda side: side.steps(1), runs)
    return {"seconds": medians, "ratio": medians["eager"] / medians["compiled"]}


def main(argv: list[str] | None = None) -> int:
    parser = quick_parser("benchmarks.training.train", __doc__, "fewer runs, without the compiler")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part alone")
    opt = parser.parse_args(argv)
    torch.set_num_threads(os.cpu_count() or 1)
    wanted = opt.only or (PARTS[:-1] if opt.quick else PARTS)
    runs = 5 if opt.quick else 11
    results: dict = {"machine": show_machine(), "runs": runs}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if "step" in wanted:
            results["step"] = loss_kinds(scratch, runs)
            note(results, "step, OTA / plain (tiny, 320, batch 16)", results["step"]["ratio"], "<= 1.05", runs)
        if "epoch" in wanted:
            rounds = 2 if opt.quick else 5
            results["epoch"] = epochs(scratch, rounds)
            what = f"epoch on {results['epoch']['data']}, default / fast flags"
            note(results, what, results["epoch"]["ratio"], ">= 1.3", rounds)
        if "compile" in wanted:
            results["compile"] = compiled(scratch, runs)
            note(results, "step, eager / compiled (tiny, 320, batch 8)", results["compile"]["ratio"], "> 1", runs)
        if "growth" in wanted:
            results["growth"] = growth(scratch, 5, opt.quick)
            for what, ratio in results["growth"].items():
                note(results, f"step, OTA / plain ({what})", ratio, "-", 5)
    write_json(opt.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
