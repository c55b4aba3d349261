"""Shared by all benchmarks: sides that run in turn in one process, medians, the description of the machine."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path


def machine() -> dict:
    """Processor, cores and versions, which are printed with every result."""
    import cv2
    import numpy
    import torch

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "opencv": cv2.__version__,
        "numpy": numpy.__version__,
    }


def show_machine() -> dict:
    """`machine()`, printed as one line."""
    found = machine()
    print(" ".join(f"{key} {value}" for key, value in found.items()))
    return found


def quick_parser(module: str, doc: str | None, quick: str) -> argparse.ArgumentParser:
    """The flags that most benchmarks have, --quick and --json; `doc` is the module's docstring."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    return parser


def note(results: dict, what: str, value: float, must: str, runs: int) -> None:
    """Print one row of the final table and keep it; `must` is a bound such as `<= 1.25`, or `-`."""
    results.setdefault("ratios", []).append({"what": what, "value": value, "must": must, "runs": runs})
    print(f"{what:<84}{value:10.4g}  must {must:<10}{runs:>3} runs", flush=True)


def in_turn(sides: dict[str, Callable[[], float]], runs: int) -> dict[str, float]:
    """Call each side once per round, `runs` rounds, and return the median of what each side measured."""
    results: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, side in sides.items():
            results[name].append(side())
    return {name: statistics.median(values) for name, values in results.items()}


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time that `work` takes in this process (all its threads, no children)."""
    start = time.process_time()
    work()
    return time.process_time() - start


def wall_seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def write_json(path: str | None, results: dict) -> None:
    """Write the results with their date."""
    if path:
        Path(path).write_text(json.dumps({"date": f"{date.today()}", **results}, indent=2) + "\n")
