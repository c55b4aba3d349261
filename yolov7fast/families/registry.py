"""The families of detectors by name. A new one is registered by one line here, or by `register` from outside.

A checkpoint and opt.yaml name their family; `checkpoint.family` reads it, also from files that are older than the key.
"""

from importlib import import_module
from typing import cast

from yolov7fast.core.errors import UserError
from yolov7fast.core.suggest import nearest
from yolov7fast.training.family import Family

# name -> module:class; imported when it is needed, since transformers alone takes seconds
FAMILIES: dict[str, str] = {
    "yolo": "yolov7fast.families.yolo.family:YoloFamily",
    "detr": "yolov7fast.families.detr.family:DetrFamily",
}


def register(name: str, target: str) -> None:
    """Let `target`, written as module:class, be the family of this name."""
    FAMILIES[name] = target


def family_class(name: str) -> type[Family]:
    """The class of a family, by which its runs are started."""
    if name not in FAMILIES:
        raise UserError(
            f"no family of detectors is called '{name}': one of {', '.join(FAMILIES)}{nearest(name, FAMILIES)}"
        )
    module, _, class_name = FAMILIES[name].partition(":")
    return cast(type[Family], getattr(import_module(module), class_name))
