"""Numbers with their nouns."""

import io

from yolov7fast.core.text import counted, styled


def test_one_is_singular_and_all_else_plural():
    assert [counted(n, "image") for n in (0, 1, 2, 1234)] == ["0 images", "1 image", "2 images", "1,234 images"]
    assert [counted(n, "box", "boxes") for n in (1, 2)] == ["1 box", "2 boxes"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert styled("error:", "error", Terminal()) == "\x1b[1;31merror:\x1b[0m"
    assert styled("error:", "error", io.StringIO()) == styled("error:", "error", None) == "error:"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("error:", "error", Terminal()) == "error:"
