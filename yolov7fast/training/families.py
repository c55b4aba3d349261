"""From a family's name to the class that trains it. The table is `checkpoint.families.FAMILIES`; a row adds one."""

from importlib import import_module
from typing import cast

from yolov7fast.checkpoint.families import FAMILIES, entry_of, register
from yolov7fast.training.family import Family

__all__ = ["FAMILIES", "family_class", "register"]


def family_class(name: str) -> type[Family]:
    """The class of a family, by which its runs are started."""
    module, _, class_name = entry_of(name).training.partition(":")
    return cast(type[Family], getattr(import_module(module), class_name))
