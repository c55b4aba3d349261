"""The Chinese files say what the English ones say: same sections, commands, inline code, table rows and figures."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRANSLATED = ("README", "VAST_SETUP", "docs/quick_start", "docs/train", "docs/resume")
PAIRS = [(f"{name}.md", f"{name}.zh-TW.md") for name in TRANSLATED]
FENCED = re.compile(r"^[ \d.]*```[^\n]*\n(.*?)^ *```", re.M | re.S)  # `3. ```bash` opens a block in a numbered list
MAP = "train.py test.py detect.py "  # a block that begins so is the map of the code: paths with words in columns


def sections(name: str) -> list[tuple[str, list[str]]]:
    """Prose and code blocks of each part of a file; the first part is what stands above the first section."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [(FENCED.sub("", part), FENCED.findall(part)) for part in re.split(r"^## ", text, flags=re.M)]


def spans(prose: str) -> set[str]:
    """Inline code; a line break within counts as a space."""
    return {" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)}


def commands(blocks: list[str]) -> list[str]:
    """Lines of code without their comments; of the map of the code, its paths."""
    lines = []
    for block in blocks:
        if block.startswith(MAP):
            lines += re.findall(r"\w+/|\w+\.py", block)
        else:
            lines += (" ".join(re.sub(r"(^|\s)#.*", "", line).split()) for line in block.splitlines())
    return [line for line in lines if line]


def rows(prose: str) -> list[tuple[int, set[str], list[str]]]:
    """Each row of the tables: number of cells, inline code, figures."""
    found = re.findall(r"^\|.*\|$", prose, re.M)
    return [
        (len(re.findall(r"(?<!\\)\|", row)) - 1, spans(row), sorted(re.findall(r"\d+(?:[.,]\d+)*", row)))
        for row in found
    ]


@pytest.mark.parametrize(("original", "translation"), PAIRS)
class TestTranslation:
    def test_has_the_same_number_of_sections(self, original, translation):
        assert len(sections(translation)) == len(sections(original))

    def test_has_the_same_inline_code_in_every_section(self, original, translation):
        for (here, _), (there, _) in zip(sections(original), sections(translation)):
            assert spans(there) == spans(here), here.splitlines()[0]

    def test_has_the_same_commands_in_every_section(self, original, translation):
        for (here, blocks), (_, translated) in zip(sections(original), sections(translation)):
            assert commands(translated) == commands(blocks), here.splitlines()[0]

    def test_has_the_same_table_rows_in_every_section(self, original, translation):
        for (here, _), (there, _) in zip(sections(original), sections(translation)):
            assert rows(there) == rows(here), here.splitlines()[0]
