"""Every plot of the project, under one name."""

from yolov7fast.plots.curves import plot_confusion, plot_mc_curve, plot_pr_curve
from yolov7fast.plots.draw import draw_boxes, plot_images
from yolov7fast.plots.runs import plot_evolution, plot_labels, plot_results, plot_study

__all__ = [
    "draw_boxes",
    "plot_confusion",
    "plot_evolution",
    "plot_images",
    "plot_labels",
    "plot_mc_curve",
    "plot_pr_curve",
    "plot_results",
    "plot_study",
]
