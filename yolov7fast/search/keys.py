"""Files of trials: lists of settings, their names and values checked before anything runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.json_file import read_json
from yolov7fast.core.files.paths import check_path
from yolov7fast.core.files.shipped import nearest_shipped, shipped_file
from yolov7fast.core.files.yaml_file import read_yaml
from yolov7fast.core.text import printable
from yolov7fast.search.ledger import FIRST


class Keys(Protocol):
    """What a trainer knows of its settings; every complaint begins with `where`."""

    def name(self, key: str, where: str) -> str:
        """The one name of a setting that may be spelt in several ways."""
        ...

    def value(self, name: str, value: Any, where: str) -> Any:
        """The value as the trainer takes it."""
        ...

    def check(self, settings: Mapping[str, Any], where: str) -> None:
        """Whether these settings can go together."""


def read_trials(path: str | Path, keys: Keys) -> list[dict[str, Any]]:
    """The settings of each trial, by their one name."""
    content = read_file(path)
    if not isinstance(content, list) or not content:
        raise UserError(f'{path} must hold a list of trials, such as [{{"lr0": 0.01}}, {{"lr0": 0.02}}]')
    trials = []
    for number, entry in enumerate(content, FIRST):
        where = f"{path}: trial {number}"
        if not isinstance(entry, dict):
            raise UserError(f'{where} must be an object of settings, such as {{"lr0": 0.01}}, not {shown(entry)}')
        settings = named(flatten(entry), keys, where)
        keys.check(settings, where)
        trials.append(settings)
    return trials


def read_file(path: str | Path) -> Any:
    """JSON or YAML, by the file's ending."""
    check_path(path)
    path = Path(path)
    if not path.is_file():
        path = shipped_file(str(path), "experiment") or path
    if not path.is_file():
        raise UserError(f"{path} does not exist{nearest_shipped(str(path), 'experiment')}")
    if path.suffix != ".json":
        return read_yaml(path)
    return read_json(path)


def flatten(entry: Mapping[str, Any], heading: str = "") -> Iterator[tuple[str, Any]]:
    """{'training': {'batch_size': 8}} is another way to write {'training.batch_size': 8}."""
    for key, value in entry.items():
        name = f"{heading}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def named(pairs: Iterator[tuple[str, Any]], keys: Keys, where: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in pairs:
        name = keys.name(key, where)
        if name in settings:
            raise UserError(f"{where}: '{printable(name, 60)}' is given twice")
        settings[name] = keys.value(name, value, where)
    return settings
