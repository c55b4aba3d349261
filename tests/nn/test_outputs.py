"""Outputs equal the recorded ones under deterministic weights: eval, training and fused, augmented, gradients."""

import copy

import numpy as np
import pytest
import torch

from tests.nn.parity import assert_all_close, assert_close, batchnorms, build_filled, fill, image
from yolov7fast.nn.blocks import RepConv
from yolov7fast.nn.model import scale_img

QUICK = ["training/yolov7-tiny", "deploy/yolov7-tiny", "deploy/yolov7-tiny-silu"]
LONG = [
    f"{kind}/yolov7{suffix}" for kind in ("training", "deploy") for suffix in ("", "x", "-w6", "-e6", "-d6", "-e6e")
]


def slow_ones(*names: str) -> list:
    """The first is quick; the others need seconds."""
    return [names[0], *(pytest.param(name, marks=pytest.mark.slow) for name in names[1:])]


DOUBLE, SINGLE = 1e-9, 1e-5  # relative to the standard deviation of the recorded tensor


@pytest.fixture(scope="module")
def recorded(golden):
    return golden("models_out.json.gz")


@pytest.fixture(scope="module")
def arrays(golden):
    return golden("models_full.npz")


@pytest.fixture(scope="module")
def tiny():
    """Three classes, double precision. Tests leave it as it is."""
    return build_filled("training/yolov7-tiny", nc=3).double().eval()


@torch.no_grad()
def check_outputs(model, expected):
    """Double precision in eval and training mode, layer by layer; then fused in float32."""
    x = image(*expected["input"])
    single = copy.deepcopy(model).eval()
    stats = {}
    hooks = [m.register_forward_hook(lambda m, _, out: stats.__setitem__(m.i, out)) for m in model.model[:-1]]
    pred, raw = model.double().eval()(x.double())
    for hook in hooks:
        hook.remove()
    for i, (shape, mean, std, total) in enumerate(expected["layer_stats"]):
        out = stats[i]
        got = [out.mean().item(), out.std(correction=0).item(), out.abs().sum().item()]
        assert list(out.shape) == shape and got == pytest.approx([mean, std, total], rel=DOUBLE, abs=DOUBLE * std), (
            f"layer {i}"
        )
    assert_close(pred, expected["eval"]["pred"], DOUBLE)
    assert_all_close(raw, expected["eval"]["raw"], DOUBLE)
    for bn in batchnorms(model.train()):
        bn.eval()
    assert_all_close(model(x.double()), expected["train"], DOUBLE)

    pred, raw = single.fuse()(x)
    assert_close(pred, expected["fused"]["pred"], SINGLE)
    # the recorded auxiliary head also lists its untouched inputs: not kept
    assert_all_close(raw, expected["fused"]["raw"][: single.model[-1].nl], SINGLE)
    return pred


@pytest.mark.parametrize("name", QUICK)
def test_outputs(name, recorded):
    check_outputs(build_filled(name), recorded["out"][name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_outputs_of_the_other_networks(name, recorded):
    check_outputs(build_filled(name), recorded["out"][name])


@pytest.mark.parametrize(
    "name", slow_ones("training/yolov7-tiny", "training/yolov7", "training/yolov7-w6", "deploy/yolov7")
)
def test_outputs_with_three_classes(name, recorded, arrays):
    model = build_filled(name, nc=3)
    fused = copy.deepcopy(model).eval().fuse()
    check_outputs(model, recorded["out_nc3"][name])
    key = name.replace("/", "_").replace("-", "_")
    with torch.no_grad():
        pred = model.eval()(image(*recorded["out_nc3"][name]["input"]).double())[0]
    np.testing.assert_allclose(pred.numpy(), arrays[f"{key}__eval_pred"], rtol=1e-6, atol=1e-6)
    state = fused.state_dict()
    tensors = [k for k in arrays.files if k.startswith(f"{key}__fused:")]
    assert tensors
    for k in tensors:
        np.testing.assert_allclose(state[k.split(":")[1]].numpy(), arrays[k], rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_augmented_inference(tiny, recorded, arrays):
    expected = recorded["tta"]
    x = image(*expected["input"]).double()
    for ratio, summary in expected["scaled"].items():
        assert_close(scale_img(x.flip(3) if ratio == "0.83" else x, float(ratio), 32), summary, DOUBLE)
    pred, none = tiny(x, augment=True)
    assert none is None
    assert_close(pred, expected["pred"], DOUBLE)
    full = arrays["tta_training_yolov7_tiny_nc3__2x3x96x64"]
    np.testing.assert_allclose(pred.numpy(), full, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", slow_ones("training/yolov7-tiny", "training/yolov7", "training/yolov7-w6"))
def test_gradients_and_running_statistics(name, recorded):
    expected = recorded["trainbn"][name]
    model = build_filled(name, nc=3).double().train()
    outputs = model(image(*expected["input"]).double())
    loss = sum(out.square().mean() for out in outputs)
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], rel=DOUBLE)
    assert_all_close(outputs, expected["out"], DOUBLE)
    parameters = dict(model.named_parameters())
    assert list(parameters) == [row[0] for row in expected["grad"]]
    for entry, norm, total in expected["grad"]:
        grad = parameters[entry].grad
        assert grad.norm().item() == pytest.approx(norm, rel=1e-8), entry
        assert grad.sum().item() == pytest.approx(total, rel=1e-7, abs=1e-7 * norm), entry
    state = model.state_dict()
    for entry, mean, std in expected["bn"]:
        assert state[entry].mean().item() == pytest.approx(mean, rel=DOUBLE, abs=DOUBLE), entry
        assert state[entry].std(correction=0).item() == pytest.approx(std, rel=DOUBLE), entry
    assert {int(bn.num_batches_tracked) for bn in batchnorms(model)} == set(expected["num_batches_tracked"])


@torch.no_grad()
def test_head_switches(recorded):
    """In double precision: then only the recording's own rounding is between them, on every processor."""
    expected = recorded["flags"]
    model = build_filled("deploy/yolov7-tiny", nc=3).eval().double()
    head, x = model.model[-1], image(1, 3, 64, 64).double()
    for switch in ("end2end", "concat"):
        setattr(head, switch, True)
        assert_close(model(x), expected[switch]["out"], SINGLE)
        setattr(head, switch, False)
    head.include_nms = True
    ((box, score),) = model(x)
    assert_close(box, expected["include_nms"]["box"], SINGLE)
    assert_close(score, expected["include_nms"]["score"], SINGLE)
    head.include_nms = False
    head.export = True
    assert [out.shape[2] for out in model(x)] == [8, 4, 2]
    head.export = False
    pred, raw = model(x)  # a head that was exported once evaluates as before
    assert pred.shape == (1, 252, 8) and len(raw) == 3


def test_fuse_works_with_gradients_on_and_in_any_dtype(tiny):
    x = image(1, 3, 64, 64)
    with torch.no_grad():
        expected = tiny(x.double())[0]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-5), (torch.bfloat16, None)):
        model = copy.deepcopy(tiny).to(dtype).requires_grad_(True)
        pred = model.fuse()(x.to(dtype))[0]
        assert pred.dtype == (torch.float32 if dtype is torch.bfloat16 else dtype)  # see Detect.decode
        if tolerance:
            torch.testing.assert_close(pred.detach().double(), expected, rtol=tolerance, atol=100 * tolerance)
    random = torch.get_rng_state()
    copy.deepcopy(tiny).fuse()
    assert torch.equal(torch.get_rng_state(), random), "fusing draws no random number"


@torch.no_grad()
def test_repconv_identity_branch_is_fused():
    for groups in (1, 2):
        block = fill(RepConv(8, 8, g=groups)).double().eval()
        assert block.rbr_identity is not None
        x = image(1, 8, 5, 5).double() if groups == 1 else image(1, 8, 6, 6).double()
        expected = block(x)
        block.fuse()
        torch.testing.assert_close(block(x), expected, rtol=1e-9, atol=1e-9)
        assert list(block.state_dict()) == ["rbr_reparam.weight", "rbr_reparam.bias"]


@torch.no_grad()
def test_traced_body_stops_before_the_head(tiny):
    model, x = copy.deepcopy(tiny), image(1, 3, 64, 64).double()
    expected = model(x)[0]
    model.traced = True
    features = model(x)
    assert [f.shape[1] for f in features] == [128, 256, 512]
    assert torch.equal(model.model[-1](features)[0], expected)
