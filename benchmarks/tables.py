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

from benchmarks.chart import iteration
from benchmarks.measure import as_text

ROOT = Path(__file__).resolve().parent.parent
STEP = "training step with OTA"  # a row of benchmarks.side_by_side.reference
RESULTS = ROOT / "benchmarks" / "results"
CHART = ROOT / "docs" / "images" / "iteration.svg"
FIGURE = re.compile(r"(<!--= ([\w-]+) -->)(.*?)(<!--/-->)")
TABLE = re.compile(r"^(<!-- table: ([\w-]+) -->\n)(.*?)(^<!-- /table -->)", re.S | re.M)


NOT_YET = {"README.zh-TW.md": "尚未量測"}  # what stands in a document for a figure without a file
ELSEWHERE = "not measured yet"


class Figure(NamedTuple):
    file: str
    find: Callable[[dict], float]
    form: str
    optional: bool = False  # a document may say that it was not measured yet


def ratio(file: str, what: str, form: str = ".2f") -> Figure:
    """A row of the list `ratios` that most benchmarks write."""

    def find(found: dict) -> float:
        return row_of(found["ratios"], what)["value"]

    return Figure(file, find, form)


def row_of(rows: list[dict], what: str) -> dict:
    for row in rows:
        if row["what"] == what and "error" not in row:
            return row
    raise LookupError(f"no row {what!r} was measured; there are: {', '.join(repr(row['what']) for row in rows)}")


def side(what: str, *path: str, scale: float = 1, form: str = ".0f") -> Figure:
    """A value of one side of `side_by_side/reference.py`: ("upstream",), or ("counts", "overlay", "operators")."""

    def find(found: dict) -> float:
        value: Any = row_of(found["rows"], what)
        for key in path:
            value = value[key]
        return value * scale

    return Figure("reference", find, form, optional=True)


def faster(what: str) -> Figure:
    """How many times as fast as upstream the overlay is."""

    def find(found: dict) -> float:
        row = row_of(found["rows"], what)
        return row["upstream"] / row["overlay"]

    return Figure("reference", find, ".1f", optional=True)


def peer(trainer: str, against: str | None = None) -> Figure:
    """Seconds that an epoch takes a trainer of `side_by_side/peers.py`, or how many times those another one takes."""

    def find(found: dict) -> float:
        seconds = {row["trainer"]: row["epoch"] for row in found["rows"] if "epoch" in row}
        if missing := {trainer, against or trainer} - seconds.keys():
            raise LookupError(f"{min(missing)} was not measured beside the others")
        return seconds[trainer] / seconds[against] if against else seconds[trainer]

    return Figure("peers", find, ".1f", optional=True)


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


UPSTREAM, HERE, FAST = "WongKinYiu/yolov7", "yolov7fast", "yolov7fast, fast flags"  # in `side_by_side/peers.py`
CENTRAL = "(batch 64, 320, 17 targets)"
BESIDE_UPSTREAM = {"loss": "ComputeLossOTA, forward", "step": STEP}
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
    "peers-upstream": peer(UPSTREAM),
    "peers-here": peer(HERE),
    "peers-fast": peer(FAST),
    "peers-here-faster": peer(UPSTREAM, HERE),
    "peers-fast-faster": peer(UPSTREAM, FAST),
    "map-default": mean_of("accuracy", "map50", side="default"),
    "map-fast": mean_of("accuracy", "map50", side="fast"),
    "recorded-ota-loss": at("recorded", "iteration_ms", "OTA", "loss", form=".0f"),
    "recorded-ota-total": at("recorded", "iteration_ms", "OTA", "total", form=".0f"),
    "recorded-plain-loss": at("recorded", "iteration_ms", "plain", "loss", form=".0f"),
    "recorded-plain-total": at("recorded", "iteration_ms", "plain", "total", form=".0f"),
    "recorded-ota-hours": at("recorded", "hours", "OTA", form=".2f"),
    "recorded-plain-hours": at("recorded", "hours", "plain", form=".2f"),
    "recorded-ota-busy": at("recorded", "gpu_busy", "OTA", form=".0%"),
    "recorded-ota-map": at("recorded", "map", "OTA", form=".3f"),
    "recorded-plain-map": at("recorded", "map", "plain", form=".3f"),
    "counted-operators": at("counted", "operators", form=",d"),
    "counted-host-reads": at("counted", "host_reads", form=",d"),
    **{
        f"reference-{name}-{word}": figure
        for name, what in BESIDE_UPSTREAM.items()
        for word, figure in (
            ("upstream", side(what, "upstream", scale=1e3)),
            ("here", side(what, "overlay", scale=1e3)),
            ("faster", faster(what)),
        )
    },
}


def markdown(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(heads), ["---"] * len(list(heads)), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def ratios_table(found: dict) -> str:
    rows = ((row["what"], f"{row['value']:.4g}", row["must"].strip("-") or "", row["runs"]) for row in found["ratios"])
    return markdown(("what", "figure", "goal", "runs"), rows)


def reference_table(found: dict) -> str:
    """Both sides of `benchmarks.side_by_side.reference`, counts under the row they belong to."""
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


def peers_table(found: dict) -> str:
    """`side_by_side/peers.py`: epochs of each trainer and, where it was run, the race; one that failed says why."""
    raced = bool(found["settings"]["minutes"])
    heads = ["trainer", "network", "million parameters", "GFLOPs", "s an epoch", "images/s"]
    heads += ["epochs", "minutes", "mAP@.5"] if raced else []
    rows = []
    for row in found["rows"]:
        name = row["trainer"], row["network"]
        if "error" in row:
            rows.append((*name, row["error"].replace("|", "\\|"), *[""] * (len(heads) - 3)))
            continue
        size = f"{row['parameters']:.2f}", f"{row['gflops']:.2f}"
        race = (row["epochs"], f"{row['minutes']:.1f}", f"{row['map50']:.3f}") if raced else ()
        rows.append((*name, *size, f"{row['epoch']:.1f}", f"{row['images_per_second']:.1f}", *race))
    return markdown(heads, rows)


def pieces_table(found: dict) -> str:
    """`side_by_side/pieces.py`: a column for each side."""
    rows = ((what, *(as_text(row.get(side)) for side in found["sides"])) for what, row in found["rows"].items())
    return markdown(("CPU ms", *found["sides"]), rows)


def first_epoch_table(found: dict) -> str:
    """`benchmarks.data --only first_epoch`: building the packed cache beside reading and decoding every file once."""
    n, cpu, wall = found["first_epoch_images"], found["first_epoch_cpu_s"], found["first_epoch_s"]
    heads = f"{n:,} images at 320", "seconds", "CPU seconds", "of a plain pass"
    rows = ((name, f"{wall[name]:.1f}", f"{cpu[name]:.1f}", f"{cpu[name] / cpu['plain pass']:.2f}") for name in cpu)
    return markdown(heads, rows)


def tuning_table(found: dict) -> str:
    """`benchmarks.training.tuning`: what tune's choice is worth, and ways of waiting."""
    rows = []
    if choice := found.get("choice"):
        rows.append(("tune's choice, times the default's speed", f"{choice['speedup']:.2f}"))
        rows.append(("its time against the best of all combinations", f"{choice['of_best']:.2f}"))
    if waiting := found.get("waiting"):
        rows.append(("brief spinning against the default, time of a step alone", f"{waiting['idle_cost']:.2f}"))
        rows.append(("the same beside a rival, times as fast", f"{waiting['busy_gain']:.1f}"))
    return markdown(("what", "figure"), rows)


def slicing_table(found: dict) -> str:
    rows = (
        (how, f"{found['recall'][key]:.3f}", found["boxes"][key])
        for how, key in (("whole image", "whole"), ("`--slice`", "sliced"))
    )
    return markdown(("", f"recall of {found['small']} small objects", "boxes"), rows)


def detr_table(found: dict) -> str:
    """`benchmarks.learning.detr`: one training, and the network before it."""
    figures = {"untrained": found["untrained"], f"{found['epochs']} epochs": found["trained"]}
    rows = ((name, f"{value:.3f}") for name, value in figures.items())
    return markdown((f"{found['minutes']:.1f} minutes", "mAP@.5"), rows)


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


class Table(NamedTuple):
    command: str  # what writes the file of the table's name
    render: Callable[[dict], str] = ratios_table


TABLES = {
    "loss": Table("python -m benchmarks.losses.loss"),
    "data": Table("python -m benchmarks.data"),
    "eval": Table("python -m benchmarks.inference.eval"),
    "train": Table("python -m benchmarks.training.train"),
    "page_faults": Table("python -m benchmarks.training.page_faults"),
    "checkpoints": Table("python -m benchmarks.training.checkpoints"),
    "validation": Table("python -m benchmarks.training.validation --before DIR"),
    "first_epoch": Table("python -m benchmarks.data --only first_epoch --images 10000", first_epoch_table),
    "detect": Table("python -m benchmarks.inference.detect --weights best.pt --img-size 320"),
    "doctor": Table("python -m benchmarks.data.doctor --size 320"),
    "formats": Table("python -m benchmarks.inference.formats --threads 2"),
    "reference": Table("python -m benchmarks.side_by_side.reference --repo DIR", reference_table),
    "peers": Table(
        "python -m benchmarks.side_by_side.peers --reference DIR --ultralytics PYTHON --libreyolo PYTHON", peers_table
    ),
    "pieces": Table(
        "python -m benchmarks.side_by_side.pieces --reference DIR --ultralytics PYTHON --libreyolo PYTHON", pieces_table
    ),
    "dense": Table("python -m benchmarks.losses.dense"),
    "compiled_loss": Table("python -m benchmarks.losses.compiled_loss"),
    "matcher": Table("python -m benchmarks.losses.matcher"),
    "tuning": Table("python -m benchmarks.training.tuning", tuning_table),
    "slicing": Table("python -m benchmarks.inference.slicing --weights best.pt", slicing_table),
    "detr": Table("python -m benchmarks.learning.detr --epochs 12 --img-size 256", detr_table),
    "accuracy": Table("python -m benchmarks.learning.accuracy", runs_table("side", "map50")),
    "multihead": Table("python -m benchmarks.learning.multihead --seeds 0 1 2", runs_table("heads", "map50")),
    "small_data": Table("python -m benchmarks.learning.small_data", runs_table("set", "last_map50")),
}


@cache
def results(name: str) -> dict | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def figure_text(name: str, not_yet: str = ELSEWHERE) -> str:
    figure = FIGURES[name]
    try:
        found = results(figure.file)
        if found is None:
            raise LookupError(f"benchmarks/results/{figure.file}.json is missing: the figure {name} comes from it")
        return format(figure.find(found), figure.form)
    except LookupError as error:
        if figure.optional:
            return not_yet
        raise LookupError(f"{name}: {error}") from None


def table_text(name: str) -> str:
    """The table with the machine below it; where nothing was measured yet, what would measure it."""
    table, found = TABLES[name], results(name)
    command = f"`{table.command} --json benchmarks/results/{name}.json`"
    if found is None:
        return f"Not measured on an idle machine yet: {command}, then `python -m benchmarks.tables`.\n"
    machine = found["machine"]
    words = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}"
    return f"{table.render(found)}\n{command}, {found.get('date', 'no date')}: {words}.\n"


def filled(text: str, not_yet: str = ELSEWHERE) -> str:
    """A document with its figures and tables as the results have them; not_yet: what it says where none are."""
    text = FIGURE.sub(lambda mark: mark[1] + figure_text(mark[2], not_yet) + mark[4], text)
    return TABLE.sub(lambda mark: mark[1] + table_text(mark[2]) + mark[4], text)


def documents() -> list[Path]:
    return [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").glob("*.md"))]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.tables", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a figure is stale")
    opt = parser.parse_args(argv)
    wanted = {path: filled(path.read_text(encoding="utf-8"), NOT_YET.get(path.name, ELSEWHERE)) for path in documents()}
    wanted[CHART] = iteration(results("recorded") or {}, results("reference"))
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
