"""YAML and JSON files of settings: bounded, and every fault is one line that names the file."""

import json

import pytest

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.files.settings_files import read_json, read_yaml


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", r"mine\.yaml is not valid YAML in UTF-8: .*line 1"),
        (b"a:\n\tb: 1", r"not valid YAML in UTF-8: .*line 2.*; use spaces instead of tabs$"),
        (b"a: 2024-13-01", r"mine\.yaml is not valid YAML in UTF-8: month must be"),
        (b"[" * 1500, r"mine\.yaml is not valid YAML in UTF-8"),
        (b"a: !!python/object/apply:os.getcwd []", r"mine\.yaml is not valid YAML in UTF-8: could not determine"),
    ],
)
def test_what_is_no_yaml_is_told_in_one_line(tmp_path, content, message):
    (tmp_path / "mine.yaml").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_yaml(tmp_path / "mine.yaml", "hyp file")
    assert str(caught.value).startswith("hyp file ") and "\n" not in str(caught.value)


def test_what_is_not_there_is_told_with_its_remedy(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml cannot be read \(No such file or directory\); make one"):
        read_yaml(tmp_path / "none.yaml", remedy="make one")
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)$"):
        read_yaml(tmp_path)


def test_a_key_given_twice_is_told_and_the_last_one_counts(tmp_path, caplog):
    path = tmp_path / "mine.yaml"
    path.write_text("lr0: 0.1\nsection: {lr0: 1}\nlr0: 0.2\n")
    assert read_yaml(path) == {"lr0": 0.2, "section": {"lr0": 1}}
    assert caplog.messages == [f"{path}, line 3: `lr0` a second time; this one counts"]


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
MERGE = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: !!bool foo", "a value does not fit its tag"),
        ("on: 1", "has the key True, neither text nor a whole number; put it in quotes"),
        ("a: {1.5: x}", r"has the key 1\.5"),
        ("a: " + "9" * 400, "holds <integer of about 401 digits>, which is out of range"),
        ("a: " + "9" * 5000, r"Exceeds the limit \(4300 digits\)"),
        ("a: &a [*a]", "holds a value that contains itself"),
        ("&a {b: {c: *a}}", "holds a value that contains itself"),
        (BOMB, "has more than 1,048,576 values once what it repeats is written out"),
        (MERGE, r"has merge keys that give more than 10,000 entries \(line 15\)"),
        ("a: " + "[" * 900 + "]" * 900, "recursion"),
    ],
    ids=lambda value: value[:20],
)
def test_what_would_hang_or_fail_its_users_is_refused_in_one_short_line(tmp_path, content, message):
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_yaml(tmp_path / "mine.yaml", "hyp file")
    text = str(caught.value)
    assert text.startswith(f"hyp file {tmp_path}") and "\n" not in text and len(text) < 500


def test_a_class_list_by_number_and_aliases_are_read(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("names: {0: a, 1: b}\none: &one [1, 2]\ntwo: [*one, *one]\nbase: &b {k: 1}\nmore: {<<: *b, l: 2}\n")
    read = read_yaml(path)
    assert read["names"] == {0: "a", 1: "b"} and read["two"] == [[1, 2], [1, 2]] and read["more"] == {"k": 1, "l": 2}


def test_a_path_that_no_file_can_have_and_a_file_that_holds_no_settings(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"cannot be read .File name too long") as caught:
        read_yaml("x" * 5000)
    assert len(str(caught.value)) < 500
    with pytest.raises(UserError, match=r"cannot be read .embedded null byte"):
        read_yaml("a\0b")
    monkeypatch.setattr("yolov7fast.core.files.settings_files.MOST_BYTES", 10)
    (tmp_path / "mine.yaml").write_text("a: 1234567890")
    with pytest.raises(UserError, match="so it is not a settings file"):
        read_yaml(tmp_path / "mine.yaml")


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
