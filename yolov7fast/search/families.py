"""The training commands of the families for trials: what each one adds to the flags that a run file holds.

train.py: inside `hyp` the entries of the hyper-parameter file (`lr0` or `hyp.lr0`). tools/train_detr.py: inside
`network` the keys of the network's configuration.
"""

import importlib.util
from argparse import Namespace
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from yolov7fast.cli.run_file import family_of_run_file, merge
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.files.yaml_file import read_yaml
from yolov7fast.search.trainer import Budget, Trainer
from yolov7fast.training.hyperparameters import KEYS, check_hyp, load_hyp

HEADINGS = ("network", "model.network")
BACKBONE = "backbone_config"  # the only key that holds keys of its own
NOT_SETTINGS = ("id2label", "label2id", "model_type", "architectures", "transformers_version", BACKBONE)


def trainer_for(base_config: str) -> type[Trainer]:
    """The trainer of the family that a base configuration is for."""
    return trainer_class(family_of_run_file(base_config))


def trainer_class(family: str) -> type[Trainer]:
    if family in (known := {kind.family: kind for kind in (YoloTrainer, DetrTrainer)}):
        return known[family]
    from yolov7fast.families.registry import family_class

    registered = family_class(family)
    parts = {"family": family, "suffix": registered.checkpoint_suffix, "weights": registered.weights_folder}
    return type("FamilyTrainer", (Trainer,), parts)


class YoloTrainer(Trainer):
    family, suffix = "yolo", ".pt"

    def __init__(self, base_config: str | Path, budget: Budget, command: list[str] | None = None):
        super().__init__(base_config, budget, command)
        self.base_hyp = load_hyp(self.base["hyp"])

    @classmethod
    def knows(cls, key: str) -> bool:
        return key.removeprefix("hyp.") in KEYS or super().knows(key)

    def check_options(self, options: Namespace) -> None:
        super().check_options(options)
        if options.cfg:
            check_description(check_file(options.cfg, "cfg"))
        load_hyp(options.hyp)

    def files_of(self, options: Mapping[str, Any]) -> dict[str, str]:
        hyp = options["hyp"]
        hyp_file = hyp.get("base", "") if isinstance(hyp, Mapping) else hyp
        return super().files_of(options) | {options["cfg"]: "cfg", hyp_file: "hyp"}

    def inner_name(self, heading: str, rest: str) -> str | None:
        if rest not in KEYS or heading not in ("", "hyp"):
            return None
        return rest

    def inner_names(self) -> list[str]:
        return [*KEYS, *(f"hyp.{name}" for name in KEYS)]

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        return check_hyp(self.base_hyp | {name: value}, where)[name]

    def inner_base(self, name: str) -> Any:
        return self.base_hyp.get(name, KEYS[name].default)

    def inner_content(self, inner: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        source = settings.get("hyp", self.base["hyp"])
        below = source if isinstance(source, Mapping) else {"base": source}
        return {"hyp": {**below, **inner}}


def check_description(path: str) -> None:
    """Refuse a cfg that is plainly no network; its rows are read by the training itself, whose modules load slowly."""
    content = read_yaml(path, "cfg")
    if not isinstance(content, dict) or not ("base" in content or {"backbone", "head"} <= content.keys()):
        raise UserError(f"cfg {path} describes no network; it must hold backbone and head, as those in cfg/ do")


# --- DETR -------------------------------------------------------------------------------------------------------------


@cache
def config_class(architecture: str, section: str) -> type | None:
    """The class of transformers that checks the keys of `network` (section '') or of its backbone, if installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from yolov7fast.nn import detr  # torch takes seconds to load

    library, kind = detr.transformers(), detr.architecture_of(architecture)
    return type(library.AutoConfig.for_model(kind.backbone)) if section else getattr(library, kind.config)


class DetrTrainer(Trainer):
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
