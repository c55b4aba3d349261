"""Which device to run on, and a clock that waits for it."""

import logging
import os
import shlex
import time

import torch

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.core.torch_build import needs_cuda_12, nvidia_gpus, packages_for

log = logging.getLogger(__name__)


def select_device(device: str = "", batch_size: int | None = None) -> torch.device:
    """'' = the visible GPUs, else the CPU; 'cpu'; '0' or '0,1,2' = those GPUs (the first is returned).

    batch_size: checked to be a multiple of the number of GPUs. Sets CUDA_VISIBLE_DEVICES where a choice is made, so it
    must be called before anything has touched a GPU. A GPU that torch cannot use is an error unless 'cpu' is given.
    """
    wanted = str(device).strip().lower().removeprefix("cuda:")
    if wanted == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    elif wanted and wanted != "cuda":
        if not all(part.strip().isdigit() for part in wanted.split(",")):
            raise UserError(f"--device '{device}' is neither cpu nor a list of GPU numbers such as 0 or 0,1")
        os.environ["CUDA_VISIBLE_DEVICES"] = wanted
    use_gpu = wanted != "cpu" and torch.cuda.is_available()
    if wanted != "cpu" and not use_gpu:
        refuse_unused_gpu()
    count = torch.cuda.device_count() if use_gpu else 0
    if wanted not in ("", "cpu") and count < len(wanted.split(",")):
        raise UserError(f"--device {device}: torch {torch.__version__} sees {counted(count, 'GPU')}; try --device cpu")
    if count > 1 and batch_size and batch_size % count:
        raise UserError(f"--batch-size {batch_size} is not a multiple of the {count} GPUs in use")
    chosen = torch.device("cuda", 0) if use_gpu else torch.device("cpu")
    log.info("torch %s on %s", torch.__version__, _describe(count))
    return chosen


def refuse_unused_gpu() -> None:
    """Raise UserError if the driver lists a GPU that torch cannot use, unless CUDA_VISIBLE_DEVICES hides all GPUs."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return
    gpus = nvidia_gpus()
    if not gpus:
        return
    cuda = torch.version.cuda
    if cuda and (int(cuda.split(".")[0]) < 13 or not needs_cuda_12(gpus[0].driver)):
        remedy = "find out why: python -c 'import torch; torch.cuda.init()'"  # the build fits the driver
    else:
        remedy = f"python -m pip install --force-reinstall {shlex.join(packages_for(gpus))}"
    raise UserError(
        f"nvidia-smi lists {gpus[0].name} (driver {gpus[0].driver}), but torch {torch.__version__} "
        f"({f'CUDA {cuda}' if cuda else 'a build for the CPU'}) cannot use it: {remedy}; or give --device cpu"
    )


def _describe(count: int) -> str:
    names = [torch.cuda.get_device_properties(i) for i in range(count)]
    return ", ".join(f"CUDA:{i} ({p.name}, {p.total_memory / 2**20:.0f} MB)" for i, p in enumerate(names)) or "CPU"


def wait_for_device() -> None:
    """Until all work handed to the GPU is done, if there is one in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def time_synchronized() -> float:
    """Seconds now, after all work handed to the GPU is done."""
    wait_for_device()
    return time.perf_counter()
