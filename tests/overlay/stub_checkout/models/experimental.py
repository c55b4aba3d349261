"""Loading, as a checkout does it: `torch.load` by path alone."""

import torch

from utils.general import xywh2xyxy  # noqa: F401 - circles of imports, as in a checkout


def attempt_load(weights, map_location=None):
    checkpoint = torch.load(weights, map_location=map_location)
    return checkpoint["model"].float().eval()
