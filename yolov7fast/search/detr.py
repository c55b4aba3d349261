"""tools/train_detr.py for trials: its flags, and inside `network` the keys of the network's configuration."""

import importlib.util
from collections.abc import Mapping
from functools import cache
from typing import Any

from yolov7fast.cli.run_file import merge
from yolov7fast.core.errors import UserError
from yolov7fast.nn import detr
from yolov7fast.search.trainer import FlagTrainer

HEADINGS = ("network", "model.network")
BACKBONE = "backbone_config"  # the only key that holds keys of its own
NOT_SETTINGS = ("id2label", "label2id", "model_type", "architectures", "transformers_version", BACKBONE)


@cache
def config_class(architecture: str, section: str) -> type | None:
    """The class of transformers that checks the keys of `network` (section '') or of its backbone, if installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    library, kind = detr.transformers(), detr.architecture_of(architecture)
    return type(library.AutoConfig.for_model(kind.backbone)) if section else getattr(library, kind.config)


class DetrTrainer(FlagTrainer):
    """`training.optimizer.lr` and `lr` are one setting; `model.network.num_queries` is an inner one.

    Inner settings are the keys that the base names and, where transformers is installed, all of its configuration's.
    """

    family, suffix, weights = "detr", ".pth", ""

    @classmethod
    def knows(cls, key: str) -> bool:
        return key.startswith(tuple(f"{heading}." for heading in HEADINGS)) or super().knows(key)

    def inner_name(self, heading: str, rest: str) -> str | None:
        known = {f"{start}.{BACKBONE}": BACKBONE for start in HEADINGS} | dict.fromkeys(HEADINGS, "")
        section = known.get(heading)
        if section is None or not (rest in self._named(section) or rest in self._defaults(section)):
            return None
        return ".".join(filter(None, ("network", section, rest)))

    def inner_names(self) -> list[str]:
        found = []
        for section in ("", BACKBONE):
            names = {**self._named(section), **self._defaults(section)}
            found += [".".join(filter(None, (start, section, name))) for start in HEADINGS for name in names]
        return found

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        """As transformers takes it or, without it, of the kind that the base configuration has there."""
        known, (section, key) = self.inner_base(name), _split(name)
        value = _as_number(value, known)
        kind = config_class(self.base["architecture"], section)
        if kind is None:
            fits = _is_like(value, known)
        else:
            try:
                kind(**{key: value})
                fits = True
            except Exception:  # the classes of a validator of its own, which changes between versions
                fits = False
        if not fits:
            raise UserError(f"{where}: {name} must be like {known!r}, not {value!r}")
        return value

    def inner_base(self, name: str) -> Any:
        section, key = _split(name)
        named = self._named(section)
        return named[key] if key in named else self._defaults(section).get(key)

    def inner_content(self, inner: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of the backbone, too, are laid over those of the base, as `base:` does in run files."""
        changed: dict[str, Any] = {}
        for name, value in inner.items():
            section, key = _split(name)
            (changed.setdefault(section, {}) if section else changed)[key] = value
        return {"network": merge(settings.get("network", self.base["network"]), changed)}

    def _named(self, section: str) -> Mapping[str, Any]:
        """What the base configuration names there."""
        network = self.base["network"]
        return network.get(section, {}) if section else network

    def _defaults(self, section: str) -> dict[str, Any]:
        """All that can be named there and its value in transformers; nothing where that is not installed."""
        kind = config_class(self.base["architecture"], section)
        values = kind().to_dict() if kind else {}
        return {k: v for k, v in values.items() if k not in NOT_SETTINGS and not k.startswith("_")}


def _split(name: str) -> tuple[str, str]:
    """'network.backbone_config.depths' -> ('backbone_config', 'depths'); 'network.d_model' -> ('', 'd_model')."""
    section, _, key = name.removeprefix("network.").rpartition(".")
    return section, key


def _as_number(value: Any, known: Any) -> Any:
    """8.0 for a whole number, '1e-3' (which YAML 1.1 reads as text) for a broken one."""
    if type(known) is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(known, float) and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _is_like(value: Any, known: Any) -> bool:
    """Whether a value is of the kind of another; a whole number will do for a broken one."""
    return type(value) is type(known) or (isinstance(known, float) and type(value) is int)
