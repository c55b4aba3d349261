"""Templates to pages: everything inside one file, names from users escaped, no script but our own.

A template extends `base.html` and gives its blocks `heading`, `summary`, `nav` and `content`; `macros.html` has tables
that sort, bars, charts and tiles. Values are escaped, and control characters written out, wherever a template prints
them.
"""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from yolov7fast.core.text import printable

FOLDER = Path(__file__).parent / "templates"
SCRIPTS = ("tables.js", "charts.js", "live.js")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")


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
    environment.filters["percent"] = lambda value, digits=1: f"{value:.{digits}%}"
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["inline"] = inline
    environment.filters["breakable"] = lambda text: Markup(re.sub(r"([_/.-])", r"\1<wbr>", str(escape(_visible(text)))))
    environment.filters["colour"] = lambda index: COLOURS[int(index) % len(COLOURS)]
    return environment


@cache
def _text(name: str) -> Markup:
    """A file of this folder as it is."""
    return Markup((FOLDER / name).read_text(encoding="utf-8"))


def _visible(value: Any) -> Any:
    """Control characters and undecodable bytes as escapes; what templates themselves made stays."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value, len(value))


def inline(text: str) -> Markup:
    """Escaped text with **bold** and `code`."""
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_visible(text))))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))


def render(template: str, **values: Any) -> str:
    """The page that a template of this folder makes of these values."""
    style, script = _text("style.css"), Markup("\n").join(map(_text, SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template(template).render(style=style, script=script, script_hash=digest, **values)
