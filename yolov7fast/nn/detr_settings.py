"""The keys of a DETR network's configuration (`network` of a run file) and the values that they may have."""

import importlib.util
from collections.abc import Mapping
from functools import cache
from typing import Any

from yolov7fast.core.errors import UserError

BACKBONE = "backbone_config"  # the only key that holds keys
NOT_SETTINGS = ("id2label", "label2id", "model_type", "architectures", "transformers_version", BACKBONE)


@cache
def config_class(architecture: str, section: str) -> type | None:
    """The class of transformers that checks the keys of `network` (section '') or of its backbone, if installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from yolov7fast.nn import detr  # torch takes seconds to load

    library, kind = detr.transformers(), detr.architecture_of(architecture)
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
