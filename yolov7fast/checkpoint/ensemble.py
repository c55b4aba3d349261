"""Loading of trained networks for inference."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError, load_checkpoint, module_of
from yolov7fast.checkpoint.released_weights import local_weights
from yolov7fast.core.errors import MORE_MEMORY, UserError, is_out_of_memory, one_line
from yolov7fast.core.files.settings_files import is_whole
from yolov7fast.nn.model import Model
from yolov7fast.nn.model_parser import MOST_CHANNELS

LARGEST_STRIDE = 1 << 10
IN_PLACE = (nn.Hardswish, nn.LeakyReLU, nn.ReLU, nn.ReLU6, nn.SiLU)


class Ensemble(nn.ModuleList):
    """Several detectors whose predictions are concatenated before NMS."""

    def forward(self, x: torch.Tensor, augment: bool = False) -> tuple[torch.Tensor, None]:
        """x: (B, 3, H, W) -> the predictions of all, (B, sum of their rows, 5 + classes), and None."""
        return torch.cat([model(x, augment)[0] for model in self], 1), None


def attempt_load(
    weights: str | Path | Iterable[str | Path], map_location: str | torch.device | None = None
) -> nn.Module:
    """The network of a checkpoint (its EMA if it has one), float32, fused, in eval mode, on a device (default: CPU).

    Several files give an `Ensemble` with `names` and `stride` of the last.
    """
    paths = [weights] if isinstance(weights, str | Path) else list(weights)
    if not paths:
        raise CheckpointError("no weights were given; name one .pt file or more")
    paths = list(map(local_weights, paths))
    models = [inference_network(load_checkpoint(path, map_location), path) for path in paths]
    return ensemble_of(models, paths)


def ensemble_of(models: Sequence[Model], paths: Sequence[str | Path]) -> nn.Module:
    """The network, or an `Ensemble` of several; they must have the same number of classes."""
    if len(models) == 1:
        return models[0]
    classes = {len(model.names) for model in models}
    if len(classes) > 1:
        listed = ", ".join(f"{path} has {len(model.names)}" for path, model in zip(paths, models))
        raise CheckpointError(f"an ensemble needs networks with the same classes, but {listed}")
    ensemble: Any = Ensemble(models)
    ensemble.names, ensemble.stride = models[-1].names, models[-1].stride
    return ensemble.eval()


def inference_network(checkpoint: Mapping | nn.Module, path: str | Path) -> Model:
    """The network of a loaded checkpoint for inference: its EMA if it has one, float32, fused, in eval mode."""
    model = module_of(checkpoint, prefer_ema=True, origin=path)
    if not isinstance(model, Model):
        raise CheckpointError(f"{path} holds a {type(model).__name__}, not a detector; give a .pt file from training")
    try:
        model = prepared(model)
    except Exception as error:
        if is_out_of_memory(error):
            raise UserError(f"{path}: out of memory when its network ran; {MORE_MEMORY}") from None
        # invalid attributes can raise any exception
        raise CheckpointError(f"{path} is damaged: its network cannot run ({one_line(error, 150)})") from error
    return model


def prepared(model: Model) -> Model:
    """The network in eval mode, fused, after one run on a tiny image that shows whether it works."""
    model = model.float().requires_grad_(False).fuse().eval()
    names = model.names.values() if isinstance(model.names, dict) else model.names
    if not isinstance(model.names, dict | list) or not all(isinstance(name, str | int | float) for name in names):
        raise ValueError("its class names are not text")
    for m in model.modules():
        if isinstance(m, IN_PLACE):
            m.inplace = True
    stride = int(model.stride.max())
    if not 1 <= stride <= LARGEST_STRIDE:
        raise ValueError(f"its largest stride is {stride}")
    channels, parameter = model.yaml.get("ch", 3), next(model.parameters())
    if not is_whole(channels, 1, MOST_CHANNELS):
        raise ValueError("its input has no number of channels")
    with torch.no_grad():
        predictions = model(torch.zeros(1, channels, stride, stride, device=parameter.device))[0]
    if not isinstance(predictions, torch.Tensor) or predictions.ndim != 3:
        raise ValueError("its output is not that of a detector")
    return model
