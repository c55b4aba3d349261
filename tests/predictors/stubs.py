"""Predictors and networks for tests."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from yolov7fast.predictors.predictor import Prediction, PredictOptions, Predictor


class StubPredictor(Predictor):
    """A function of (images, shapes, targets) as a predictor."""

    def __init__(self, function: Callable, names: Sequence[str], options: PredictOptions | None = None):
        self.function, self.names, self.options = function, names, options or PredictOptions()

    def __call__(self, images, shapes=(), targets=None) -> Prediction:
        return self.function(images, shapes, targets)


class StubNetwork(nn.Module):
    """A network whose output is a function of the images: (predictions, raw outputs)."""

    def __init__(self, function: Callable, names: Sequence[str] = ("a", "b"), dtype: torch.dtype = torch.float32):
        super().__init__()
        self.function, self.names, self.stride = function, list(names), torch.tensor([8.0, 16.0, 32.0])
        self.weight = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, images, augment=False):
        return self.function(images)
