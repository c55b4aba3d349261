"""Deterministic weights and inputs, and the summaries in which the recorded figures are kept."""

import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn

from yolov7fast.nn.model import Model
from yolov7fast.nn.model_parser import read_description

CFG = Path(__file__).resolve().parents[2] / "cfg"


def build(name: str, **kwargs) -> Model:
    """name: "training/yolov7" or the like."""
    return Model(CFG / f"{name}.yaml", **kwargs)


def description(name: str, **changes) -> dict:
    """The mapping in a configuration, with some keys changed."""
    return read_description(CFG / f"{name}.yaml") | changes


def build_narrow(name: str, **kwargs) -> Model:
    """An eighth as wide: for what does not depend on the width."""
    return Model(description(name, width_multiple=0.125), **kwargs)


def build_filled(name: str, **kwargs) -> Model:
    return fill(build(name, **kwargs))


def fill_value(name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """The value of a state-dict entry, float64: a function of its name and shape alone; None: as built."""
    last = name.rsplit(".", 1)[-1]
    if last in ("anchors", "anchor_grid", "num_batches_tracked"):
        return None
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if last == "running_var":
        return 0.5 + random.random_sample(shape)
    z = random.standard_normal(shape)
    if last == "implicit":
        return 0.1 * z if name.split(".")[-3] == "ia" else 1 + 0.1 * z
    if len(shape) == 4:
        return 1.45 * z / np.sqrt(shape[1] * shape[2] * shape[3])
    return 1 + 0.1 * z if last == "weight" else 0.1 * z


@torch.no_grad()
def fill(model: nn.Module) -> nn.Module:
    for name, tensor in model.state_dict().items():
        value = fill_value(name, tuple(tensor.shape))
        if value is not None:
            tensor.copy_(torch.from_numpy(np.asarray(value)).float())
    return model


def image(*shape: int) -> torch.Tensor:
    """(B, 3, H, W) float32 in 0..1, the same everywhere."""
    seed = zlib.crc32(f"input:{'x'.join(map(str, shape))}".encode())
    return torch.from_numpy(np.random.RandomState(seed).random_sample(shape).astype(np.float32))


def samples(tensor: torch.Tensor) -> np.ndarray:
    """Up to 64 values, at places spread over the tensor."""
    flat = tensor.detach().double().numpy().ravel()
    if flat.size <= 64:
        return flat
    return flat[(12345 + np.arange(64, dtype=np.int64) * 2654435761) % flat.size]


def assert_close(tensor: torch.Tensor, recorded: dict, tolerance: float) -> None:
    """Shape equal; samples and mean within tolerance x recorded standard deviation; sum and deviation relative."""
    values = tensor.detach().double().numpy()
    assert list(values.shape) == recorded["shape"]
    scale = tolerance * recorded["std"]
    np.testing.assert_allclose(samples(tensor), recorded["v"], rtol=0, atol=scale)
    np.testing.assert_allclose(values.mean(), recorded["mean"], rtol=0, atol=scale)
    np.testing.assert_allclose(values.std(), recorded["std"], rtol=tolerance)
    np.testing.assert_allclose(np.abs(values).sum(), recorded["abssum"], rtol=tolerance)


def assert_all_close(tensors, recorded: list[dict], tolerance: float) -> None:
    assert len(tensors) == len(recorded)
    for tensor, figures in zip(tensors, recorded):
        assert_close(tensor, figures, tolerance)


def batchnorms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
