"""Imported by every Python process whose PYTHONPATH has this folder: cuDNN off, hooks of the fake runtime installed."""

import fake_cuda_hooks

if fake_cuda_hooks.FAKE is not None:
    import torch

    torch.backends.cudnn.enabled = False  # not part of the fake runtime; convolutions are im2col and cuBLAS, per image
