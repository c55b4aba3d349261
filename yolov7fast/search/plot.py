"""Trials to look at: how each one learnt, and what each setting did to the result."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from yolov7fast.metrics.run_curves import number
from yolov7fast.plots.curves import figure, line_colours, short
from yolov7fast.search.report import Columns, rank
from yolov7fast.search.run import COMPLETED, Run
from yolov7fast.search.trainer import Trainer

MAX_PANELS = 8  # settings beyond that are left to the CSV
MAX_NAMED = 10  # lines with a name in the legend, best first
FEW = 6  # values of a setting that stand side by side, whatever lies between them
WIDE = 20  # a range over so many times its lowest value is drawn on a logarithmic axis


def draw(path: str | os.PathLike, runs: Sequence[Run], trainer: Trainer) -> None:
    """mAP by epoch, coloured by setting; then one panel for each setting that varies, its value against final_map."""
    settings = Columns(runs, trainer)
    values = dict(zip(settings.heads, zip(*map(settings.of, runs))))
    varied = [name for name in values if len(set(values[name])) > 1][:MAX_PANELS]
    columns = min(3, 1 + len(varied))
    rows = -(-(1 + len(varied)) // columns)
    with figure(Path(path), (5.2 * columns, 3.8 * rows), 130) as fig:
        axes = fig.subplots(rows, columns, squeeze=False).ravel()
        colours = _curves(axes[0], runs)
        for ax, name in zip(axes[1:], varied):
            _against(ax, name, values[name], runs, colours)
        for ax in axes[1 + len(varied) :]:
            ax.set_axis_off()


def _curves(ax, runs: Sequence[Run]) -> dict[int, tuple]:
    """One line for each run; returns the colour of each setting."""
    order = [place.setting for place in rank(runs)]
    colours = dict(zip(order, line_colours(len(order))))
    named: set[int] = set()
    for run in sorted(runs, key=lambda run: order.index(run.setting)):
        points = run.validated
        if not points:
            continue
        label = f"setting {run.setting}" if run.setting not in named and len(named) < MAX_NAMED else None
        named.add(run.setting)
        style = "-" if run.status == COMPLETED else ":"
        xs, ys = [p.epoch for p in points], [p.map for p in points]
        ax.plot(xs, ys, style, marker=".", color=colours[run.setting], label=label)
    ax.set(xlabel="epoch", ylabel="mAP@.5:.95", title="how they learnt (dotted: not completed)")
    ax.set_xlim(left=-0.5)  # from the first epoch on, also where each run has a single validation
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.grid(alpha=0.25)
    if named:
        ax.legend(fontsize=7, frameon=False)
    return colours


def _against(ax, name: str, values: Sequence[str], runs: Sequence[Run], colours: dict[int, tuple]) -> None:
    """Each run's final_map over its value of one setting; few or unordered values stand side by side."""
    shown = [(value, run) for value, run in zip(values, runs) if run.final.map is not None]
    numeric = all(math.isfinite(number(value)) for value, _ in shown)
    places = sorted({value for value, _ in shown}, key=float if numeric else str)
    apart = not numeric or len(places) <= FEW
    for value, run in shown:
        x = places.index(value) if apart else float(value)
        filled = colours[run.setting] if run.status == COMPLETED else "none"
        ax.scatter(x, run.final.map, s=40, facecolors=filled, edgecolors=[colours[run.setting]])
    if apart:
        ax.set_xticks(range(len(places)), [short(place) for place in places])
        ax.set_xlim(-0.5, max(len(places), 1) - 0.5)
    elif 0 < WIDE * float(places[0]) <= float(places[-1]):
        ticks = np.geomspace(float(places[0]), float(places[-1]), 4)
        ax.set_xscale("log")
        ax.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        ax.set_xticks([], minor=True)
    ax.set(xlabel=name, ylabel="final mAP@.5:.95", title=f"{short(name)} (open: not completed)")
    ax.grid(alpha=0.25)
