"""Fills the figures of the documents from benchmarks/results/*.json: `python -m benchmarks.tables [--check]`.

A benchmark writes its file with `--json benchmarks/results/NAME.json`. Documents mark what is filled in:

    <!--= ota-forward -->1.58<!--/-->            one figure, by its name in FIGURES
    <!-- table: loss -->
    ...                                          a whole table, by its name in TABLES
    <!-- /table -->

and docs/images/iteration.svg is drawn anew. With --check nothing is written: exit code 1 names what is stale.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.picture import iteration

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "iteration.svg"
FIGURE = re.compile(r"(<!--= ([\w-]+) -->)(.*?)(<!--/-->)")
TABLE = re.compile(r"^(<!-- table: ([\w-]+) -->\n)(.*?)(^<!-- /table -->)", re.S | re.M)


class Figure(NamedTuple):
    file: str
    find: Callable[[dict], float]
    form: str


def ratio(file: str, what: str, form: str = ".2f") -> Figure:
    """A row of the list `ratios` that most benchmarks write."""

    def find(found: dict) -> float:
        (value,) = (row["value"] for row in found["ratios"] if row["what"] == what)
        return value

    return Figure(file, find, form)


def at(file: str, *path: Any, form: str = ".1f") -> Figure:
    """A value at a path of keys."""

    def find(found: dict) -> float:
        value: Any = found
        for key in path:
            value = value[key]
        return value

    return Figure(file, find, form)


def mean_of(file: str, figure: str, form: str = ".3f", **fields: Any) -> Figure:
    """Mean over the runs of a learning benchmark that have these fields."""

    def find(found: dict) -> float:
        values = [run[figure] for run in found["runs"] if all(run[key] == value for key, value in fields.items())]
        return sum(values) / len(values)

    return Figure(file, find, form)


CENTRAL = "(batch 64, 320, 17 targets)"
FIGURES = {
    "ota-forward": ratio("loss", f"OTA / plain forward {CENTRAL}"),
    "ota-both": ratio("loss", "OTA / plain forward + backward (same)"),
    "ota-heads": ratio("loss", f"OTA loss with 4 heads / with 1 head, forward {CENTRAL}"),
    "ota-operators": ratio("loss", "ota operators, forward, batch 64", ".0f"),
    "ota-host-reads": ratio("loss", "ota host reads of device data, forward", ".0f"),
    "ota-step": ratio("train", "step, OTA / plain (tiny, 320, batch 16)"),
    "epoch-fast": ratio("train", "epoch on bccd, default / fast flags"),
    "step-compiled": ratio("train", "step, eager / compiled (tiny, 320, batch 8)"),
    "sample-320": at("data", "ms_per_sample", "320", "default"),
    "sample-640": at("data", "ms_per_sample", "640", "default"),
    "sample-320-disk": ratio("data", "sample 320 disk", ".1f"),
    "sample-320-fast": ratio("data", "sample 320 disk + fast augment", ".1f"),
    "sample-640-fast": ratio("data", "sample 640 disk + fast augment", ".1f"),
    "main-process": ratio("data", "main process, batch of 64, taken"),
    "first-batch": ratio("data", "first batch of 128"),
    "ap-5000": ratio("eval", "matching + AP, 5000 x 300 x 80, loops / arrays", ".1f"),
    "map-default": mean_of("accuracy", "map50", side="default"),
    "map-fast": mean_of("accuracy", "map50", side="fast"),
    "recorded-ota-loss": at("recorded", "iteration_ms", "OTA", "loss", form=".0f"),
    "recorded-ota-total": at("recorded", "iteration_ms", "OTA", "total", form=".0f"),
    "recorded-plain-loss": at("recorded", "iteration_ms", "plain", "loss", form=".0f"),
    "recorded-plain-total": at("recorded", "iteration_ms", "plain", "total", form=".0f"),
}


def markdown(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(heads), ["---"] * len(list(heads)), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def ratios_table(found: dict) -> str:
    rows = ((row["what"], f"{row['value']:.4g}", row["must"].strip("-") or "", row["runs"]) for row in found["ratios"])
    return markdown(("what", "figure", "goal", "runs"), rows)


def reference_table(found: dict) -> str:
    """Both sides of `benchmarks.reference`, counts under the row they belong to."""
    rows: list[tuple] = []
    for row in found["rows"]:
        if "error" in row:
            rows.append((row["what"], row["error"], "", "", ""))
            continue
        theirs, ours = row["upstream"], row["overlay"]
        times = f"{theirs * 1e3:.1f} ms", f"{ours * 1e3:.1f} ms", f"{theirs / ours:.2f}x"
        rows.append((row["what"], *times, f"{row['difference']:.1e}" if row["difference"] else "none"))
        for name, count in row.get("counts", {}).get("upstream", {}).items():
            rows.append((f"{row['what']}: {name.replace('_', ' ')}", count, row["counts"]["overlay"][name], "", ""))
    return markdown(("what", "upstream", "overlay", "faster", "difference"), rows)


def runs_table(by: str, figure: str) -> Callable[[dict], str]:
    """Learning benchmarks: a line for each side, a column for each seed, and the mean."""

    def table(found: dict) -> str:
        seeds = sorted({run["seed"] for run in found["runs"]})
        rows = []
        for side in dict.fromkeys(run[by] for run in found["runs"]):
            own = {run["seed"]: run[figure] for run in found["runs"] if run[by] == side}
            values = [f"{own[seed]:.3f}" if seed in own else "" for seed in seeds]
            rows.append((side, *values, f"{sum(own.values()) / len(own):.3f}"))
        return markdown((by, *(f"seed {seed}" for seed in seeds), "mean"), rows)

    return table


def summary_table(found: dict) -> str:
    """`benchmarks.learning.small_objects`: gain and spread of each part."""
    rows = ((r["part"], r["figure"], f"{r['gain']:+.3f}", f"{r['spread']:.3f}") for r in found["summary"])
    return markdown(("part", "figure", "gain", "spread of the seeds"), rows)


class Table(NamedTuple):
    command: str  # what writes the file of the table's name
    render: Callable[[dict], str] = ratios_table


TABLES = {
    "loss": Table("python -m benchmarks.loss"),
    "data": Table("python -m benchmarks.data"),
    "eval": Table("python -m benchmarks.eval"),
    "train": Table("python -m benchmarks.train"),
    "checkpoints": Table("python -m benchmarks.checkpoints"),
    "detect": Table("python -m benchmarks.detect --weights best.pt --img-size 320"),
    "doctor": Table("python -m benchmarks.doctor --size 320"),
    "formats": Table("python -m benchmarks.formats --threads 2"),
    "reference": Table("python benchmarks/reference.py --repo DIR", reference_table),
    "accuracy": Table("python -m benchmarks.learning.accuracy", runs_table("side", "map50")),
    "multihead": Table("python -m benchmarks.learning.multihead --seeds 0 1 2", runs_table("heads", "map50")),
    "small_data": Table("python -m benchmarks.learning.small_data", runs_table("set", "last_map50")),
    "small_objects": Table("python -m benchmarks.learning.small_objects", summary_table),
}


@cache
def results(name: str) -> dict | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def figure_text(name: str) -> str:
    figure = FIGURES[name]
    found = results(figure.file)
    if found is None:
        raise LookupError(f"benchmarks/results/{figure.file}.json is missing: the figure {name} comes from it")
    return format(figure.find(found), figure.form)


def table_text(name: str) -> str:
    """The table with the machine below it; where nothing was measured yet, what would measure it."""
    table, found = TABLES[name], results(name)
    command = f"`{table.command} --json benchmarks/results/{name}.json`"
    if found is None:
        return f"Not measured on an idle machine yet: {command}, then `python -m benchmarks.tables`.\n"
    machine = found["machine"]
    words = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}"
    return f"{table.render(found)}\n{command}, {found.get('date', 'no date')}: {words}.\n"


def filled(text: str) -> str:
    """A document with its figures and tables as the results have them."""
    text = FIGURE.sub(lambda mark: mark[1] + figure_text(mark[2]) + mark[4], text)
    return TABLE.sub(lambda mark: mark[1] + table_text(mark[2]) + mark[4], text)


def documents() -> list[Path]:
    return [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").glob("*.md"))]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.tables", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a figure is stale")
    opt = parser.parse_args(argv)
    wanted = {path: filled(path.read_text(encoding="utf-8")) for path in documents()}
    wanted[PICTURE] = iteration(results("recorded") or {}, results("reference"))
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is stale' if opt.check else 'written'}")
        if not opt.check:
            path.write_text(wanted[path], encoding="utf-8")
    missing = [name for name in TABLES if results(name) is None]
    if missing:
        print(f"no results yet: {', '.join(missing)}")
    return 1 if opt.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
