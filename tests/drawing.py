"""Curves take seconds to draw: tests of other things put files of the same names in their place."""

from pathlib import Path

import pytest

CURVES = ("PR_curve.png", "F1_curve.png", "P_curve.png", "R_curve.png", "confusion_matrix.png")
DRAWN_BY = {  # place of use -> the function
    "yolov7fast.evaluation.eval_outputs.draw_curves": "yolov7fast.evaluation.eval_outputs.draw_curves",
    "yolov7fast.training.logging.reporter.plot_results": "yolov7fast.reports.run_plots.plot_results",
}


def no_curves(result, matrix, names, save_dir: Path) -> None:
    for name in CURVES:
        (save_dir / name).write_bytes(b"not drawn")


def no_results_plot(save_dir: Path) -> None:
    (save_dir / "results.png").write_bytes(b"not drawn")


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    for place, function in zip(DRAWN_BY, (no_curves, no_results_plot), strict=True):
        patch.setattr(place, function)
