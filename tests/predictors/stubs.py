"""Predictors and networks made up for tests."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from yolov7fast.predictors.base import Prediction, PredictOptions


class StubPredictor:
    """A function of (images, shapes, targets) as a predictor."""

    img_size = None
    fixed_size = False
    border = 0.0
    precision = "float32"
    uses_nms = True
    thread_safe = True
    stride = 32

    def __init__(
        self, function: Callable[..., Prediction], names: Sequence[str], options: PredictOptions | None = None
    ):
        self.function, self.names, self.options = function, names, options or PredictOptions()

    def __call__(self, images, shapes=(), targets=None) -> Prediction:
        return self.function(images, shapes, targets)

    def warm_up(self, img_size: int) -> None:
        pass


class StubNetwork(nn.Module):
    """A network whose output is made by a function of the images: (predictions, raw outputs)."""

    def __init__(self, function: Callable, names: Sequence[str] = ("a", "b"), dtype: torch.dtype = torch.float32):
        super().__init__()
        self.function, self.names, self.stride = function, list(names), torch.tensor([8.0, 16.0, 32.0])
        self.weight = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, images, augment=False):
        return self.function(images)
