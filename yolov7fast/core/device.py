"""Choice of the device, copies to it, and results read from it while further work is queued."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.core.torch_build import needs_cuda_12, nvidia_gpus, reinstall_command

log = logging.getLogger(__name__)


def select_device(device: str = "", batch_size: int | None = None) -> torch.device:
    """'' = the visible GPUs, else the CPU; 'cpu'; '0' or '0,1,2' = those GPUs (the first is returned).

    batch_size: checked to be a multiple of the number of GPUs. Sets CUDA_VISIBLE_DEVICES if a device is named, so it
    must be called before anything has used a GPU. A GPU that torch cannot use is an error unless 'cpu' is given.
    """
    wanted = str(device).strip().lower().removeprefix("cuda:")
    if wanted == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    elif wanted and wanted != "cuda":
        if not all(part.strip().isdigit() for part in wanted.split(",")):
            raise UserError(f"--device '{device}' is neither cpu nor a list of GPU numbers such as 0 or 0,1")
        os.environ["CUDA_VISIBLE_DEVICES"] = wanted
    use_gpu = wanted != "cpu" and torch.cuda.is_available()
    if wanted != "cpu" and not use_gpu and (unused := unused_gpu()):
        raise UserError(f"{': '.join(unused)}; or give --device cpu")
    count = torch.cuda.device_count() if use_gpu else 0
    if wanted not in ("", "cpu") and count < len(wanted.split(",")):
        raise UserError(f"--device {device}: torch {torch.__version__} sees {counted(count, 'GPU')}; try --device cpu")
    if count > 1 and batch_size and batch_size % count:
        raise UserError(f"--batch-size {batch_size} is not a multiple of the {count} GPUs in use")
    chosen = torch.device("cuda", 0) if use_gpu else torch.device("cpu")
    log.info("torch %s on %s", torch.__version__, _describe(count))
    return chosen


def unused_gpu() -> tuple[str, str] | None:
    """What is wrong and its remedy, if the driver lists a GPU that torch cannot use; None if CUDA_VISIBLE_DEVICES hides
    all GPUs."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1") or not (gpus := nvidia_gpus()):
        return None
    cuda = torch.version.cuda
    if cuda and (int(cuda.split(".")[0]) < 13 or not needs_cuda_12(gpus[0].driver)):
        remedy = "find out why: python -c 'import torch; torch.cuda.init()'"  # the build fits the driver
    else:
        remedy = reinstall_command(gpus)
    build = f"CUDA {cuda}" if cuda else "a build for the CPU"
    listed = f"nvidia-smi lists {gpus[0].name} (driver {gpus[0].driver})"
    return f"{listed}, but torch {torch.__version__} ({build}) cannot use it", remedy


def _describe(count: int) -> str:
    names = [torch.cuda.get_device_properties(i) for i in range(count)]
    return ", ".join(f"CUDA:{i} ({p.name}, {p.total_memory / 2**20:.0f} MB)" for i, p in enumerate(names)) or "CPU"


def wait_for_device() -> None:
    """Wait until all work queued on the GPU is done, if one is in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def time_synchronized() -> float:
    """The current time in seconds, after all work queued on the GPU is done."""
    wait_for_device()
    return time.perf_counter()


@contextmanager
def untuned_convolutions() -> Iterator[None]:
    """In the block cuDNN does not time its algorithms for each new shape: rectangular batches have many shapes."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def is_accelerator(device: torch.device) -> bool:
    """Whether page-locked host memory speeds up copies to the device."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type == device.type


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Copy arrays to `device` with one copy for each dtype among them; the tensors are views of that buffer.

    The buffer is page-locked if the device is an accelerator, so that the copy is asynchronous; the allocator keeps
    such memory until the copy is done.
    """
    pin = is_accelerator(device)
    sent: dict[int, torch.Tensor] = {}
    for dtype in dict.fromkeys(a.dtype for a in arrays):
        members = [i for i, a in enumerate(arrays) if a.dtype == dtype]
        buffer = torch.from_numpy(np.concatenate([arrays[i].ravel() for i in members]))
        buffer = (buffer.pin_memory() if pin else buffer).to(device, non_blocking=True)
        for i, part in zip(members, buffer.split([arrays[i].size for i in members])):
            sent[i] = part if arrays[i].ndim == 1 else part.view(arrays[i].shape)
    return [sent[i] for i in range(len(arrays))]


class HostMark:
    """A point in time, with the interface of `torch.cuda.Event`, for devices without a queue."""

    def __init__(self):
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end: "HostMark") -> float:
        """Milliseconds until `end`."""
        return (end.seconds - self.seconds) * 1e3


class DeviceQueue:
    """The work queued on a device: marks in it, and a second CUDA stream in which results are read.

    A read in the main stream would wait for everything queued before it, the next batch included. The second stream
    waits for the work before a mark only. On the CPU every call returns when its work is done.
    """

    def __init__(self, device: torch.device):
        self.device = device
        # high priority: the host waits for its small kernels while those of the main stream are queued
        self.side = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    @property
    def runs_ahead(self) -> bool:
        """Whether a call may return before its work is done."""
        return self.side is not None

    def mark(self) -> torch.cuda.Event | HostMark:
        """A mark after all work queued so far; `mark.elapsed_time(later)` gives milliseconds once both have passed."""
        if self.side is None:
            return HostMark()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def beside(self, mark: torch.cuda.Event | HostMark) -> Iterator[None]:
        """Wait for the work before the mark, and run the block's work in parallel with what was queued after it.

        All of the block's work is done when it is left, so tensors from outside that it reads may be freed then. Its
        results must be copied to the host inside the block.
        """
        mark.synchronize()
        if self.side is None:
            yield
            return
        try:
            with torch.cuda.stream(self.side):
                yield
        finally:
            self.side.synchronize()
