"""Upstream's import path for plots; the names live in the package."""

from yolov7fast.plots import plot_images, plot_labels, plot_mc_curve, plot_pr_curve, plot_results

__all__ = ["plot_images", "plot_labels", "plot_mc_curve", "plot_pr_curve", "plot_results"]
