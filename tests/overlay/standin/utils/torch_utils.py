"""Devices of the stand-in checkout."""

import torch


def select_device(device=""):
    return torch.device(device or "cpu")
