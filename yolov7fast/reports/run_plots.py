"""Plots of whole runs: results by epoch, labels, studies over image sizes, evolution, and short trials."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from yolov7fast.core.drawing import Names, class_name
from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.evaluation.curve_plots import figure, line_colours, short
from yolov7fast.reports.run_results import RunCurves, number, read_curves

LOSS_TITLES = {"box": "Box", "obj": "Objectness", "cls": "Classification", "giou": "GIoU"}
METRIC_TITLES = {"precision": "Precision", "recall": "Recall", "map50": "mAP@0.5", "map": "mAP@0.5:0.95"}
LOSS_PANELS = 3


def plot_results(
    save_dir: str | os.PathLike,
    files: Sequence[str | os.PathLike] | None = None,
    path: str | os.PathLike | None = None,
) -> Path:
    """Draw the epochs of a run folder (or of the given results.txt files) as 2 x 5 panels; returns the file's path.

    Points are measured epochs: neither losses of 0 nor epochs without validation are drawn. Files may differ in length
    and in columns. The parts of the loss have the names that results.csv gives them.
    """
    save_dir = Path(save_dir)
    files = [Path(f) for f in files] if files else sorted(save_dir.glob("results*.txt"))
    if not files:
        raise UserError(f"no results*.txt in {save_dir}: nothing to plot")
    runs = [read_curves(f) for f in files]
    panels = [_panels(run) for run in runs]
    same_name = len({f.stem for f in files}) < len(files)
    labels = [f.parent.name if same_name else f.stem for f in files]
    path = Path(path) if path else save_dir / "results.png"
    with figure(path, (14, 6), 200) as fig:
        axes = fig.subplots(2, 5)
        for i, ax in enumerate(axes.flat):
            titles = list(dict.fromkeys(found[i][0] for found in panels))
            for run, found, label, colour in zip(runs, panels, labels, line_colours(len(runs))):
                _epochs(ax, run.epoch, found[i][1], colour, short(label))
            _panel(ax, short(" / ".join(titles), 60))
            if not any(np.isfinite(found[i][1]).any() for found in panels):
                ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color="grey")
        for ax in axes[1]:
            ax.set_xlabel("epoch")
        if len(runs) > 1:
            handles, names = axes.flat[0].get_legend_handles_labels()
            fig.legend(handles, names, loc="outside lower center", ncols=min(len(runs), 6), frameon=False)
    return path


def _panels(run: RunCurves) -> list[tuple[str, np.ndarray]]:
    """Title and values (n,) of each panel, row by row: losses, P and R above; validation losses and mAPs below."""
    metrics, rows = run.metrics(), []
    for losses, prefix, names in (
        (run.losses(), "", ("precision", "recall")),
        (run.losses("val/"), "val ", ("map50", "map")),
    ):
        parts = [part for part in losses if part != "total"][:LOSS_PANELS]
        rows += [(prefix + LOSS_TITLES.get(part, part), losses[part]) for part in parts]
        rows += [("", np.full(len(run.epoch), np.nan))] * (LOSS_PANELS - len(parts))
        rows += [(METRIC_TITLES[name], metrics[name]) for name in names]
    return rows


def _epochs(ax, epoch: np.ndarray, values: np.ndarray, colour, label: str) -> None:
    """A line through the measured epochs, each marked as a point where they are few."""
    measured = np.isfinite(values)
    marker = "." if measured.sum() <= 60 else None
    ax.plot(epoch[measured], values[measured], marker=marker, linewidth=1.5, color=colour, label=label)


def plot_labels(labels: np.ndarray, path: str | os.PathLike, names: Names = None) -> None:
    """What a data set's labels look like: instances per class, box outlines, centres, sizes.

    labels (n, 5): class, normalised xywh.
    """
    labels = np.asarray(labels, float).reshape(-1, 5)
    classes = labels[:, 0].astype(int)
    nc = max(int(classes.max(initial=-1)) + 1, len(names) if names is not None else 0, 1)
    counts = np.bincount(classes, minlength=nc)
    with figure(path, (10, 10), 150) as fig:
        bars, boxes, centres, sizes = fig.subplots(2, 2).flat
        bars.bar(range(nc), counts, color=line_colours(10) * (nc // 10 + 1) if nc <= 30 else "tab:blue", width=0.8)
        if nc <= 90:
            rotation, font = (0, 10) if nc <= 4 else (90, max(4.5, min(10, 250 / nc)))
            ticks = [short(class_name(names, i), 18) for i in range(nc)]
            bars.set_xticks(range(nc), ticks, rotation=rotation, fontsize=font)
        bars.set(xlim=(min(-0.6, nc / 2 - 2), max(nc - 0.4, nc / 2 + 1)))  # a lone class is a bar, not a wall
        boxes_drawn, classes_known = counted(len(labels), "box", "boxes"), counted(nc, "class", "classes")
        bars.set(ylabel="instances", title=f"{boxes_drawn} in {np.count_nonzero(counts)} of {classes_known}")
        _outlines(boxes, labels)
        for ax, columns, axis_names in ((centres, (1, 2), ("x", "y")), (sizes, (3, 4), ("width", "height"))):
            density, *_ = np.histogram2d(*labels[:, columns].T, bins=50, range=((0, 1), (0, 1)))
            seen = np.ma.masked_equal(density.T, 0)
            edges = np.linspace(0, 1, 51)
            ax.pcolormesh(edges, edges, seen, cmap="Blues", vmin=-density.max() / 3, vmax=max(density.max(), 1))
            ax.set(xlabel=axis_names[0], ylabel=axis_names[1], xlim=(0, 1), ylim=(0, 1), aspect="equal")
        centres.invert_yaxis()  # as in an image: y grows downwards
        centres.set_title("centres (fraction of the image)")
        sizes.set_title("sizes (fraction of the image)")


def _outlines(ax, labels: np.ndarray) -> None:
    """Up to 1000 boxes, evenly picked, drawn around one common centre and coloured by class."""
    picked = labels[np.linspace(0, len(labels) - 1, min(len(labels), 1000)).astype(int)] if len(labels) else labels
    palette = line_colours(10)
    patches = [Rectangle((0.5 - w / 2, 0.5 - h / 2), w, h) for w, h in picked[:, 3:5]]
    colours = [palette[int(c) % 10] for c in picked[:, 0]]
    ax.add_collection(PatchCollection(patches, facecolor="none", edgecolor=colours, linewidth=0.5, alpha=0.35))
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title="outlines around one centre, by class")


def plot_study(files: Sequence[str | os.PathLike], path: str | os.PathLike) -> None:
    """mAP over milliseconds per image, a line per study file, image sizes at the points.

    A file's rows: 7 results, inference, NMS and total ms per image, size, size, batch.
    """
    with figure(path, (9, 6), 200) as fig:
        ax = fig.add_subplot()
        for file, colour in zip(files, line_colours(len(files))):
            try:
                rows = np.loadtxt(file, dtype=float, ndmin=2)
                ms, accuracy, size = rows[:, 9], rows[:, 3], rows[:, 10]
            except (ValueError, IndexError) as error:
                raise UserError(f"{file} is no study file (rows of 13 numbers): {error}") from error
            ax.plot(ms, accuracy * 100, ".-", markersize=9, linewidth=2, color=colour, label=short(Path(file).stem, 40))
            for x, y, pixels in zip(ms, accuracy * 100, size):
                at = {"xytext": (0, 6), "textcoords": "offset points"}
                ax.annotate(f"{pixels:.0f}", (x, y), **at, fontsize=7, ha="center", color=colour)
        ax.set(xlabel="ms per image (inference + NMS)", ylabel="mAP@0.5:0.95 (%)")
        ax.set_xlim(left=0)
        ax.grid(alpha=0.25)
        ax.legend(loc="lower right", fontsize=9)


def plot_evolution(values: np.ndarray, fitness: np.ndarray, keys: Sequence[str], path: str | os.PathLike) -> None:
    """Hyper-parameter evolution: a scatter of fitness per key, the best trial marked and named in the title.

    values (n, k), one row per trial; fitness (n,); keys (k,).
    """
    values, fitness = np.atleast_2d(np.asarray(values, float)), np.asarray(fitness, float)
    best = int(fitness.argmax())
    columns = 6
    rows = -(-len(keys) // columns)
    with figure(path, (14, 2.4 * rows), 150) as fig:
        axes = np.atleast_1d(fig.subplots(rows, columns, sharey=True, squeeze=False)).flat
        for i, ax in enumerate(axes):
            if i >= len(keys):
                ax.set_visible(False)
                continue
            ax.scatter(values[:, i], fitness, c=np.arange(len(fitness)), cmap="viridis", s=14, alpha=0.8)
            ax.plot(values[best, i], fitness[best], "k+", markersize=14)
            ax.set_title(f"{keys[i]} = {values[best, i]:.3g}", fontsize=9)
            ax.tick_params(labelsize=7)
            ax.xaxis.set_major_locator(MaxNLocator(4))
            if i % columns == 0:
                ax.set_ylabel("fitness", fontsize=8)


def _panel(ax, title: str) -> None:
    """Common look of a small panel over epochs."""
    ax.set_title(title, fontsize=10)
    ax.grid(alpha=0.25)
    ax.tick_params(labelsize=8)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))


MAX_PANELS = 8  # further settings are left to the CSV
MAX_LISTED_VALUES = 6  # up to so many values of a setting are drawn at equal distances
LOG_AXIS_RATIO = 20  # a range over so many times its lowest value has a logarithmic axis


class TrialCurve(NamedTuple):
    """One training: points are (epoch, mAP@.5:.95)."""

    name: str
    setting: int
    points: Sequence[tuple[int, float]]
    is_completed: bool


def plot_trials(
    path: Path, curves: Sequence[TrialCurve], settings: Mapping[str, Sequence[str]], order: Sequence[int]
) -> None:
    """mAP by epoch, coloured by setting; then for each setting that varies its value against the final mAP.

    Args:
        settings: the values of each setting as text, one for each of `curves`.
        order: numbers of the settings, best first.
    """
    varied = [(name, values) for name, values in settings.items() if len(set(values)) > 1][:MAX_PANELS]
    width = min(3, 1 + len(varied))
    height = -(-(1 + len(varied)) // width)
    colours = dict(zip(order, line_colours(len(order))))
    with figure(path, (5.2 * width, 3.8 * height), 130) as fig:
        first, *panels = fig.subplots(height, width, squeeze=False).ravel()
        for curve in sorted((c for c in curves if c.points), key=lambda c: order.index(c.setting)):
            style = "-" if curve.is_completed else ":"
            first.plot(*zip(*curve.points), style, marker=".", color=colours[curve.setting], label=curve.name)
        first.set(xlabel="epoch", ylabel="mAP@.5:.95", title="curves, best first (dotted: not completed)")
        first.set_xlim(left=-0.5)  # from the first epoch on, also where each training has a single validation
        first.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if first.lines:
            first.legend(handles=first.lines[:10], fontsize=7, frameon=False)
        for ax, (name, values) in zip(panels, varied):
            _against(ax, name, values, curves, colours)
        for ax in (first, *panels):
            ax.grid(alpha=0.25)
        for ax in panels[len(varied) :]:
            ax.set_axis_off()


def _against(ax, name: str, values: Sequence[str], curves: Sequence[TrialCurve], colours: dict[int, tuple]) -> None:
    """Final mAP over the values of one setting; few or unordered values are drawn at equal distances."""
    shown = [(value, curve) for value, curve in zip(values, curves) if curve.points]
    numeric = all(math.isfinite(number(value)) for value, _ in shown)
    places = sorted({value for value, _ in shown}, key=float if numeric else str)
    is_listed = not numeric or len(places) <= MAX_LISTED_VALUES
    for value, curve in shown:
        x, colour = places.index(value) if is_listed else float(value), colours[curve.setting]
        ax.scatter(x, curve.points[-1][1], s=40, facecolors=colour if curve.is_completed else "none", edgecolors=colour)
    if is_listed:
        ax.set_xticks(range(len(places)), [short(place) for place in places])
        ax.set_xlim(-0.5, max(len(places), 1) - 0.5)
    elif 0 < LOG_AXIS_RATIO * float(places[0]) <= float(places[-1]):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")  # formulas are switched off in these plots
    ax.set(xlabel=name, ylabel="final mAP@.5:.95", title=f"{short(name)} (open: not completed)")
