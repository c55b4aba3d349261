"""The anchors that box sizes are judged by: those of a network description."""

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.files.settings_files import read_yaml

DEFAULT_CFG = "cfg/training/yolov7.yaml"


def anchors_of(cfg: str) -> np.ndarray:
    """(k, 2) widths and heights in pixels of all anchors of a network's YAML."""
    path = check_file(cfg, "cfg")
    values = read_yaml(path)
    levels = values.get("anchors") if isinstance(values, dict) else None
    try:
        anchors = np.array([pair for level in levels for pair in np.reshape(level, (-1, 2))], np.float64)  # type: ignore[union-attr]
    except (TypeError, ValueError):
        anchors = np.zeros((0, 2))
    if not len(anchors) or not (anchors > 0).all():
        raise UserError(f"--cfg {path} has no anchors; give the description of a YOLOv7 network, such as {DEFAULT_CFG}")
    return anchors
