"""From the host to the device in one copy a type, without waiting for it."""

from collections.abc import Sequence

import numpy as np
import torch


def is_accelerator(device: torch.device) -> bool:
    """Whether it is what this machine's page-locked memory is for."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type == device.type


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Copy arrays to `device` together: one buffer and one copy for each dtype among them, returned as views of it.

    The buffer is page-locked where the device is the machine's accelerator, so that the copy runs beside the host's
    work; the allocator keeps such memory until the copy is done.
    """
    pin = is_accelerator(device)
    sent: dict[int, torch.Tensor] = {}
    for dtype in dict.fromkeys(a.dtype for a in arrays):
        members = [i for i, a in enumerate(arrays) if a.dtype == dtype]
        sizes = [arrays[i].size for i in members]
        flat = np.concatenate([arrays[i].ravel() for i in members])
        buffer = torch.from_numpy(flat)
        buffer = (buffer.pin_memory() if pin else buffer).to(device, non_blocking=True)
        for i, part in zip(members, buffer.split(sizes)):
            sent[i] = part if arrays[i].ndim == 1 else part.view(arrays[i].shape)
    return [sent[i] for i in range(len(arrays))]
