"""Upstream's import path for plots; the names live in the package."""

from yolov7fast.core.drawing import plot_images
from yolov7fast.evaluation.curve_plots import plot_mc_curve, plot_pr_curve
from yolov7fast.reports.run_plots import plot_results

__all__ = ["plot_images", "plot_mc_curve", "plot_pr_curve", "plot_results"]
