"""tools/train_detr.py for trials: its flags, and inside `network` what the base configuration names there."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.cli_detr import check_options, train_parser
from engine.trials.trainer import ROOT, Budget, FlagTrainer
from utils.errors import UserError

HEADINGS = ("network", "model.network")


class DetrTrainer(FlagTrainer):
    """`training.optimizer.lr` and `lr` are one setting; `model.network.num_queries` is an inner one."""

    def __init__(self, base_config: str | Path, budget: Budget, script: Path = ROOT / "tools" / "train_detr.py"):
        super().__init__(base_config, budget, script, train_parser(), ".pth")

    def check_options(self, options: Namespace) -> None:
        check_options(options)

    def inner_name(self, heading: str, rest: str) -> str | None:
        return f"network.{rest}" if heading in HEADINGS and rest in self.base["network"] else None

    def inner_names(self) -> list[str]:
        return [f"{heading}.{name}" for heading in HEADINGS for name in self.base["network"]]

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        """Of the kind that the base configuration has there."""
        known = self.inner_base(name)
        number = isinstance(known, int | float) and not isinstance(known, bool)
        fits = isinstance(value, int | float) and not isinstance(value, bool) if number else type(value) is type(known)
        if not fits:
            raise UserError(f"{where}: {name} must be like {known!r}, not {value!r}")
        return value

    def inner_base(self, name: str) -> Any:
        return self.base["network"][name.removeprefix("network.")]

    def inner_content(self, inner: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        changed = {name.removeprefix("network."): value for name, value in inner.items()}
        return {"network": {**settings.get("network", self.base["network"]), **changed}}
