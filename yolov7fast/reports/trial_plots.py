"""Plot of short trainings with different settings: the curve of each, and final mAP against each setting."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from yolov7fast.evaluation.curve_plots import figure, line_colours, short
from yolov7fast.evaluation.run_curves import number

MAX_PANELS = 8  # further settings are left to the CSV
FEW = 6  # up to so many values of a setting are drawn at equal distances
WIDE = 20  # a range over so many times its lowest value has a logarithmic axis


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
    is_listed = not numeric or len(places) <= FEW
    for value, curve in shown:
        x, colour = places.index(value) if is_listed else float(value), colours[curve.setting]
        ax.scatter(x, curve.points[-1][1], s=40, facecolors=colour if curve.is_completed else "none", edgecolors=colour)
    if is_listed:
        ax.set_xticks(range(len(places)), [short(place) for place in places])
        ax.set_xlim(-0.5, max(len(places), 1) - 0.5)
    elif 0 < WIDE * float(places[0]) <= float(places[-1]):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")  # the figures of this package read no formulas
    ax.set(xlabel=name, ylabel="final mAP@.5:.95", title=f"{short(name)} (open: not completed)")
