"""The overlay's command for a script that insists on a GPU for each process: the CPU stands in, processes talk by gloo.

Upstream's train.py checks `torch.cuda.device_count()` under torchrun and asks for NCCL, so that two processes cannot be
tried on a CPU by its own means. Here it counts two GPUs, and every one of them is the CPU. Started by torchrun.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from yolov7fast.cli.commands.overlay import main
from yolov7fast.core.errors import run_command

REAL_DEVICE, real_init = torch.device, dist.init_process_group


class _IsDevice(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, REAL_DEVICE)


class _Device(metaclass=_IsDevice):
    def __new__(cls, *args, **kwargs):
        cuda = bool(args) and str(args[0]).startswith("cuda")
        return REAL_DEVICE("cpu") if cuda else REAL_DEVICE(*args, **kwargs)


class _OnHost(DistributedDataParallel):
    def __init__(self, module, device_ids=None, output_device=None, **kwargs):
        super().__init__(module, **kwargs)


torch.device = _Device
torch.cuda.device_count = lambda: 2
torch.cuda.set_device = lambda device: None
dist.init_process_group = lambda backend=None, **kwargs: real_init("gloo", **kwargs)
torch.nn.parallel.DistributedDataParallel = torch.nn.parallel.distributed.DistributedDataParallel = _OnHost
run_command(main)
