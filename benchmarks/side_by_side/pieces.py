"""Losses and samples beside other trainers: one table, all sides in turn on one machine, CPU time on one thread.

    python -m benchmarks.side_by_side.pieces [--reference DIR] [--ultralytics PYTHON] [--libreyolo PYTHON] [--json FILE]

DIR is a checkout of upstream, PYTHON the interpreter of an environment that has the package. Each side is a process of
its own (`piece_process.py`) that waits until it is asked; a figure is the median of `--runs` turns. ultralytics assigns
by TAL where the others do by OTA, and its anchor-free head has a third of the cells; it is given the same boxes.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.measure import as_text, show_machine, write_json
from benchmarks.photographs import ROOT, image_folder
from benchmarks.side_by_side.parts import own_data
from benchmarks.side_by_side.piece_process import SAMPLE_KINDS, Request
from yolov7fast.core.errors import UserError, run_command

BATCH = 64
ORDINARY, CROWDED = 17, 60  # boxes an image


def pieces(batch: int) -> dict[str, Request]:
    """The rows of the table, by name."""
    rows = {}
    for work, boxes in (("ota", ORDINARY), ("plain", ORDINARY), ("ota", CROWDED), ("plain", CROWDED)):
        name = f"{'OTA' if work == 'ota' else work} loss, {boxes} boxes an image"
        rows[f"{name}, forward"] = Request(work, "forward", boxes, batch)
        rows[f"{name}, forward + backward"] = Request(work, "both", boxes, batch)
    for size in (320, 640):
        for kind in SAMPLE_KINDS:
            cached = {"default": "uncached", "ram": "RAM cache", "disk": "disk cache"}.get(kind, kind)
            rows[f"mosaic sample {size}, {cached}"] = Request(kind, "sample", size=size)
    return rows


class Side:
    """A process that answers requests one by one, in an environment of its own."""

    def __init__(self, name: str, python: str, images: Path, folder: str = ""):
        self.name = name
        command = [python, "-m", "benchmarks.side_by_side.piece_process", name, str(images), folder]
        self.log, pipe = images.parent / f"{name}.log", subprocess.PIPE
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=log, text=True)

    def ask(self, request: Request) -> dict[str, float] | None:
        """Seconds, or counts; None for what this side does not have."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps(request._asdict()) + "\n")
            self.process.stdin.flush()
            reply = json.loads(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            said = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()][-1:]
            raise UserError(f"{self.name} did not answer: {''.join(said)[:200]}") from None
        if "error" in reply:
            raise UserError(f"{self.name}: {reply['error'][:200]}")
        return reply["answer"]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it ended by itself
            self.process.communicate()


def measure(sides: list[Side], rows: dict[str, Request], runs: int) -> dict[str, dict]:
    """Milliseconds of each row by side; a side that fails says so in its place."""
    table: dict[str, dict] = {}
    for name, request in tqdm(rows.items(), desc="all sides in turn", leave=False):
        seconds: dict[str, list[float]] = {side.name: [] for side in sides}
        row = table[name] = {}
        for turn in range(runs + 1):  # the first warms up
            for side in sides:
                try:
                    found = side.ask(request) if side.name not in row else None
                except UserError as error:
                    row[side.name] = str(error)
                    continue
                if found and turn:
                    seconds[side.name].append(found["seconds"])
        row |= {name: statistics.median(values) * 1e3 for name, values in seconds.items() if values}
    return table


def count(sides: list[Side], batch: int) -> dict[str, dict]:
    """Operators and host reads of the OTA loss, forward, by side."""
    counted = {side.name: side.ask(Request("ota", "count", ORDINARY, batch)) for side in sides}
    return {
        f"OTA loss, {ORDINARY} boxes an image, forward: {what.replace('_', ' ')}": {
            side: counts[what] for side, counts in counted.items() if counts
        }
        for what in ("operators", "host_reads")
    }


def show(table: dict[str, dict], names: list[str]) -> None:
    print(f"{'CPU ms':<52}" + "".join(f"{name:>13}" for name in names))
    for what, row in table.items():
        print(f"{what:<52}" + "".join(f"{as_text(row.get(name)):>13}" for name in names))
    for text in sorted(failures(table)):
        print(text)


def failures(table: dict[str, dict]) -> set[str]:
    return {text for row in table.values() for text in row.values() if isinstance(text, str)}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", metavar="DIR", help="a checkout of upstream")
    parser.add_argument("--ultralytics", metavar="PYTHON", help="interpreter that has ultralytics")
    parser.add_argument("--libreyolo", metavar="PYTHON", help="interpreter that has libreyolo")
    parser.add_argument("--runs", type=int, default=5, help="turns of each row (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=BATCH, help="of the losses (default: %(default)s)")
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    opt = parser.parse_args(argv)
    if min(opt.runs, opt.batch_size) < 1:
        raise UserError("--runs and --batch-size must be at least 1")
    return opt


def main(argv: list[str] | None = None) -> int:
    opt = parse(argv)
    rows = {name: request for name, request in pieces(opt.batch_size).items() if opt.only in name}
    if not rows:
        raise UserError(f"--only {opt.only}: no row has that in its name; there are: {', '.join(pieces(1))}")
    given = {"yolov7fast": (sys.executable, ""), "upstream": (opt.reference and sys.executable, opt.reference or "")}
    given |= {"ultralytics": (opt.ultralytics, ""), "libreyolo": (opt.libreyolo, "")}
    sides: list[Side] = []
    with tempfile.TemporaryDirectory() as name:
        source = image_folder(Path(name)) / "images" / "train"
        try:
            for side, (python, folder) in given.items():
                if python:  # each has images of its own: it writes label caches beside them
                    sides.append(Side(side, python, own_data(source, Path(name) / side), folder))
            table = measure(sides, rows, opt.runs) | ({} if opt.only else count(sides, opt.batch_size))
        finally:
            for side in sides:
                side.close()
    found = show_machine()
    show(table, [side.name for side in sides])
    settings = {"runs": opt.runs, "batch": opt.batch_size}
    write_json(opt.json, {"machine": found, **settings, "sides": [side.name for side in sides], "rows": table})
    return 1 if failures(table) else 0


if __name__ == "__main__":
    run_command(main)
