"""The report's plots as SVG text, small enough to be read on a phone."""

import io
import re

import numpy as np
from matplotlib.ticker import MaxNLocator

from yolov7fast.plots.curves import line_colours, new_figure, short
from yolov7fast.reports.render import Plot
from yolov7fast.reports.runs import Run

SIZE = (5.2, 3.4)  # inches; at the width of a phone the text is still some 10 px high
LABELS = {"map": "mAP@.5:.95", "map50": "mAP@.5", "precision": "precision", "recall": "recall"}


def _svg(name: str, draw, size=SIZE) -> str:
    """SVG of what `draw(ax)` draws; `name` keeps its inner ids apart from those of other plots on the page."""
    settings = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}
    with new_figure(size, 100, **settings) as fig:
        draw(fig.add_subplot())
        buffer = io.StringIO()
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'\bid="((?:figure|axes|text|line2d|patch|matplotlib|legend|xtick|ytick)[^"]*)"', "", text)


def curves(runs: list[Run], name: str, title: str, ylabel: str, pick, by_hours: bool = False) -> Plot | None:
    """One line per run; `pick(run)` gives its values by epoch, or None. No plot where no run has any."""
    drawn = []
    for run, colour in zip(runs, line_colours(len(runs))):
        x, y = run.hours if by_hours else run.epoch, pick(run)
        if x is not None and y is not None and np.isfinite(y).any():
            drawn.append((run, colour, x, y))
    if not drawn:
        return None

    def draw(ax):
        for run, colour, x, y in drawn:
            known = np.isfinite(y)
            marker = "." if known.sum() <= 40 else None
            ax.plot(x[known], y[known], marker=marker, linewidth=1.8, color=colour, label=short(run.name, 28))
        ax.set(xlabel="hours" if by_hours else "epoch", ylabel=ylabel)
        ax.grid(alpha=0.3)
        if not by_hours:
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.legend(fontsize=9, framealpha=0.8)

    return Plot(name, title, _svg(name, draw))


def stages(runs: list[Run]) -> Plot | None:
    """Stacked bars: milliseconds of an iteration by stage, for runs with a profile."""
    profiled = [run for run in runs if run.profile]
    if not profiled:
        return None
    names = list(dict.fromkeys(stage for run in profiled for stage in run.profile["stages"]))
    colours = dict(zip(names, line_colours(len(names))))

    def draw(ax):
        left = np.zeros(len(profiled))
        for stage in names:
            width = np.nan_to_num([run.profile["stages"].get(stage, {}).get("mean_ms", 0.0) for run in profiled])
            ax.barh(range(len(profiled)), width, left=left, color=colours[stage], label=short(stage), height=0.6)
            left += width
        ax.set_yticks(range(len(profiled)), [short(run.name, 16) for run in profiled])
        ax.invert_yaxis()
        ax.set(xlabel="ms per iteration")
        ax.legend(fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)

    return Plot("stages", "Where an iteration's time goes", _svg("stages", draw, (5.2, 2.2 + 0.4 * len(profiled))))
