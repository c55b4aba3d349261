"""Families of detectors by name, and the family of a checkpoint.

Modules are named, not imported, so that training and prediction import only what they need.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.text import nearest, printable

FAMILY_KEY = "family"
WEIGHTS_FOLDER = "weights"  # of checkpoints, below a run's folder, unless the family has them there itself


class FamilyEntry(NamedTuple):
    training: str  # module:class of `training.family.Family`
    predictor: str  # module with `load_predictor`, see `predictors.predictor`


FAMILIES: dict[str, FamilyEntry] = {
    "yolo": FamilyEntry("yolov7fast.training.yolo_family:YoloFamily", "yolov7fast.predictors.yolo_predictor"),
    "detr": FamilyEntry("yolov7fast.training.detr_family:DetrFamily", "yolov7fast.predictors.detr_predictor"),
}


def register(name: str, training: str, predictor: str) -> None:
    """Add a family that is defined outside the package; see `FamilyEntry`."""
    FAMILIES[name] = FamilyEntry(training, predictor)


def entry_of(name: str, origin: str = "") -> FamilyEntry:
    """The row of a family. origin: the file that names it, for the message."""
    if name not in FAMILIES:
        where = f"{origin}: " if origin else ""
        known = ", ".join(FAMILIES)
        raise UserError(
            f"{where}no family of detectors is called '{printable(name, 80)}': one of {known}{nearest(name, FAMILIES)}"
        )
    return FAMILIES[name]


def family_of(checkpoint: Any) -> str:
    """The family's name. Files of upstream and of older versions have none: those with an architecture are DETR's."""
    if not isinstance(checkpoint, Mapping):
        return "yolo"
    family = checkpoint.get(FAMILY_KEY)
    if family is None or (isinstance(family, str) and not family):
        return "detr" if "architecture" in checkpoint else "yolo"
    return family if isinstance(family, str) else shown(family)
