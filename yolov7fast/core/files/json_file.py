"""A JSON file of settings or records as it stands, or an error that names the file, and the line where it is known.

What comes back is bounded as that of `core.yaml_file` is. Annotation files, which may be large, have a reader of their
own (`data.formats.coco_format`).
"""

import json
from pathlib import Path
from typing import Any

from yolov7fast.core.bounded import Unbounded, check_plain, count_values
from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.text import printable

MOST_BYTES = 1 << 26  # of a file
MOST_VALUES = 1 << 22


def read_json(path: str | Path, remedy: str = "") -> Any:
    """What the file holds. remedy: what to do if it cannot be read."""
    name, end = printable(path, 300), remedy and f"; {remedy}"
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise UserError(f"{name} cannot be read ({getattr(error, 'strerror', None) or error}){end}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{name} has more than {MOST_BYTES >> 20} MB, so it is no file of settings{end}")
    try:
        value = json.loads(content.decode("utf-8-sig"))
        count_values(value, MOST_VALUES, check_plain)
        return value
    except Unbounded as error:
        raise UserError(f"{name} {error}{end}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{name}, line {error.lineno}: not valid JSON: {one_line(error, 100)}{end}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not valid JSON in UTF-8: {one_line(error, 100)}{end}") from None
