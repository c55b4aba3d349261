"""Does `tune` choose well, and what does a brief spin of waiting threads cost and buy?

`python -m benchmarks.training.tuning` measures both, each some ten minutes on two idle cores:
(a) on BCCD: the default flags, tune's choice, and all combinations of a small grid, in turn; musts: the choice is at
    least as fast as the default, and within 5% of the best combination;
(b) a training step with OpenMP's default wait, with a brief spin and with a passive wait, on the machine as it is and
    beside a rival process that keeps all cores busy.
"""

import argparse
import itertools
import os
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import machine, write_json
from benchmarks.photographs import BCCD
from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.run_file import read_run_file
from yolov7fast.commands.machine import tune
from yolov7fast.core.errors import run_command
from yolov7fast.core.process.waiting import wait_briefly

NAMES = ["RBC", "WBC", "Platelets"]
GRID: dict[str, Sequence[Any]] = {
    "torch_threads": (1, 0),
    "workers": (0, 1, 2),
    "cache_images": (False, "ram"),
    "fast_dataloader": (False, True),
    "channels_last": (False, True),
}
BURSTS = 3
WITHIN = 1.05


def data_file(folder: Path) -> str:
    path = folder / "bccd.yaml"
    splits = {split: str(BCCD / "images" / split) for split in ("train", "val")}
    path.write_text(yaml.safe_dump({**splits, "nc": len(NAMES), "names": NAMES}))
    return str(path)


def combinations(quick: bool) -> list[dict[str, Any]]:
    """All of the grid; without workers the fast loader is the usual one."""
    names = list(GRID)[-2:] if quick else list(GRID)
    found = [dict(zip(names, values)) for values in itertools.product(*(GRID[name] for name in names))]
    return [flags for flags in found if flags.get("workers", 1) or not flags["fast_dataloader"]]


def options(data: str, batch: int, size: int) -> Namespace:
    flags = ["--cfg", "yolov7-tiny", "--hyp", "tiny", "--data", data, "--img-size", str(size)]
    opt = parser_for("train").parse_args([*flags, "--batch-size", str(batch), "--device", "cpu"])
    from yolov7fast.families.registry import family_class

    family_class("yolo").check_files(opt)
    opt.noautoanchor, opt.synthetic = True, False
    return opt


def measure_each(opt: Namespace, settings: Mapping[str, Mapping[str, Any]], rounds: int) -> dict[str, float]:
    """Median seconds an image of each setting; one burst of each in a round, networks built anew each time."""
    import torch

    from yolov7fast.data.data_yaml import load_data_yaml
    from yolov7fast.tuning.trials import TrainingTrial

    data, times = load_data_yaml(opt.data), {name: [] for name in settings}
    for _ in range(rounds):
        for name, flags in settings.items():
            trial = TrainingTrial(opt, data, torch.device("cpu"), flags)
            try:
                times[name].append(trial.burst())
            finally:
                trial.close()
    return {name: statistics.median(found) for name, found in times.items()}


def choice(quick: bool) -> dict[str, Any]:
    """(a): tune's choice against the default and the grid."""
    with tempfile.TemporaryDirectory() as scratch:
        data, out = data_file(Path(scratch)), str(Path(scratch) / "this_machine.yaml")
        batch, size = (4, 64) if quick else (16, 320)
        flags = ["--cfg", "yolov7-tiny", "--hyp", "tiny", "--data", data, "--img-size", str(size), "--device", "cpu"]
        minutes = "0.2" if quick else "3"
        tune.main([*flags, "--batch-size", str(batch), "--epochs", "100", "--minutes", minutes, "--output", out])
        chosen = read_run_file(out, flags_of("train"), "yolo")
        settings: dict[str, Mapping[str, Any]] = {"default": {}, "tuned": chosen}
        settings |= {str(flags): flags for flags in combinations(quick)}
        rough = measure_each(options(data, batch, size), settings, 1)
        best = sorted((name for name in rough if name.startswith("{")), key=lambda name: rough[name])[:3]
        final = {name: settings[name] for name in ("default", "tuned", *best)}
        times = measure_each(options(data, batch, size), final, 1 if quick else BURSTS)
    fastest = min(best, key=lambda name: times[name])
    print(f"\n(a) {len(settings) - 2} combinations once each, the three fastest with default and choice {BURSTS} times")
    for name, seconds in times.items():
        print(f"{seconds * 1e3:10.2f} ms an image  {name}")
    against_default, against_best = times["default"] / times["tuned"], times["tuned"] / times[fastest]
    print(
        f"tune's choice {chosen or 'the defaults'}: {against_default:.3f} times the default's speed (must: at least 1)"
    )
    print(f"it takes {against_best:.3f} times the best combination's time (must: below {WITHIN})")
    return {"chosen": chosen, "seconds": times, "rough": rough, "speedup": against_default, "of_best": against_best}


def ways_of_waiting(quick: bool) -> dict[str, Any]:
    """(b): ways of waiting, on the machine as it is and beside a rival."""
    from yolov7fast.tuning import waiting

    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as scratch:
        batch, size = (2, 64) if quick else (8, 320)
        child = tune.child_options(options(data_file(Path(scratch)), batch, size), NAMES)
        rounds = 1 if quick else 5
        alone = waiting.measure_waiting(child, rounds, 120)
        with waiting.rival(cores):
            beside = waiting.measure_waiting(child, 1 if quick else 3, 600)
    print(f"\n(b) {'a step, ms an image':32}{'alone':>10}{'beside a rival':>16}   ({rounds} rounds)")
    for name, seconds in alone.seconds.items():
        print(f"    {name:32}{seconds * 1e3:10.2f}{beside.seconds[name] * 1e3:16.2f}")
    cost = alone.seconds[waiting.BRIEF] / alone.seconds[waiting.SPINNING]
    print(
        f"brief against default spin: {cost:.3f} of the time alone, {beside.slowdown:.1f} times as fast beside a rival"
    )
    return {"alone": alone.seconds, "beside": beside.seconds, "idle_cost": cost, "busy_gain": beside.slowdown}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.tuning", description=__doc__)
    parser.add_argument("--only", choices=("choice", "waiting"), help="one of the two")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, not what it measures")
    parser.add_argument("--json", help="write the figures to this file")
    opt = parser.parse_args()
    wait_briefly()  # as train.py does
    results: dict[str, Any] = {"machine": machine()}
    if opt.only != "choice":
        results["waiting"] = ways_of_waiting(opt.quick)
    if opt.only != "waiting":
        results["choice"] = choice(opt.quick)
    write_json(opt.json, results)
    return 0


if __name__ == "__main__":
    run_command(main)
