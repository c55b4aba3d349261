"""JSON of settings and records: bounded, and every fault is one line that names the file."""

import json

import pytest

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.files.settings_files import read_json


def test_what_the_file_holds_comes_back(tmp_path):
    content = {"a": [1, 2.5, None, "漢字"], "b": {"c": True}}
    (tmp_path / "x.json").write_text(json.dumps(content))
    assert read_json(tmp_path / "x.json") == content
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf[1]")  # as editors of Windows begin a file
    assert read_json(tmp_path / "x.json") == [1]


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "line 1: not valid JSON"),
        (b'{"a": 1,\n}', "line 2: not valid JSON"),
        (b"\xff", "not valid JSON in UTF-8"),
        (b"[" * 100_000, "not valid JSON in UTF-8: maximum recursion"),
        (b"[" + b"9" * 5000 + b"]", "not valid JSON in UTF-8: Exceeds the limit"),
        (b"[" + b"9" * 400 + b"]", "out of range: integers have at most 18 digits"),
        (b"[" + b"0," * 2000 + b"0]", "more than 2,000 values"),
        (b" " * (1 << 24) + b"0", "more than 16 MB"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_line(tmp_path, monkeypatch, content, complaint):
    monkeypatch.setattr("yolov7fast.core.files.settings_files.MOST_VALUES", 2000)
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match=rf"x\.json.*{complaint}.*; take another") as caught:
        read_json(tmp_path / "x.json", remedy="take another")
    assert len(one_line(caught.value)) < 500


@pytest.mark.parametrize("name", ["none.json", "x" * 5000, "a\0b"])
def test_a_file_that_cannot_be_there_is_named(tmp_path, name):
    with pytest.raises(UserError, match="cannot be read"):
        read_json(tmp_path / name)
