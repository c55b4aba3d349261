"""Keys and values of the configurations of DETR networks (`network` of a run file), and their limits."""

import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.settings_files import is_whole

BACKBONE = "backbone_config"  # the only key that holds keys
NOT_SETTINGS = ("id2label", "label2id", "model_type", "architectures", "transformers_version", BACKBONE)
LARGEST = 100_000  # of any number of things; classes are the most
MOST_LAYERS = 100  # in a row
WIDEST = 8_192  # channels
MOST_WEIGHTS = 5 * 10**9
COUNTED = ("layers", "depths", "levels", "points")  # ends of keys
WIDE = ("d_model", "_dim", "hidden_sizes", "embedding_size", "channels")


@cache
def config_class(architecture: str, section: str) -> type | None:
    """The class of transformers with the keys of `network` (section '') or of its backbone; None if not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from yolov7fast.nn import detr_model  # torch takes seconds to load

    library, kind = detr_model.transformers(), detr_model.architecture_of(architecture)
    return type(library.AutoConfig.for_model(kind.backbone)) if section else getattr(library, kind.config)


def network_settings(architecture: str, network: Mapping[str, Any]) -> dict[str, Any]:
    """Each key, such as `network.num_queries`, with its value in `network` or its default.

    Without transformers only the keys that `network` names.
    """
    found = {}
    for section in ("", BACKBONE):
        kind = config_class(architecture, section)
        defaults = kind().to_dict() if kind else {}
        values = {k: v for k, v in defaults.items() if k not in NOT_SETTINGS and not k.startswith("_")}
        values |= network.get(section, {}) if section else network
        found |= {".".join(filter(None, ("network", section, key))): value for key, value in values.items()}
    return found


def check_network_setting(architecture: str, name: str, value: Any, known: Any, where: str) -> Any:
    """The value as transformers takes it or, without transformers, of the type of `known`, the base's value."""
    *section, key = name.split(".")[1:]
    if type(known) is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    kind = config_class(architecture, "".join(section))
    try:
        if isinstance(known, float) and isinstance(value, str):
            value = float(value)  # YAML 1.1 reads '1e-3' as text
        if kind is not None:
            kind(**{key: value})
        elif type(value) is not type(known) and not (isinstance(known, float) and type(value) is int):
            raise TypeError
    except Exception:  # the validators of transformers raise classes that change between versions
        raise UserError(f"{where}: {name} must be like {known!r}, not {value!r}") from None
    return value


def check_sizes(config: Any, where: str) -> None:
    """UserError for numbers with which building would need too much memory or time. where: begins the message."""
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
    """Every integer with its key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _numbers(item, str(name)[:100])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item, key)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield key, value
