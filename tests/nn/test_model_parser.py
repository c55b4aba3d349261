"""From rows to layers: widths, repeats, words, the registry, and what is said about a mistake."""

import re

import pytest
import torch
import yaml
from torch import nn

from tests.nn.parity import build_narrow, description
from yolov7fast.core.errors import UserError
from yolov7fast.nn import model_parser
from yolov7fast.nn.model import Model


@pytest.fixture(scope="module")
def resolved(golden):
    return golden("models_arch.json.gz")["resolve"]


def tiny_rows(**changes):
    """A network of four rows that builds in no time: strides 4 and 8."""
    return {
        "nc": 2,
        "depth_multiple": 1.0,
        "width_multiple": 1.0,
        "anchors": [[4, 5, 8, 9], [10, 11, 20, 21]],
        "backbone": [[-1, 1, "Conv", [8, 3, 4]], [-1, 1, "Conv", [16, 3, 2]]],
        "head": [[[0, 1], 1, "Detect", ["nc", "anchors"]]],
    } | changes


def with_row(index, row):
    d = tiny_rows()
    rows = d["backbone"] if index < 2 else d["head"]
    rows[index if index < 2 else 0] = row
    return d


def conv_shapes(model):
    return [[name, list(t.shape)] for name, t in model.state_dict().items() if t.ndim == 4]


@pytest.mark.parametrize(
    "case, name, width, nc",
    [
        ("yolov7_width0.25_nc27", "training/yolov7", 0.25, 27),
        ("deploy_w6_width0.125_nc59", "deploy/yolov7-w6", 0.125, 59),  # 192 = 3 x (59 + 5) is not scaled
    ],
)
def test_width_multiple(case, name, width, nc, resolved):
    with torch.device("meta"):
        model = Model(description(name, width_multiple=width), nc=nc)
    assert conv_shapes(model) == resolved[case]["conv_out"]
    assert sum(p.numel() for p in model.parameters()) == resolved[case]["n_params"]
    assert model.model[-1].no == resolved[case]["no"]


def test_depth_multiple_repeats_a_row(resolved):
    d = description("training/yolov7-tiny", depth_multiple=0.5)
    d["backbone"][4][1], d["backbone"][5][1] = 3, 5
    with torch.device("meta"):
        model = Model(d)
    keys = [k for k in model.state_dict() if k.startswith(("model.4.", "model.5."))]
    assert keys == resolved["tiny_depth0.5_n3_n5"]["keys"]
    assert [m.type for m in model.model[4:6]] == resolved["tiny_depth0.5_n3_n5"]["types"]


def test_anchor_count_gives_placeholders(resolved):
    expected = resolved["tiny_nc3_anchors4"]
    model = build_narrow("training/yolov7-tiny", nc=3, anchors=4)
    head = model.model[-1]
    assert (head.na, head.no) == (expected["na"], expected["no"])
    assert head.anchors.tolist() == expected["anchors"]
    assert head.anchor_grid.flatten().tolist() == expected["anchor_grid"]
    assert model.yaml["anchors"] == expected["yaml_anchors"]


def test_levels_in_the_wrong_order_are_flipped(resolved):
    d = description("training/yolov7-tiny", width_multiple=0.125)
    d["anchors"] = d["anchors"][::-1]
    head = Model(d).model[-1]
    expected = resolved["tiny_reversed_anchor_rows"]
    assert head.anchor_grid.flatten().tolist() == expected["anchor_grid"]
    assert head.anchors.tolist() == expected["anchors"]


def test_a_row_inserted_without_new_numbers_is_warned_of(caplog):
    d = description("training/yolov7-tiny", width_multiple=0.125)
    Model(d)
    assert "strides" not in caplog.text
    d["backbone"].insert(15, [-1, 1, "nn.Identity", []])
    assert Model(d).stride.tolist() == [32, 8, 16]
    assert "layer 78" in caplog.text and "from [74, 75, 76]" in caplog.text and "strides 32, 8, 16" in caplog.text


def test_words_of_the_vocabulary():
    def resolve(word):
        return model_parser.resolve_word(word, 3, [[1, 2]], "here")

    assert resolve("None") is None
    assert resolve("nc") == 3
    assert resolve("anchors") == [[1, 2]]
    assert resolve("nearest") == "nearest"
    assert resolve(0.5) == 0.5
    first, second = resolve("nn.LeakyReLU(0.1)"), resolve("nn.LeakyReLU(0.1)")
    assert isinstance(first, nn.LeakyReLU) and first.negative_slope == 0.1 and first is not second
    assert isinstance(resolve("nn.ReLU()"), nn.ReLU)


@pytest.mark.parametrize("word", ["nn.LeakyRelu(0.1)", "__import__('os')", "nn.SiLU(1, 2)", "nc * 2", "nn.ReLU(e)"])
def test_other_expressions_are_refused(word):
    with pytest.raises(UserError, match=re.escape(f"`{word}`")):
        model_parser.resolve_word(word, 3, [[1, 2]], "here")


MISTAKES = {
    "unknown block": (with_row(1, [-1, 1, "Cnv", [16]]), r"layer 1 \(Cnv\).*no block `Cnv`.*nearest.*`Conv`"),
    "from ahead": (with_row(1, [3, 1, "Conv", [16]]), r"layer 1 .*`from` 3 is not an earlier layer; use -1 to 0"),
    "from of the first row": (with_row(0, [0, 1, "Conv", [16]]), r"layer 0 .*must be -1"),
    "a list for a block of one source": (with_row(1, [[-1, 0], 1, "Conv", [16]]), r"layer 1 .*takes one source"),
    "one source for a block of a list": (with_row(1, [-1, 1, "Concat", [1]]), r"layer 1 .*takes a list"),
    "too many arguments": (with_row(1, [-1, 1, "Conv", [16, 3, 2, 1, 1, True, 7, 8]]), r"layer 1 .*do not fit Conv\("),
    "arguments that do not go together": (with_row(1, [-1, 1, "Conv", [16, 3, 2, 1, 3]]), r"layer 1 .*cannot be built"),
    "a stride of 0": (with_row(1, [-1, 1, "Conv", [16, 3, 0]]), r"layer 1 .*its inputs do not fit"),
    "a repeat count that is none": (with_row(1, [-1, "two", "Conv", [16]]), r"layer 1 .*repeat count"),
    "levels and sources": (with_row(2, [[0], 1, "Detect", ["nc", "anchors"]]), r"layer 2 .*need 2 sources.*lists 1"),
    "no head": (with_row(2, [-1, 1, "Conv", [8]]), r"layer 2 .*must be a detection head"),
    "channels that differ": (
        tiny_rows(backbone=[[-1, 1, "Conv", [8]], [-1, 1, "Conv", [16]], [[0, 1], 1, "Shortcut", [1]]]),
        r"layer 2 \(models.common.Shortcut, from \[0, 1\]\): its inputs do not fit",
    ),
    "repeats that change the width": (
        tiny_rows(backbone=[[-1, 1, "Conv", [8]], [-1, 2, "Conv", [16]]]),
        r"layer 1 \(models.common.Conv, from -1\)",
    ),
    "no nc": (tiny_rows(nc=None), r"`nc` is missing"),
    "width of zero": (tiny_rows(width_multiple=0), r"`width_multiple` must be"),
    "no rows": (tiny_rows(backbone=[], head=[]), r"hold no layer"),
    "millions of anchors": (tiny_rows(anchors=100_000_000), r"anchors must be.*1 to 100"),
    "anchors that are no numbers": (tiny_rows(anchors=[["a", "b"]]), r"anchors must be widths and heights.*'a'"),
    "classes beyond counting": (tiny_rows(nc=10**12), r"`nc` must be a whole number of classes, 1 to 100,000"),
    "millions of channels": (with_row(1, [-1, 1, "Conv", [10**7]]), r"layer 1 .*10000000 is out of range"),
    "millions of repeats": (with_row(1, [-1, 10**7, "Conv", [16]]), r"layer 1 .*repeat count.*at most 1,000"),
    "more weights than memory": (with_row(1, [-1, 1000, "Conv", [65536, 3]]), r"layer 1 .*weights; at most"),
    "outputs larger than memory": (
        tiny_rows(backbone=[[-1, 1, "Conv", [8]], *[[-1, 1, "nn.Upsample", ["None", 16, "nearest"]]] * 4]),
        r"layer 2 .*its output 8x65536x65536 is too much",
    ),
    "a block named by a list": (with_row(1, [-1, 1, ["Conv"], [16]]), r"layer 1 .*no block `\['Conv'\]`"),
    "arguments in arguments": (with_row(1, [-1, 1, "Conv", [16, [[[[[3]]]]]]]), r"layer 1 .*nested too deeply"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_sentence(mistake, tmp_path):
    d, message = MISTAKES[mistake]
    with pytest.raises(UserError, match=message) as caught:
        Model(d)
    assert "\n" not in str(caught.value)
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(d))
    with pytest.raises(UserError, match=re.escape(str(file))):
        Model(file)


def test_files_that_are_no_description(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.yaml cannot be read"):
        Model(tmp_path / "nowhere.yaml")
    (tmp_path / "bad.yaml").write_text("nc: [1")
    with pytest.raises(UserError, match=r"bad.yaml is not valid YAML.*line 1"):
        Model(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match=r"list.yaml: is not a model description"):
        Model(tmp_path / "list.yaml")
    (tmp_path / "weights.pt").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(UserError, match=r"weights.pt is not valid YAML"):
        Model(tmp_path / "weights.pt")


def test_a_description_on_top_of_another(tmp_path):
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(tiny_rows()))
    (tmp_path / "more.yaml").write_text("base: plain.yaml\nnc: 7\n")
    model = Model(tmp_path / "more.yaml")
    assert model.yaml == tiny_rows(nc=7, ch=3)
    (tmp_path / "most.yaml").write_text("base: more.yaml\n")
    with pytest.raises(UserError, match=r"most.yaml: its base .*more.yaml has a base itself"):
        Model(tmp_path / "most.yaml")
    (tmp_path / "lost.yaml").write_text("base: nowhere.yaml\n")
    with pytest.raises(UserError, match=r"nowhere.yaml cannot be read"):
        Model(tmp_path / "lost.yaml")
