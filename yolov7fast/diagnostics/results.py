"""What a check says: one line each, green or red, with the remedy; and all of them as text, JSON and exit code."""

import json
import shutil
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from yolov7fast.core.text import counted, printable

PASSED, FAILED, LEFT_OUT, FIGURE = "passed", "failed", "left out", "figure"
STATUSES = (FAILED, PASSED, FIGURE, LEFT_OUT)
EXIT_FAILED, EXIT_UNFINISHED = 4, 3  # 1 is Python's own, 2 a mistake in the command
SHOWN_PLACES = 8


class Line(NamedTuple):
    """The answer of one check. text: what was found; remedy: a command or flag; places: source lines and the like."""

    name: str
    status: str
    text: str
    remedy: str = ""
    places: tuple[str, ...] = ()
    figures: dict[str, Any] = {}  # noqa: RUF012 (read only)


def judged(name: str, ok: bool, text: str, remedy: str = "", places: tuple[str, ...] = (), **figures: Any) -> Line:
    """Green or red; a remedy belongs to a red line."""
    return Line(name, PASSED if ok else FAILED, text, "" if ok else remedy, places, figures)


@dataclass
class Report:
    """All lines, by section in the order they were checked."""

    device: str
    facts: dict[str, str] = field(default_factory=dict)
    sections: dict[str, list[Line]] = field(default_factory=dict)
    seconds: float = 0.0
    out_of_time: int = 0  # checks that found no time

    def add(self, section: str, line: Line) -> None:
        self.sections.setdefault(section, []).append(line)

    @property
    def lines(self) -> list[Line]:
        return [line for lines in self.sections.values() for line in lines]

    def count(self, status: str) -> int:
        return sum(line.status == status for line in self.lines)

    @property
    def exit_code(self) -> int:
        if self.count(FAILED):
            return EXIT_FAILED
        return EXIT_UNFINISHED if self.out_of_time else 0

    @property
    def verdict(self) -> str:
        found = ", ".join(f"{self.count(status)} {status}" for status in (PASSED, FAILED, LEFT_OUT))
        return f"{counted(len(self.lines), 'line')} on {self.device} in {self.seconds:.0f} s: {found}"

    def as_json(self) -> str:
        content = {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            **asdict(self),
            "sections": {name: [line._asdict() for line in lines] for name, lines in self.sections.items()},
        }
        return json.dumps(content, indent=2, default=str) + "\n"


MARKS = {PASSED: "ok  ", FAILED: "FAIL", FIGURE: "    ", LEFT_OUT: "--  "}


def line_text(line: Line, width: int | None = None) -> str:
    """A line as the terminal shows it, its places and remedy below."""
    width = max(width or shutil.get_terminal_size((110, 24)).columns, 72)
    body = f"{MARKS[line.status]} {line.name}: {printable(line.text)}"
    further = [printable(place) for place in line.places[:SHOWN_PLACES]]
    if len(line.places) > SHOWN_PLACES:
        further.append(f"... and {len(line.places) - SHOWN_PLACES} more")
    if line.remedy:
        further.append(f"-> {line.remedy}")
    return "\n".join(
        text for part in (body, *further) for text in _wrapped(part, width, "" if part is body else "     ")
    )


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}     ",
        break_long_words=False,
        break_on_hyphens=False,
    )
