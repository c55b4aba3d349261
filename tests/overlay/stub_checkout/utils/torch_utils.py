"""Devices of the stub checkout."""

import torch


def select_device(device=""):
    return torch.device(device or "cpu")
