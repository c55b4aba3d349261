"""Assigners by name. A further one is a module and an entry here."""

from yolov7fast.core.errors import UserError, shown
from yolov7fast.losses.assignment import Assigner, PlainAssigner
from yolov7fast.losses.simota import SimOTA
from yolov7fast.losses.tal import TAL

ASSIGNERS: dict[str, type[Assigner]] = {"plain": PlainAssigner, "ota": SimOTA, "tal": TAL}


def register(name: str, assigner: type[Assigner]) -> None:
    """Let losses use an assigner under this name: for those that are defined outside the package."""
    ASSIGNERS[name] = assigner


def find_assigner(name: str) -> type[Assigner]:
    """The assigner of that name; UserError if there is none."""
    if not isinstance(name, str) or name not in ASSIGNERS:
        raise UserError(f"there is no assigner {shown(name)}; known are {', '.join(sorted(ASSIGNERS))}")
    return ASSIGNERS[name]


def make_assigner(name: str, auxiliary: bool = False) -> Assigner:
    """auxiliary: the network has an auxiliary head."""
    return find_assigner(name).build(auxiliary)
