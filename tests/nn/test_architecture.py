"""The 15 networks are the published ones: names, order, shapes, counts, strides, anchors, sources, seeded weights.

Built on the meta device, which knows shapes and holds no values, where values do not matter.
"""

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from tests.nn.parity import batchnorms, build
from yolov7fast.nn.model import BUILD_SIZE

TRAINING = [f"training/yolov7{suffix}" for suffix in ("-tiny", "", "x", "-w6", "-e6", "-d6", "-e6e")]
DEPLOY = [f"deploy/yolov7{suffix}" for suffix in ("-tiny", "-tiny-silu", "", "x", "-w6", "-e6", "-d6", "-e6e")]


@pytest.fixture(scope="module")
def recorded(golden):
    return golden("models_arch.json.gz")


@pytest.fixture(scope="module")
def figures(golden):
    return golden("models_out.json.gz")


def entries(model):
    parameters = dict(model.named_parameters())
    return [
        [name, list(t.shape), str(t.dtype).removeprefix("torch."), "p" if name in parameters else "b"]
        for name, t in model.state_dict().items()
    ]


def counts(model):
    return sum(1 for _ in model.modules()), sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", TRAINING + DEPLOY)
def test_network_is_the_published_one(name, recorded):
    expected = recorded["arch"][name]
    shapes = {}  # of every layer, in the run that building a network makes
    hook = register_module_forward_hook(lambda m, _, out: shapes.__setitem__(m, out))
    with torch.device("meta"):
        model = build(name)
    hook.remove()
    head = model.model[-1]
    assert entries(model) == expected["state_dict"]
    assert counts(model) == (expected["n_modules"], expected["n_params"])
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == expected["n_grads"]
    assert model.save == expected["save"]
    assert model.stride.tolist() == expected["strides"]
    assert model.stride is head.stride
    assert type(head).__name__ == expected["head"]
    assert (head.nl, head.na, head.no) == (expected["nl"], expected["na"], expected["no"])
    assert list(head.anchor_grid.shape) == expected["anchor_grid_shape"]
    assert model.yaml["anchors"] == expected["anchors_yaml"]
    assert model.yaml["ch"] == 3
    assert model.yaml_file == f"{name.split('/')[1]}.yaml"

    side = 128 if head.nl == 4 else 64  # of the recorded run
    for m, row in zip(model.model, expected["layers"], strict=True):
        assert (m.i, m.type, m.np) == (row["i"], row["type"], row["np"])
        sources = m.f if isinstance(m.f, list) else [m.f]
        assert [m.i + f if f < 0 else f for f in sources] == [m.i + f if f < 0 else f for f in row["frm"]]
        if m is not head:
            b, c, h, w = row["out"]
            assert list(shapes[m].shape) == [b, c, h * BUILD_SIZE // side, w * BUILD_SIZE // side], f"layer {m.i}"

    model.fuse()
    assert [e[:2] for e in entries(model)] == expected["fused"]["keys"]
    assert counts(model) == (expected["fused"]["n_modules"], expected["fused"]["n_params"])


@pytest.mark.parametrize("name", ["training/yolov7-tiny", "training/yolov7", "training/yolov7-w6"])
def test_seeded_build_draws_the_recorded_weights(name, recorded, figures):
    torch.manual_seed(0)
    model = build(name)
    assert torch.rand(4).tolist() == recorded["arch"][name]["rand_after_seed0_build"]
    state = model.state_dict()
    for entry, total, absolute, first in figures["init"][name]["entries"]:
        values = state[entry].double()
        assert values.flatten()[:3].tolist() == pytest.approx(first, rel=1e-12, abs=0), entry
        assert values.sum().item() == pytest.approx(total, rel=1e-9, abs=1e-9 * absolute), entry
        assert values.abs().sum().item() == pytest.approx(absolute, rel=1e-9), entry
    head, expected = model.model[-1], recorded["arch"][name]
    assert head.anchors.tolist() == expected["anchors"]
    assert head.anchor_grid.flatten().tolist() == expected["anchor_grid"]


def test_fresh_batchnorm_has_seen_one_batch_of_zeros():
    for bn in batchnorms(build("training/yolov7-tiny", nc=1)):
        assert (bn.eps, bn.momentum) == (1e-3, 0.03)
        assert bn.running_mean.abs().max() == 0
        assert set(bn.running_var.tolist()) == {np.float32(0.9)}
        assert bn.num_batches_tracked == 1


@pytest.mark.parametrize("nc", [1, 2, 3, 80])
def test_prior_biases(nc, recorded):
    torch.manual_seed(0)
    model = build("training/yolov7-tiny", nc=nc)
    for conv, expected in zip(model.model[-1].m, recorded["resolve"][f"tiny_bias_seed0_nc{nc}"], strict=True):
        assert conv.bias.view(3, -1)[0, : len(expected)].tolist() == pytest.approx(expected, rel=1e-12)
        assert conv.bias.requires_grad and conv.bias.is_leaf
