"""What a file says of itself survives being written as text."""

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.predictors.export_metadata import ExportForm, ExportMetadata, is_exported, output_meanings

FULL = ExportMetadata(
    names=["a", "é", 'with "quotes", and commas'],
    kind="yolo",
    form=ExportForm.RAW,
    stride=64,
    size=[640, 320],
    batch=4,
    free=["batch"],
    outputs=output_meanings(ExportForm.RAW, 3),
    conf_thres=None,
    strides=[8, 16],
    anchors=[[[1.5, 2.0]], [[3.0, 4.0]]],
    head_classes=[[0], [2, 1]],
)


def test_every_key_comes_back():
    text = FULL.to_text()
    assert all(isinstance(value, str) for value in text.values())
    assert ExportMetadata.of(text, "file.onnx") == FULL
    assert FULL.fixed_size == (640, 320) and FULL.fixed_batch is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"yolov7fast": None}, "file.onnx has no metadata of export.py"),
        ({"yolov7fast": "99"}, r"file.onnx is of another version of export.py \('99'\)"),
        ({"stride": "many"}, "file.onnx is damaged: its metadata cannot be read"),
        ({"stride": "0"}, r"file.onnx is damaged: .*stride is 0"),
        ({"size": "[64, 1e9]"}, r"size is \[64, 1000000000\.0\]"),
        ({"names": '"cat"'}, "names is 'cat'"),
        ({"kind": "rcnn"}, "kind is 'rcnn'"),
        ({"free": '["depth"]'}, r"free is \['depth'\]"),
        ({"size": "[65536, 65536]"}, r"size is \[65536, 65536\]"),
        ({"batch": "60000"}, "a batch of 60000 images of .* needs too much memory"),
        ({"anchors": "[1, 2]"}, r"anchors is \[1, 2\]"),
        ({"head_classes": "[[3]]"}, r"head_classes is \[\[3\]\]"),
        ({"iou_thres": "NaN"}, "iou_thres is nan"),
        ({"anchors": "[" * 9999}, "file.onnx is damaged"),
        ({"names": None}, "file.onnx is damaged"),
    ],
)
def test_other_files_are_refused_in_one_line(change, message):
    text = {key: value for key, value in (FULL.to_text() | change).items() if value is not None}
    with pytest.raises(UserError, match=message):
        ExportMetadata.of(text, "file.onnx")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "null",
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 5000,
        '{"yolov7fast": 1}',
        " " * 20_000_000,
        b"\xff{}",
    ],
    ids=lambda text: str(text[:12]),
)
def test_metadata_of_torchscript_that_is_none_is_refused_in_one_line(text):
    with pytest.raises(UserError, match=r"x.torchscript.pt (is damaged: its metadata|has no metadata)") as error:
        ExportMetadata.of_json(text, "x.torchscript.pt")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_exported_files_are_known_by_their_names():
    assert all(map(is_exported, ("a.onnx", "b/c.XML", "best.torchscript.pt")))
    assert not any(map(is_exported, ("best.pt", "last.pth", "onnx.pt")))
