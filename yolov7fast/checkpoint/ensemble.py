"""Loading trained networks for inference. The module's name is where scripts look for it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from yolov7fast.checkpoint.api import CheckpointError, load_checkpoint, module_of
from yolov7fast.checkpoint.release import local_weights
from yolov7fast.nn.model import Model

IN_PLACE = (nn.Hardswish, nn.LeakyReLU, nn.ReLU, nn.ReLU6, nn.SiLU)


class Ensemble(nn.ModuleList):
    """Several detectors whose predictions are pooled; suppression then chooses among them."""

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
    """One network as it is, several as an `Ensemble`; they must have the same number of classes."""
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
    """The network of an opened checkpoint, made ready: its EMA if it has one, float32, fused, in eval mode."""
    model = module_of(checkpoint, prefer_ema=True, origin=path)
    if not isinstance(model, Model):
        raise CheckpointError(f"{path} holds a {type(model).__name__}, not a detector; give a .pt file from training")
    model = model.float().requires_grad_(False).fuse().eval()
    for m in model.modules():
        if isinstance(m, IN_PLACE):
            m.inplace = True
        elif isinstance(m, nn.Upsample):
            m.recompute_scale_factor = None  # files of PyTorch before 1.11 come with another value
    return model
