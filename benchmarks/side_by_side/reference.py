"""Compares a checkout of upstream with the same checkout under the overlay.

    python -m benchmarks.side_by_side.reference --repo DIR

DIR is your checkout; this repository contains nothing of it. Upstream's side is DIR with the overlay's repairs only,
without which it does not run on current torch and NumPy. Both sides run in turn in one process on the same inputs
(`benchmarks.side_by_side.parts`), and their results are compared too; epochs are whole runs of DIR's own train.py,
in turn. A part that cannot be run is reported, and the others are still measured.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.measure import show_machine, wall_seconds, write_json
from benchmarks.photographs import BCCD
from benchmarks.side_by_side.epochs import measure_epochs
from benchmarks.side_by_side.inputs import STRIDES
from benchmarks.side_by_side.parts import NETWORK, PARTS, Case, Part
from benchmarks.side_by_side.sides import Side
from yolov7fast.core.errors import UserError, run_command
from yolov7fast.overlay.batch_comparison import difference
from yolov7fast.overlay.checkout import Checkout
from yolov7fast.overlay.parts import OverlaySettings, put_in

SIDES = ("upstream", "overlay")


def in_turn(works: dict[str, Side], runs: int) -> dict[str, list[float]]:
    """Seconds of every run of each side, in turn: wall time, unless a side measures itself."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            seconds[name].append(wall_seconds(work.run) if work.seconds is None else work.seconds())
    return seconds


def measure(part: Part, case: Case) -> Iterator[dict]:
    """Rows of one part: the time of each task on both sides, and the difference of their results."""
    try:
        for what, works in part.prepare(case):
            results = {name: work.run() for name, work in works.items()}  # warm, and to compare
            apart = difference(results["overlay"], results["upstream"])
            seconds = {name: statistics.median(times) for name, times in in_turn(works, case.runs).items()}
            counts = {name: work.count() for name, work in works.items() if work.counted}
            yield {"what": what, **seconds, "difference": apart, **({"counts": counts} if counts else {})}
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split()) or "no reason given"
        yield {"what": part.name, "error": f"{type(error).__name__}: {text[:160]}"}


def show(rows: list[dict]) -> None:
    print(f"{'':<40}{'upstream':>13}{'overlay':>13}{'ratio':>9}  {'difference':>11}")
    for row in rows:
        if "error" in row:
            print(f"{row['what']:<40}{row['error']}")
            continue
        theirs, ours = (row[side] for side in SIDES)
        times = f"{theirs * 1e3:10.1f} ms{ours * 1e3:10.1f} ms{theirs / ours:8.2f}x"
        apart = "none" if row["difference"] == 0 else f"{row['difference']:.1e}"
        print(f"{row['what']:<40}{times}  {apart:>11}")
        for name in ("operators", "host_reads"):
            if "counts" in row:
                theirs, ours = (row["counts"][side][name] for side in SIDES)
                print(f"{'    ' + name.replace('_', ' '):<40}{theirs:>13}{ours:>13}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    shown = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=shown)
    parser.add_argument("--repo", "--reference", required=True, metavar="DIR", help="checkout of upstream")
    parser.add_argument("--images", type=Path, default=BCCD / "images" / "train", help="folder of labelled images")
    parser.add_argument("--batch-size", type=int, default=64, help="batch of the losses")
    parser.add_argument("--step-batch-size", type=int, default=16, help="batch of steps, loaders and epochs")
    parser.add_argument("--img-size", type=int, default=320, help="image size in pixels")
    parser.add_argument("--targets", type=int, default=17, help="boxes an image, for the losses")
    parser.add_argument("--classes", type=int, default=80, help="classes of the losses")
    parser.add_argument("--workers", type=int, default=2, help="loader processes")
    parser.add_argument("--runs", type=int, default=5, help="timings of each task, of which the median counts")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of each run of train.py; 0: no such runs")
    parser.add_argument("--rounds", type=int, default=2, help="runs of train.py on each side")
    parser.add_argument("--parts", nargs="*", choices=[part.name for part in PARTS], help="only these parts")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    return parser.parse_args(argv)


def check(opt: argparse.Namespace) -> None:
    least = {"batch_size": 1, "step_batch_size": 1, "img_size": 32, "targets": 1, "classes": 1, "workers": 0}
    least |= {"runs": 1, "rounds": 1, "epochs": 0}
    for name, smallest in least.items():
        if getattr(opt, name) < smallest:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} is {getattr(opt, name)}; it must be at least {smallest}")
    if opt.img_size % STRIDES[-1]:
        raise UserError(f"--img-size is {opt.img_size}; it must be a multiple of {STRIDES[-1]}")
    if not (Path(opt.repo) / NETWORK).is_file():
        raise UserError(f"--repo {opt.repo}: {NETWORK} is missing, so this is not a checkout of upstream")


def main(argv: list[str] | None = None) -> int:
    opt = parse(argv)
    check(opt)
    checkout = Checkout(opt.repo)
    torch.set_num_threads(1)
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        with put_in(checkout, OverlaySettings(loss=False, fast_dataloader=False, metrics=False)):
            case = Case.of(opt, checkout, Path(folder))
            wanted = [part for part in PARTS if opt.parts is None or part.name in opt.parts]
            for part in tqdm(wanted, desc="both sides in turn", leave=False):
                if case.images is not None or not part.needs_images:
                    rows += measure(part, case)
        if opt.epochs and case.images is not None:
            rows += measure_epochs(checkout, case, opt.epochs, opt.rounds, Path(folder))
    found = show_machine()
    if not opt.images.is_dir():
        print(f"no images in {opt.images}: samples, loaders and epochs are not compared (give --images FOLDER)")
    show(rows)
    write_json(opt.json, {"machine": found, "rows": rows, "runs": opt.runs, "rounds": opt.rounds})
    return 0


if __name__ == "__main__":
    run_command(main)
