"""Text of messages: counts with nouns, the nearest known name, and escaping of text from files."""

import difflib
import os
from collections.abc import Iterable
from typing import TextIO

STYLES = {"bold": "1", "error": "1;31", "warning": "33", "good": "1;32"}


def counted(count: int, noun: str, plural: str = "") -> str:
    """'1 image', '2 images', '1,234 boxes'. plural: where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def styled(text: str, style: str, stream: TextIO | None) -> str:
    """The text in a style of STYLES if the stream is a terminal that shows colours; NO_COLOR=1 switches them off."""
    plain = stream is None or not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not text else f"\033[{STYLES[style]}m{text}\033[0m"


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean 'X'?' for the known name closest to `name`, or nothing."""
    close = difflib.get_close_matches(str(name)[:100], list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def printable(text: object, limit: int = 1000) -> str:
    """The text with control characters and undecodable bytes written as escapes, cut after `limit` characters."""
    text = str(text)
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:limit])
    return f"{shown}..." if len(text) > limit else shown
