"""A YAML file as it stands, or an error that names the file, and the line where the reader knows it."""

import logging
from pathlib import Path
from typing import Any

import yaml

from yolov7fast.core.errors import UserError

log = logging.getLogger(__name__)


def read_yaml(path: str | Path, what: str = "", remedy: str = "") -> Any:
    """What the file holds. what: its kind, for messages; remedy: what to do if there is no such file."""
    name = f"{what} {path}".strip()
    try:
        with open(path, encoding="utf-8") as file:
            return yaml.load(file, _Loader)
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror or error}){remedy and f'; {remedy}'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, or a date such as 2020-13-45
        raise UserError(f"{name} is not valid YAML in UTF-8: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    """Tells of keys that are given twice, which YAML forbids and its readers let pass: the last one counts."""

    def construct_mapping(self, node, deep=False):
        given = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and given.setdefault(key.value, key) is not key:
                mark = key.start_mark
                log.warning("%s, line %d: `%s` a second time; this one counts", mark.name, mark.line + 1, key.value)
        return super().construct_mapping(node, deep)
