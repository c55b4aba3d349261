"""Evaluation curves and the confusion matrix as plots: arrays and a path in, a file out.

Figures are built with matplotlib's objects (no pyplot, no global list of figures), one at a time behind a lock, so they
may be drawn from any thread and are freed when done. Files appear in one step.
"""

import functools
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from yolov7fast.core.drawing import Names, class_name
from yolov7fast.core.files.atomic import atomic_file
from yolov7fast.core.text import printable

MAX_CLASS_LINES = 20  # with more classes their lines turn grey and lose their legend
_LOCK = threading.Lock()


@functools.cache
def _font_families() -> list[str]:
    """matplotlib's own font, then fonts of this machine for Chinese, Japanese or Korean class names."""
    wanted = ("CJK", "JhengHei", "YaHei", "PingFang", "WenQuanYi", "Droid Sans Fallback", "AR PL", "SimHei")
    found = [name for name in font_manager.get_font_names() if any(part in name for part in wanted)]
    return ["DejaVu Sans", *sorted(found)]


@contextmanager
def figure(path: str | os.PathLike, size: tuple[float, float], dpi: int = 200) -> Iterator[Figure]:
    """A new figure of `size` inches, saved to `path` when the block ends without error."""
    look: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False}
    look |= {"font.family": _font_families(), "text.parse_math": False}  # `$` in a name is a character
    with _LOCK, matplotlib.rc_context(look), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # no font for a name: boxes, no warning
        fig = Figure(figsize=size, dpi=dpi, layout="constrained")
        FigureCanvasAgg(fig)
        yield fig
        with atomic_file(Path(path), durable=False) as file:
            fig.savefig(file, dpi=dpi, format=Path(path).suffix.removeprefix("."))


def line_colours(count: int) -> list:
    """Colours for `count` lines: ten distinct ones, or twenty."""
    cmap = matplotlib.colormaps["tab10" if count <= 10 else "tab20"]
    return [cmap(i % cmap.N) for i in range(count)]


def short(text: str, length: int = 24) -> str:
    """`text`, printable, shortened to `length` characters."""
    text = printable(text, 1000)
    return text if len(text) <= length else text[: length - 1] + "…"


def plot_pr_curve(
    recall: np.ndarray,
    precision: np.ndarray,
    ap50: np.ndarray,
    path: str | os.PathLike,
    names: Names = None,
    classes: Sequence[int] | None = None,
) -> None:
    """Precision over recall at IoU 0.5.

    recall (R,); precision (C, R), one row per class that has labels; ap50 (C,); classes (C,): the ids of these rows,
    which name the lines (positions are not ids if a class is absent).
    """
    precision, ap50 = np.atleast_2d(precision), np.asarray(ap50, float)
    labels = [f"{value:.3f}" for value in ap50]
    mean = f"all classes {ap50.mean() if ap50.size else 0:.3f} mAP@0.5"
    _class_curves(recall, precision, labels, mean, path, names, classes, "Recall", "Precision")


def plot_mc_curve(
    confidence: np.ndarray,
    values: np.ndarray,
    path: str | os.PathLike,
    names: Names = None,
    classes: Sequence[int] | None = None,
    ylabel: str = "F1",
) -> None:
    """A metric over the confidence threshold: confidence (K,), values (C, K), classes (C,) the ids of the rows."""
    values = np.atleast_2d(values)
    mean = values.mean(0) if len(values) else np.zeros(len(confidence))
    best = int(mean.argmax()) if mean.size else 0
    label = f"all classes {mean[best]:.2f} at {confidence[best]:.3f}" if mean.size else "all classes"
    labels = [f"{row.max():.2f} at {confidence[row.argmax()]:.3f}" for row in values] if len(confidence) else []
    _class_curves(confidence, values, labels, label, path, names, classes, "Confidence", ylabel)


def _class_curves(x, rows, row_labels, mean_label, path, names, classes, xlabel, ylabel) -> None:
    """Thin lines for the classes, a thick one for their mean, legend next to the axes."""
    classes = range(len(rows)) if classes is None else classes
    with figure(path, (9, 6), 250) as fig:
        ax = fig.add_subplot()
        if len(rows) <= MAX_CLASS_LINES:
            for row, label, class_id, colour in zip(rows, row_labels, classes, line_colours(len(rows))):
                ax.plot(x, row, linewidth=1.2, color=colour, label=f"{short(class_name(names, class_id))} {label}")
        else:
            ax.plot(x, np.transpose(rows), linewidth=0.8, color="grey", alpha=0.5)
            ax.plot([], [], linewidth=0.8, color="grey", label=f"each of {len(rows)} classes")
        if len(rows):
            ax.plot(x, np.mean(rows, 0), linewidth=3, color="blue", label=mean_label)
        else:
            ax.text(0.5, 0.5, "nothing to plot: no labels", ha="center", color="grey")
        ax.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, 1), ylim=(0, 1.02))
        ax.grid(alpha=0.25)
        if len(rows):
            fig.legend(loc="outside right upper", fontsize=8, frameon=False)


def plot_confusion(
    matrix: np.ndarray, path: str | os.PathLike, names: Names = None, normalize: bool = True, title: str = ""
) -> None:
    """A confusion matrix (nc + 1, nc + 1): rows predicted, columns true, the last of each the background.

    Normalised, each column sums to 1; cells below 0.005 stay white. Cells show numbers up to 29 classes.
    """
    matrix = np.asarray(matrix, float)
    nc = len(matrix) - 1
    shown = matrix / (matrix.sum(0, keepdims=True) + 1e-6) if normalize else matrix.copy()
    shown[shown < 0.005] = np.nan
    named = names is not None and len(names) == nc and nc < 99
    ticks = [short(class_name(names, i), 18) if named else str(i) for i in range(nc)]
    step = 1 if named else max(nc // 40, 1)
    places = [*range(0, nc, step), nc]
    font = float(np.clip(260 / (nc + 1), 4.5, 12))
    with figure(path, (12, 9), 250) as fig:
        ax = fig.add_subplot()
        edges = np.arange(nc + 2) - 0.5
        limits = {"vmin": 0, "vmax": 1 if normalize else None}
        cells = ax.pcolormesh(edges, edges, shown, cmap="Blues", **limits, edgecolors="0.9", linewidth=0.3)
        ax.invert_yaxis()
        fig.colorbar(cells, ax=ax, fraction=0.04, pad=0.02)
        rotation = 0 if nc < 8 else 90
        ax.set_xticks(places, [*ticks[::step], "background FP"], rotation=rotation, fontsize=font)
        ax.set_yticks(places, [*ticks[::step], "background FN"], fontsize=font)
        ax.set(xlabel="True", ylabel="Predicted", title=title)
        if nc < 30:
            for (row, column), value in np.ndenumerate(shown):
                if np.isfinite(value):
                    text = f"{value:.2f}" if normalize else f"{value:.0f}"
                    dark = value > (0.5 if normalize else np.nanmax(shown) / 2)
                    colour = "white" if dark else "black"
                    ax.text(column, row, text, ha="center", va="center", color=colour, fontsize=font * 0.9)
