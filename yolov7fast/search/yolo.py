"""train.py for trials: its flags, and inside `hyp` the entries of the hyper-parameter file (`lr0` or `hyp.lr0`)."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.files.yaml_file import read_yaml
from yolov7fast.search.trainer import Budget, FlagTrainer
from yolov7fast.training.hyperparameters import KEYS, check_hyp, load_hyp


class YoloTrainer(FlagTrainer):
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
