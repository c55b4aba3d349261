"""Networks for inference: one file or several, stripped or not, with the names scripts rely on."""

import pytest
import torch
from torch import nn

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError, load_checkpoint, save_checkpoint
from yolov7fast.checkpoint.ensemble import Ensemble, attempt_load
from yolov7fast.nn.model import Model

IMAGE = torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("network", ["training_yolov7_tiny", "training_yolov7", "training_yolov7_w6", "deploy_yolov7"])
def test_network_predicts_as_before_it_was_fused(network, reference_files):
    plain = load_checkpoint(reference_files[f"{network}__full"])["ema"].float()
    fused = attempt_load(reference_files[f"{network}__stripped"])
    assert type(fused) is Model and not fused.training and not any(p.requires_grad for p in fused.parameters())
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    assert all(m.inplace for m in fused.modules() if isinstance(m, nn.SiLU | nn.LeakyReLU))
    with torch.no_grad():
        expected, predicted = plain(IMAGE)[0], fused(IMAGE)[0]
    torch.testing.assert_close(predicted, expected, rtol=1e-4, atol=1e-3)


def test_ema_comes_before_model(reference_files, tmp_path):
    checkpoint = load_checkpoint(reference_files["training_yolov7_tiny__full"])
    nn.init.zeros_(checkpoint["model"].model[0].conv.weight)
    save_checkpoint(checkpoint, tmp_path / "x.pt")
    assert attempt_load(tmp_path / "x.pt").model[0].conv.weight.any()
    save_checkpoint({"model": checkpoint["model"], "ema": None}, tmp_path / "x.pt")  # trained on, with gradients
    assert not attempt_load(tmp_path / "x.pt").model[0].conv.weight.any()


def test_bare_network_and_old_file_load(reference_files):
    for name in ("training_yolov7__init", "training_yolov7__legacy_full"):
        model = attempt_load(str(reference_files[name]))
        assert model(IMAGE)[0].shape == (1, 3 * (16 * 16 + 8 * 8 + 4 * 4), 8)
        assert all(m.recompute_scale_factor is None for m in model.modules() if isinstance(m, nn.Upsample))


def test_several_files_make_an_ensemble(reference_files):
    paths = [reference_files["training_yolov7_tiny__stripped"], reference_files["training_yolov7_w6__stripped"]]
    ensemble = attempt_load(paths)
    assert type(ensemble) is Ensemble and not ensemble.training
    predictions, rest = ensemble(IMAGE)
    one, two = (attempt_load([path]) for path in paths)
    assert rest is None
    assert torch.equal(predictions, torch.cat([one(IMAGE)[0], two(IMAGE)[0]], 1))
    assert ensemble.names == two.names and torch.equal(ensemble.stride, two.stride)
    assert ensemble(IMAGE, augment=True)[0].shape[1] > predictions.shape[1]


def test_what_is_no_detector_is_told(reference_files, tmp_path):
    weights = load_checkpoint(reference_files["training_yolov7_tiny__stripped"])["model"].state_dict()
    save_checkpoint(weights, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=r"weights\.pt holds weights only, not the network"):
        attempt_load(tmp_path / "weights.pt")
    save_checkpoint(nn.Sequential(nn.Conv2d(3, 3, 1)), tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match=r"other\.pt holds a Sequential, not a detector"):
        attempt_load(tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="no weights were given"):
        attempt_load([])


def test_ensemble_of_different_classes_is_told(reference_files, tmp_path):
    first = reference_files["training_yolov7_tiny__stripped"]
    model = load_checkpoint(first)["model"]
    save_checkpoint({"model": Model(model.yaml, nc=5)}, tmp_path / "five.pt")
    with pytest.raises(CheckpointError, match=r"the same classes, but .* has 3, .*five\.pt has 5"):
        attempt_load([first, tmp_path / "five.pt"])
