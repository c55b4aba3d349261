"""Assigners by name: what a loss can use. A further one is a module and an entry here."""

from yolov7fast.assign.base import Assigner
from yolov7fast.assign.ota import Ota
from yolov7fast.assign.plain import Plain
from yolov7fast.assign.tal import Tal
from yolov7fast.core.errors import UserError, shown

ASSIGNERS: dict[str, type[Assigner]] = {"plain": Plain, "ota": Ota, "tal": Tal}


def register(name: str, assigner: type[Assigner]) -> None:
    """Let losses use an assigner under this name: for those that live outside the package."""
    ASSIGNERS[name] = assigner


def find_assigner(name: str) -> type[Assigner]:
    """The assigner of that name; there may be none."""
    if not isinstance(name, str) or name not in ASSIGNERS:
        raise UserError(f"there is no assigner {shown(name)}; known are {', '.join(sorted(ASSIGNERS))}")
    return ASSIGNERS[name]


def make_assigner(name: str, auxiliary: bool = False) -> Assigner:
    """auxiliary: the network has an auxiliary head."""
    return find_assigner(name).build(auxiliary)
