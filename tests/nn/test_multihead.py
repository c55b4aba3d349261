"""Several heads on one backbone: recorded outputs, agreement with the ordinary head, files, and mistakes."""

import numpy as np
import pytest
import torch

from tests.conftest import ROOT
from tests.recorded_heads import ANCHORS, CHANNELS, VARIANTS, features, fill, recorded_head, with_strides
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, save_checkpoint, state_dict_of, transfer_weights
from yolov7fast.core.errors import UserError
from yolov7fast.nn.heads import Detect
from yolov7fast.nn.model import Model
from yolov7fast.nn.model_parser import read_description
from yolov7fast.nn.multihead import CBAM, SHIPPED, HeadConfig, MultiHeadDetect, heads_of

TINY, ATTENTION = "cfg/training/yolov7-tiny-1b4h.yaml", "cfg/training/yolov7-tiny-1b4h-attn.yaml"


def small(cfg: str = TINY, **options) -> Model:
    description = read_description(ROOT / cfg) | {"width_multiple": 0.125}
    return Model(description, **{"nc": 5, **options})


# --- recorded figures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_maps_are_the_recorded_ones(variant, golden):
    arrays = golden("eval_multihead.npz")
    maps = recorded_head(golden, variant).train()(features(golden))
    recorded = [name for name in arrays.files if name.startswith(f"{variant}_train")]
    assert len(recorded) == 9 or f"{variant}_eval" in arrays.files
    for name in recorded:
        head, level = (int(part[1:]) for part in name.split("_")[-2:])
        np.testing.assert_allclose(maps[head][level].detach(), arrays[name], atol=2e-6)


@pytest.mark.parametrize("variant", ["plain_compact", "plain_full", "cbam_compact"])
def test_predictions_are_the_recorded_ones_with_global_classes(variant, golden):
    """But for the class score of the head with a single class, recorded as its untrained logit: here it is 1."""
    head = recorded_head(golden, variant).eval()
    pred, raw = head(features(golden))
    expected = golden("eval_multihead.npz")[f"{variant}_eval"].copy()
    assert len(raw) == 3 and raw[2][1].shape[:4] == (2, 3, 4, 4)
    rows = expected.shape[1] // 3
    assert (expected[:, :rows, 5 + 4] != 1).all()
    expected[:, :rows, 5 + 4] = 1
    np.testing.assert_allclose(pred.detach(), expected, rtol=2e-6, atol=1e-5)
    for h, ids in enumerate([[4], [0, 3], [5, 1, 2]]):
        scores = pred[:, h * rows : (h + 1) * rows, 5:]
        assert (scores[..., ids] > 0).all()
        assert (scores[..., [c for c in range(6) if c not in ids]] == 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_bias_start_is_the_recorded_one(variant, golden):
    head = recorded_head(golden, variant)
    for convolutions, expected in zip(head.heads, golden("eval_multihead.json")[f"{variant}_bias_init"], strict=True):
        for conv in convolutions:
            torch.nn.init.zeros_(conv.bias)
        head.initialize_biases()
        for conv, values in zip(convolutions, expected, strict=True):
            assert conv.bias.view(3, -1).tolist() == pytest.approx(np.array([values] * 3))


def test_attention_is_the_recorded_one(golden):
    arrays = golden("eval_multihead.npz")
    cbam = CBAM(32)
    assert {n: list(v.shape) for n, v in cbam.state_dict().items()} == golden("eval_multihead.json")["cbam_state"]
    fill(cbam, np.random.RandomState(53), 0.3)
    np.testing.assert_allclose(cbam(torch.from_numpy(arrays["cbam_in"])).detach(), arrays["cbam_out"], atol=1e-6)


@pytest.mark.parametrize("cfg", [TINY, ATTENTION])
@pytest.mark.parametrize("full", [False, True])
def test_sizes_are_the_recorded_ones(cfg, full, golden):
    heads = HeadConfig.load(SHIPPED["geometry"]).to_dict() | {"full_head": full}
    with torch.device("meta"):
        model = Model(ROOT / cfg, heads=heads)
    name = f"{cfg.split('/')[-1].removesuffix('.yaml')} {'full' if full else 'compact'}"
    expected = golden("eval_multihead.json")["params"][name]
    assert sum(p.numel() for p in model.parameters()) == expected["total"]
    assert model.model[-1].np == expected["detect"]
    assert len(model.state_dict()) == expected["state_items"]


def test_a_one_head_network_gives_its_backbone_and_anchors(golden):
    expected = golden("eval_multihead.json")["params"]["yolov7-tiny-1b4h compact"]["transferred_from_1b1h"]
    one = small("cfg/training/yolov7-tiny.yaml")
    several = small()
    assert transfer_weights(several, state_dict_of(one)) == (expected, 356) == (332, 356)
    assert torch.equal(several.model[76].conv.weight, one.model[76].conv.weight)


# --- agreement with the ordinary head ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nc", [6, 1])
def test_one_head_with_all_classes_equals_the_ordinary_head(nc, golden):
    ordinary = with_strides(Detect(nc, ANCHORS, CHANNELS)).eval()
    alone = with_strides(MultiHeadDetect(nc, ANCHORS, HeadConfig.consecutive(nc, 1), CHANNELS)).eval()
    alone.heads[0].load_state_dict(ordinary.m.state_dict())
    x = features(golden)
    (pred, raw), (expected, maps) = alone(x), ordinary(x)
    assert torch.equal(pred, expected)
    assert all(torch.equal(a, b) for a, b in zip(raw[0], maps, strict=True))


# --- as for other networks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", [TINY, ATTENTION])
def test_a_checkpoint_brings_the_network_back_with_its_heads(cfg, tmp_path):
    heads = HeadConfig(5, ((3, 0), (4,), (1, 2)), (1.0, 2.0, 0.5), ("a", "b", "c")).to_dict()
    model = small(cfg, heads=heads).eval()
    x = torch.rand(1, 3, 64, 64)
    before = model(x)[0]
    save_checkpoint({"model": model}, tmp_path / "heads.pt")
    again = load_checkpoint(tmp_path / "heads.pt")["model"]
    assert torch.equal(again(x)[0], before)
    assert again.model[-1].head_config == heads == heads_of(again.yaml)
    rebuilt = Model(again.yaml)
    assert rebuilt.model[-1].head_config == heads
    assert list(rebuilt.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize(("variant", "training"), [("plain_full", False), ("cbam_compact", True)])
def test_the_head_compiles_without_a_graph_break(variant, training, golden):
    torch._dynamo.reset()
    report = torch._dynamo.explain(recorded_head(golden, variant).train(training))(features(golden))
    assert report.graph_break_count == 0, report.break_reasons


# --- mistakes ---------------------------------------------------------------------------------------------------------


def last_row(*arguments, sources=(74, 75, 76)) -> dict:
    description = read_description(ROOT / "cfg/training/yolov7-tiny.yaml")
    description["head"][-1] = [list(sources), 1, "MultiHeadDetect", ["nc", "anchors", *arguments]]
    return description


@pytest.mark.parametrize(
    ("description", "options", "message"),
    [
        (last_row(), {"nc": 3, "heads": 4}, "3 classes cannot be divided among 4 heads: ask for 1 to 3"),
        ({**last_row(), "head": []}, {"heads": 2}, "must be a detection head"),
        (last_row("many"), {}, "the heads are a number or a head configuration, not 'many'"),
        (last_row(2, 3), {}, r"its arguments are \[nc, anchors\] and the heads"),
        (last_row(HeadConfig.consecutive(80).to_dict()), {"nc": 4}, "is for 80 classes, the data set has 4"),
        (last_row({"nc": 80}), {}, "has no section head_assignments"),
        (last_row(sources=(57, 65, 73, 74, 75, 76)), {}, "no auxiliary heads in a multi-head network"),
        (ROOT / "cfg/training/yolov7-tiny.yaml", {"heads": 4}, "ends in IDetect, a detection layer with one head"),
        (ROOT / "cfg/training/yolov7-w6.yaml", {"heads": 4}, "IAuxDetect, a detection layer with auxiliary heads"),
    ],
)
def test_mistakes_are_told_before_anything_is_built(description, options, message):
    with torch.device("meta"), pytest.raises(UserError, match=message):
        Model(description, **options)
