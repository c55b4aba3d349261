"""Templates to pages: everything inside one file, names from users escaped, no script but our own.

A template extends `base.html` and gives its blocks `heading`, `summary`, `nav` and `content`; `macros.html` has tables
that sort, bars and tiles. Values are escaped, and control characters written out, wherever a template prints them.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from yolov7fast.core.text import printable

FOLDER = Path(__file__).parent
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")  # told apart by all


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda value, digits=1: f"{value:.{digits}%}"
    environment.filters["colour"] = lambda index: COLOURS[int(index) % len(COLOURS)]
    return environment


def _visible(value: Any) -> Any:
    """Control characters and undecodable bytes as escapes; what templates themselves made stays."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value, len(value))


def render(template: str, **values: Any) -> str:
    """The page that a template of this folder makes of these values."""
    style, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("style.css", "tables.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template(template).render(style=style, script=script, script_hash=digest, **values)
