"""Numbers with their nouns."""

from yolov7fast.core.text import counted


def test_one_is_singular_and_all_else_plural():
    assert [counted(n, "image") for n in (0, 1, 2, 1234)] == ["0 images", "1 image", "2 images", "1,234 images"]
    assert [counted(n, "box", "boxes") for n in (1, 2)] == ["1 box", "2 boxes"]
