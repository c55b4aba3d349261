"""Upstream's import path for the anchor check; the names live in the package."""

from yolov7fast.data.autoanchor import check_anchors, kmean_anchors

__all__ = ["check_anchors", "kmean_anchors"]
