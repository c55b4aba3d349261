"""How much an object of each class counts in the class loss (`--class-weights`).

`auto` weighs by the effective number of samples (Cui et al. 2019): n objects of a class count as
E(n) = (1 - b^n) / (1 - b) different ones, because later objects resemble earlier ones; the weight is 1 / E(n).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.yaml_file import read_yaml

AUTO = "auto"
BETA = 0.999  # of the effective number: beyond some thousand objects more of them add little
MOST = 1000.0  # times the smallest weight, beyond which a file is a mistake


def loss_class_weights(setting: str, labels: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray | None:
    """(nc,) float32 weights with a mean of 1 over the objects, or None if nothing is set.

    setting: "auto", or a YAML file with a weight for each class. labels: (m, 5) of every training image.
    """
    if not setting:
        return None
    if len(names) < 2:
        raise UserError("--class-weights: with one class there is no class loss to weigh; leave the flag out")
    classes = np.concatenate([np.zeros((0, 5)), *labels])[:, 0].astype(int)
    counts = np.bincount(classes, minlength=len(names))[: len(names)]
    weights = effective_number_weights(counts) if setting == AUTO else read_weights(setting, names)
    objects = max(counts.sum(), 1)
    mean = (weights * counts).sum() / objects
    return (weights / (mean or 1.0)).astype(np.float32)


def effective_number_weights(counts: np.ndarray, beta: float = BETA) -> np.ndarray:
    """(nc,) one over the effective number of objects of each class; a class without objects counts as one object."""
    return (1 - beta) / (1 - beta ** np.maximum(counts, 1).astype(np.float64))


def read_weights(path: str, names: Sequence[str]) -> np.ndarray:
    """(nc,) weights of a YAML file: a list in the order of the classes, or `name: weight` (1 for those left out)."""
    values = read_yaml(path, "--class-weights", "give auto, or a YAML file with a weight for each class")
    if isinstance(values, Mapping):
        unknown = [str(key) for key in values if str(key) not in names]
        if unknown:
            raise UserError(f"--class-weights {path}: there is no class '{unknown[0]}'; classes: {', '.join(names)}")
        values = [values.get(name, 1) for name in names]
    if not isinstance(values, list) or len(values) != len(names):
        count = f"{len(values)} weights" if isinstance(values, list) else repr(values)[:40]
        raise UserError(f"--class-weights {path} holds {count}; the data set has {len(names)} classes")
    good = [isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < np.inf for v in values]
    if not all(good):
        raise UserError(f"--class-weights {path}: {values[good.index(False)]!r} is no weight; it must be above 0")
    weights = np.array(values, np.float64)
    if weights.max() > MOST * weights.min():
        raise UserError(f"--class-weights {path}: weights differ by more than {MOST:g} times, which no training stands")
    return weights
