"""The table of flags of training, evaluation and detection: one row defines a flag.

Parsers, run files, limits, resuming and trials all read it. A new flag is one row here, and its use.
"""

from collections.abc import Iterable

from yolov7fast.cli.flags import data, network, optimisation, run
from yolov7fast.cli.flags.row import Flag

__all__ = ["TABLE", "Flag", "flags_of", "register", "removed"]

# removed flags of earlier versions, and the reasons
REMOVED = {
    "fast_augment": "was removed: it changed pixels and lowered mAP@.5 on BCCD (0.843 against 0.866, three seeds)",
    "reduced_decode": "was removed: it changed the pixels of training images; --cache-images disk keeps every pixel",
    **dict.fromkeys(("torch_threads", "opencv_threads"), "was removed: set OMP_NUM_THREADS=N before the command"),
}

TABLE: list[Flag] = [*data.ROWS, *network.ROWS, *optimisation.ROWS, *run.ROWS]


def register(rows: Iterable[Flag]) -> None:
    """Add rows from outside this package, such as a further family's; they replace rows of their name and place."""
    TABLE.extend(rows)


def flags_of(command: str, family: str = "yolo") -> dict[str, Flag]:
    """The flags of a command (train, test, detect) of a family, by their names in the parsed options."""
    return {flag.dest: flag.at(command, family) for flag in TABLE if flag.exists_in(command, family)}


def removed(flag: str) -> str:
    """The reason why a flag of earlier versions was removed; empty for any other text."""
    why = REMOVED.get(flag.partition("=")[0].lstrip("-").replace("-", "_"), "")
    return f"{flag.partition('=')[0]} {why}" if why else ""
