"""Which family of detectors a checkpoint belongs to: files name it, older ones show it by what they hold."""

from collections.abc import Mapping
from typing import Any

FAMILY_KEY = "family"


def family_of(checkpoint: Any) -> str:
    """The family's name. Files of upstream and of older versions hold no name: a DETR checkpoint describes its
    architecture, everything else is YOLO's."""
    if not isinstance(checkpoint, Mapping):
        return "yolo"
    return str(checkpoint.get(FAMILY_KEY) or ("detr" if "architecture" in checkpoint else "yolo"))
