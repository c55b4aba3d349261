"""The forward on other devices, sizes, under the compiler, and of objects from older files."""

import copy
import pickle

import pytest
import torch

from tests.nn.parity import build_narrow, fill, image


@pytest.fixture(scope="module")
def narrow():
    """yolov7-tiny, an eighth as wide, in eval mode. Tests leave it as it is."""
    return fill(build_narrow("training/yolov7-tiny", nc=3)).eval()


@pytest.mark.parametrize("name", ["yolov7-tiny", pytest.param("yolov7-w6", marks=pytest.mark.slow)])
def test_training_forward_has_no_graph_break(name):
    torch._dynamo.reset()
    model = build_narrow(f"training/{name}", nc=2).train()
    report = torch._dynamo.explain(model)(torch.zeros(1, 3, 128, 128))
    assert (report.graph_count, report.graph_break_count) == (1, 0), report.break_reasons


@torch.no_grad()
def test_moving_a_model_after_use_moves_the_grids(narrow):
    model = copy.deepcopy(narrow)
    model(image(1, 3, 64, 64))
    pred, _ = model.to("meta")(torch.zeros(1, 3, 64, 64, device="meta"))
    assert pred.device.type == "meta" and pred.shape == (1, 252, 8)


@torch.no_grad()
def test_objects_pickled_without_newer_attributes_work(narrow):
    expected = narrow(image(1, 3, 64, 64))[0]
    model = copy.deepcopy(narrow)
    del model.__dict__["traced"]
    head = model.model[-1]
    assert not {"export", "end2end", "include_nms", "concat", "fused"} & head.__dict__.keys()
    assert torch.equal(model(image(1, 3, 64, 64))[0], expected)
    again = pickle.loads(pickle.dumps(model.fuse()))
    assert torch.equal(again(image(1, 3, 64, 64))[0], model(image(1, 3, 64, 64))[0])
    assert again.model[-1].fused


def test_objects_carry_the_attributes_that_readers_of_pickles_expect(narrow):
    assert {"traced", "yaml", "save", "names", "stride"} <= narrow.__dict__.keys()
    head = narrow.model[-1].__dict__.keys()
    assert {"nc", "no", "nl", "na", "grid", "stride", "i", "f", "type", "np"} <= head
    assert {"i", "f", "type", "np"} <= narrow.model[0].__dict__.keys()
    fresh = build_narrow("deploy/yolov7")
    assert [g.tolist() for g in fresh.model[-1].grid] == [[0.0]] * 3
    rep = fresh.model[102].__dict__
    assert rep["rbr_identity"] is None and {"deploy", "groups", "in_channels", "out_channels"} <= rep.keys()
