"""Trials to look at: how each one learnt, and what each setting did to the result."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from yolov7fast.evaluation.run_curves import number
from yolov7fast.plots.curves import figure, line_colours, short
from yolov7fast.search.report import columns, rank
from yolov7fast.search.run import COMPLETED, Run
from yolov7fast.search.trainer import Trainer

MAX_PANELS = 8  # settings beyond that are left to the CSV
FEW = 6  # values of a setting that stand side by side, whatever lies between them
WIDE = 20  # a range over so many times its lowest value is drawn on a logarithmic axis


def draw(path: Path, runs: Sequence[Run], trainer: Trainer) -> None:
    """mAP by epoch, coloured by setting; then one panel for each setting that varies, its value against final mAP."""
    varied = [(name, values) for name, values in columns(runs, trainer).items() if len(set(values)) > 1][:MAX_PANELS]
    width = min(3, 1 + len(varied))
    height = -(-(1 + len(varied)) // width)
    order = [place.setting for place in rank(runs)]
    colours = dict(zip(order, line_colours(len(order))))
    with figure(path, (5.2 * width, 3.8 * height), 130) as fig:
        curves, *panels = fig.subplots(height, width, squeeze=False).ravel()
        for run in (run for setting in order for run in runs if run.setting == setting and run.validated):
            style, points = "-" if run.status == COMPLETED else ":", [(p.epoch, p.map) for p in run.validated]
            curves.plot(*zip(*points), style, marker=".", color=colours[run.setting], label=run.name)
        curves.set(xlabel="epoch", ylabel="mAP@.5:.95", title="how they learnt, best first (dotted: not completed)")
        curves.set_xlim(left=-0.5)  # from the first epoch on, also where each run has a single validation
        curves.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if curves.lines:
            curves.legend(handles=curves.lines[:10], fontsize=7, frameon=False)
        for ax, (name, values) in zip(panels, varied):
            _against(ax, name, values, runs, colours)
        for ax in (curves, *panels):
            ax.grid(alpha=0.25)
        for ax in panels[len(varied) :]:
            ax.set_axis_off()


def _against(ax, name: str, values: Sequence[str], runs: Sequence[Run], colours: dict[int, tuple]) -> None:
    """Each run's final mAP over its value of one setting; few or unordered values stand side by side."""
    shown = [(value, run) for value, run in zip(values, runs) if run.final.map is not None]
    numeric = all(math.isfinite(number(value)) for value, _ in shown)
    places = sorted({value for value, _ in shown}, key=float if numeric else str)
    apart = not numeric or len(places) <= FEW
    for value, run in shown:
        filled = colours[run.setting] if run.status == COMPLETED else "none"
        x = places.index(value) if apart else float(value)
        ax.scatter(x, run.final.map, s=40, facecolors=filled, edgecolors=[colours[run.setting]])
    if apart:
        ax.set_xticks(range(len(places)), [short(place) for place in places])
        ax.set_xlim(-0.5, max(len(places), 1) - 0.5)
    elif 0 < WIDE * float(places[0]) <= float(places[-1]):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")  # the figures of this package read no formulas
    ax.set(xlabel=name, ylabel="final mAP@.5:.95", title=f"{short(name)} (open: not completed)")
