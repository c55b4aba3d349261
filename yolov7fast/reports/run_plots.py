"""Plots of whole runs: results by epoch, studies over image sizes, evolution."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.curve_plots import figure, line_colours, short
from yolov7fast.reports.run_results import Run, read_run

LOSS_TITLES = {"box": "Box", "obj": "Objectness", "cls": "Classification", "giou": "GIoU"}
METRIC_TITLES = {"precision": "Precision", "recall": "Recall", "map50": "mAP@0.5", "map": "mAP@0.5:0.95"}
LOSS_PANELS = 3


def plot_results(save_dir: str | os.PathLike) -> Path:
    """Draw the epochs of a run folder as 2 x 5 panels in results.png; returns its path.

    Points are measured epochs: neither losses of 0 nor epochs without validation are drawn. The parts of the loss are
    named as in results.csv.
    """
    path = Path(save_dir) / "results.png"
    run = read_run(path.parent)
    with figure(path, (14, 6), 200) as fig:
        for ax, (title, values) in zip(fig.subplots(2, 5).flat, _panels(run)):
            measured = np.isfinite(values)
            marker = "." if measured.sum() <= 60 else None
            ax.plot(run.epoch[measured], values[measured], marker=marker, linewidth=1.5)
            ax.set_title(short(title, 60), fontsize=10)
            ax.set_xlabel("epoch")
            ax.grid(alpha=0.25)
            ax.tick_params(labelsize=8)
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if not measured.any():
                ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color="grey")
    return path


def _panels(run: Run) -> list[tuple[str, np.ndarray]]:
    """Title and values (n,) of each panel, row by row: losses, P and R above; validation losses and mAPs below."""
    rows = []
    for losses, prefix, names in (
        (run.losses, "", ("precision", "recall")),
        (run.val_losses, "val ", ("map50", "map")),
    ):
        parts = [part for part in losses if part != "total"][:LOSS_PANELS]
        rows += [(prefix + LOSS_TITLES.get(part, part), losses[part]) for part in parts]
        rows += [("", np.full(len(run.epoch), np.nan))] * (LOSS_PANELS - len(parts))
        rows += [(METRIC_TITLES[name], run.metrics[name]) for name in names]
    return rows


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
                raise UserError(f"{file} is not a study file (rows of 13 numbers): {error}") from error
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
