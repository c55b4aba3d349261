"""Which module opens which weights: the family's for checkpoints (`checkpoint.families`), here those of exported files.

Such a module has `load_predictor(sources, device, options) -> Predictor`; it is imported when it is needed, so
that no command waits for a runtime that it does not use.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.checkpoint.families import entry_of, family_of
from yolov7fast.checkpoint.released_weights import local_weights
from yolov7fast.core.errors import UserError
from yolov7fast.predictors.base import PredictOptions, Predictor, Source

EXPORTED = "yolov7fast.predictors.exported.predictor"
BY_SUFFIX: dict[str, str] = {".onnx": EXPORTED, ".xml": EXPORTED, ".torchscript.pt": EXPORTED, ".torchscript": EXPORTED}


def listed(weights: str | Path | Sequence[str | Path] | None) -> list[str]:
    """Weights as scripts give them, one file or several or none, as a list."""
    given = [weights] if isinstance(weights, str | Path) else weights or []
    return [str(path) for path in given if str(path)]


def load_predictor(
    weights: str | Path | Sequence[str | Path], device: torch.device, options: PredictOptions
) -> Predictor:
    """The detector in one weights file, or an ensemble of several of one kind. Nothing in a file is run."""
    paths = list(map(local_weights, listed(weights)))
    if not paths:
        raise UserError("no weights are named: give --weights FILE")
    modules, sources = [], []
    for path in paths:
        module, content = _module_of_suffix(path), None
        if module is None:
            content = load_checkpoint(path)
            module = entry_of(family_of(content), path).predictor
        modules.append(module)
        sources.append(Source(path, content))
    if len(set(modules)) > 1:
        kinds = ", ".join(f"{path} ({module.rpartition('.')[2]})" for path, module in zip(paths, modules))
        raise UserError(f"--weights: an ensemble needs files of one kind, but these are {kinds}")
    return import_module(modules[0]).load_predictor(sources, device, options)


def _module_of_suffix(path: str) -> str | None:
    """The module that opens a file by the end of its name; None: a checkpoint."""
    return next((module for end, module in BY_SUFFIX.items() if path.lower().endswith(end)), None)
