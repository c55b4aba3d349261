"""Configurations of transformers' detectors, from checkpoints and run files, held to sizes that a machine can build."""

from collections.abc import Iterator, Mapping
from typing import Any

from yolov7fast.core.bounded import is_whole
from yolov7fast.core.errors import UserError, shown

LARGEST = 100_000  # of any number of things; classes are the most
MOST_LAYERS = 100  # in a row
WIDEST = 8_192  # channels
MOST_WEIGHTS = 5 * 10**9
COUNTED = ("layers", "depths", "levels", "points")  # ends of keys
WIDE = ("d_model", "_dim", "hidden_sizes", "embedding_size", "channels")


def check_sizes(config: Any, where: str) -> None:
    """Refuse numbers with which building would take all memory, or for ever. where: begins the message."""
    if not isinstance(config, Mapping):
        raise UserError(f"{where}: its configuration is {shown(config)}, not a mapping")
    layers, width = 0, 1
    for key, value in _numbers(config, ""):
        limit = MOST_LAYERS if key.endswith(COUNTED) else WIDEST if key.endswith(WIDE) else LARGEST
        if not is_whole(value, -limit, limit):
            raise UserError(f"{where}: {shown(key)} is {shown(value)}; at most {limit:,} is possible")
        layers += value if key.endswith(COUNTED) else 0
        width = max(width, value) if key.endswith(WIDE) else width
    if layers * width * width * 10 > MOST_WEIGHTS:  # about ten matrices in each
        raise UserError(f"{where}: {layers} layers of {width} channels would not fit into memory")


def _numbers(value: Any, key: str) -> Iterator[tuple[str, int]]:
    """Every integer with the key that it stands under."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _numbers(item, str(name)[:100])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item, key)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield key, value
