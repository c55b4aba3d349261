"""YAML files as users write them: what is wrong is told with the file's name."""

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.core.yaml_file import read_yaml


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", r"mine\.yaml is not valid YAML in UTF-8: .*line 1"),
        (b"a: 2024-13-01", r"mine\.yaml is not valid YAML in UTF-8: month must be"),
        (b"a: \xff\xfe", r"mine\.yaml is not valid YAML in UTF-8"),
        (b"[" * 5000, r"mine\.yaml is not valid YAML in UTF-8"),
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


def test_text_in_any_language(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes("names: [紅血球, 白血球]".encode())
    assert read_yaml(path) == {"names": ["紅血球", "白血球"]}
