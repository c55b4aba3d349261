"""Published weights by name: fetched once, whole or not at all."""

import io
from typing import ClassVar

import pytest

from tests.small_network import small_network
from yolov7fast.checkpoint import released_weights
from yolov7fast.checkpoint.checkpoint_reader import save_checkpoint
from yolov7fast.checkpoint.released_weights import local_weights, released_for
from yolov7fast.core.errors import UserError


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder that stands for upstream's release; the working folder is another, empty one."""
    folder, elsewhere = tmp_path / "release", tmp_path / "here"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr(released_weights, "RELEASE", folder.as_uri())
    monkeypatch.chdir(elsewhere)
    return folder


def publish(folder, name: str) -> None:
    save_checkpoint({"model": small_network(2, ["a", "b"]).half()}, folder / name)


def test_a_published_name_is_fetched_once_into_weights(served, capsys):
    publish(served, "yolov7-tiny.pt")
    assert local_weights("yolov7-tiny.pt") == "weights/yolov7-tiny.pt"
    assert "downloading file://" in capsys.readouterr().out
    (served / "yolov7-tiny.pt").unlink()
    assert local_weights("yolov7-tiny.pt") == local_weights("weights/yolov7-tiny.pt") == "weights/yolov7-tiny.pt"
    assert [path.name for path in released_weights.FOLDER.iterdir()] == ["yolov7-tiny.pt"]


def test_other_names_and_files_that_exist_are_left_alone(served, tmp_path):
    publish(served, "yolov7.pt")
    publish(tmp_path / "here", "yolov7.pt")
    for name in ("yolov7.pt", "best.pt", "runs/yolov7.pt", "yolov7.onnx", ""):
        assert local_weights(name) == name
    assert not released_weights.FOLDER.exists()


@pytest.mark.parametrize("content", [None, b"<html>rate limit</html>"])
def test_what_cannot_be_fetched_is_one_line_with_address_and_place(served, content):
    if content:
        (served / "yolov7x.pt").write_bytes(content)
    with pytest.raises(UserError) as error:
        local_weights("yolov7x.pt")
    assert f"download {served.as_uri()}/yolov7x.pt yourself and save it as weights/yolov7x.pt" in str(error.value)
    assert "\n" not in str(error.value) and not list(released_weights.FOLDER.iterdir())


def test_a_file_in_the_way_of_the_folder_is_named(served):
    released_weights.FOLDER.touch()
    with pytest.raises(UserError, match="cannot write weights: File exists"):
        local_weights("yolov7.pt")


class CutOff(io.BytesIO):
    """An answer that promises more than it sends."""

    headers: ClassVar = {"Content-Length": "1000000"}


def test_a_broken_connection_leaves_nothing(served, monkeypatch):
    monkeypatch.setattr(released_weights.urllib.request, "urlopen", lambda *_, **__: CutOff(b"PK" * 100))
    with pytest.raises(UserError, match=r"broke off after 200 of 1,000,000 bytes.*weights/yolov7-e6\.pt"):
        local_weights("yolov7-e6.pt")
    assert not list(released_weights.FOLDER.iterdir())


@pytest.mark.parametrize(
    ("cfg", "weights"),
    [
        ("cfg/training/yolov7-tiny.yaml", "yolov7-tiny.pt"),
        ("yolov7-tiny-320.yaml", "yolov7-tiny.pt"),
        ("yolov7x-640.yaml", "yolov7x.pt"),
        ("yolov7-e6e.yaml", "yolov7-e6e.pt"),
        ("yolov7-1b4h.yaml", ""),
        ("mine.yaml", ""),
        ("", ""),
    ],
)
def test_a_network_knows_its_published_weights(cfg, weights):
    assert released_for(cfg) == weights
