"""Training weights to deploy weights: recorded head values, unchanged predictions, and what is said about a mistake."""

import copy

import pytest
import torch
import yaml

from tests.nn.parity import CFG, assert_close, build, build_filled, build_narrow, description, fill, image
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, save_checkpoint
from yolov7fast.checkpoint.ensemble import attempt_load
from yolov7fast.cli.commands.export import write_deploy
from yolov7fast.core.errors import UserError
from yolov7fast.nn.model import Model
from yolov7fast.nn.reparameterize import to_deploy


@pytest.fixture(scope="module")
def recorded(golden):
    return golden("models_out.json.gz")


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("yolov7", "yolov7x", "yolov7-w6", "yolov7-e6e")]


@pytest.mark.parametrize("name", ["yolov7-tiny", *SLOW])
def test_conversion_gives_the_recorded_network(name, recorded):
    """Head values and predictions of the converted network against the recorded ones and the trained network."""
    expected = recorded["reparam"][name]
    trained = build_filled(f"training/{name}", nc=3)
    deploy = to_deploy(trained.state_dict(), CFG / "deploy" / f"{name}.yaml")
    assert (trained.model[-1].i, deploy.model[-1].i) == (expected["idx_training"], expected["idx_deploy"])
    state = deploy.state_dict()
    assert len(state) == expected["deploy_entries"]
    for entry, figures in expected["head"].items():
        assert_close(state[entry], figures, 1e-6)
    side = 128 if deploy.model[-1].nl == 4 else 64
    x = image(1, 3, side, side).double()
    with torch.no_grad():
        before, after = trained.double().eval()(x)[0], deploy.double().eval()(x)[0]
    assert_close(after, expected["pred"], 1e-6)
    assert (before - after).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["yolov7-e6", pytest.param("yolov7-d6", marks=pytest.mark.slow)])
def test_the_other_networks_have_a_deploy_form(name):
    """Names and shapes only: on the meta device."""
    with torch.device("meta"):
        trained = build(f"training/{name}", nc=3)
        deploy = to_deploy(trained.state_dict(), CFG / "deploy" / f"{name}.yaml")
    assert deploy.model[-1].nc == 3


@torch.no_grad()
def test_anchors_found_in_training_are_kept(tmp_path):
    """Also where the head moves to another index, as in the networks with four levels."""
    (tmp_path / "deploy.yaml").write_text(narrow_deploy("yolov7-w6"))
    trained = fill(build_narrow("training/yolov7-w6", nc=2))
    head = trained.model[-1]
    head.anchors *= 1.5
    head.anchor_grid *= 1.5
    deploy = to_deploy(trained.state_dict(), tmp_path / "deploy.yaml")
    assert torch.equal(deploy.model[-1].anchors, head.anchors)
    assert torch.equal(deploy.model[-1].anchor_grid, head.anchor_grid)


def narrow_deploy(name):
    return yaml.safe_dump(description(f"deploy/{name}", width_multiple=0.125))


@pytest.mark.parametrize(
    "name, half",
    [
        ("yolov7-tiny", False),
        ("yolov7-tiny", True),
        pytest.param("yolov7", True, marks=pytest.mark.slow),
        ("yolov7-w6", True),
    ],
)
def test_file_to_file(name, half, tmp_path):
    """A converted file loads as the trained one does and predicts the same, half-precision files included."""
    trained = fill(build_narrow(f"training/{name}", nc=2)).eval()
    trained.names = ["cat", "dog"]
    weights, cfg, output = tmp_path / "best.pt", tmp_path / "deploy.yaml", tmp_path / "deploy.pt"
    cfg.write_text(narrow_deploy(name))
    save_checkpoint({"epoch": -1, "model": copy.deepcopy(trained).half() if half else trained, "ema": None}, weights)
    assert write_deploy(weights, cfg, output) < 1e-4
    written = load_checkpoint(output)
    assert list(written) == ["model", "optimizer", "training_results", "epoch"]
    assert written["model"].model[1].conv.weight.dtype == (torch.half if half else torch.float)
    before, after = attempt_load(weights), attempt_load(output)
    assert after.names == ["cat", "dog"] and after.nc == 2
    x = image(1, 3, 128, 128)
    with torch.no_grad():
        torch.testing.assert_close(after(x)[0], before(x)[0], rtol=1e-5, atol=1e-4)


def test_the_network_of_another_file(tmp_path):
    trained = build_narrow("training/yolov7-tiny", nc=2).state_dict()
    with pytest.raises(
        UserError, match=r"yolov7-tiny.yaml: model.0.conv.weight is \[32, 3, 3, 3\], but w.pt has \[8, 3, 3, 3\]"
    ):
        to_deploy(trained, CFG / "deploy" / "yolov7-tiny.yaml", origin="w.pt")
    with pytest.raises(UserError, match=r"its head \(IDetect, 3 levels\) does not suit w.pt"):
        to_deploy(trained, CFG / "training" / "yolov7-tiny.yaml", origin="w.pt")


def test_weights_with_nothing_to_merge(monkeypatch, tmp_path):
    deploy = Model(description("deploy/yolov7-tiny", width_multiple=0.125), nc=2)
    with pytest.raises(UserError, match="no head with implicit vectors"):
        to_deploy(deploy.state_dict(), CFG / "deploy" / "yolov7-tiny.yaml")
    fused = build_narrow("training/yolov7-tiny", nc=2).fuse()
    monkeypatch.setattr("yolov7fast.checkpoint.checkpoint_reader.load_checkpoint", lambda path: {"model": fused})
    with pytest.raises(UserError, match=r"fused.pt: is already fused"):
        write_deploy(tmp_path / "fused.pt", CFG / "deploy" / "yolov7-tiny.yaml", tmp_path / "out.pt")
