"""Which build of torch fits this machine, by NVIDIA's driver. Standard library only.

`scripts/choose_torch.py` uses it before anything is installed, `core.device` for its error message.
"""

import re
import shlex
import subprocess
from typing import NamedTuple

SUPPORTED = "torch>=2.6,<2.14"  # requirements.txt says the same
PINNED = ("torch==2.13.0", "torchvision==0.28.0")  # the default build: CUDA 13
CUDA_13_DRIVER = 580  # older drivers need a build for CUDA 12
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # without the gigabytes of CUDA's libraries
CUDA_12_INDEX = "https://download.pytorch.org/whl/cu128"  # also has code for Blackwell (sm_120)


class Gpu(NamedTuple):
    name: str
    driver: str  # version, such as 570.124.06


def nvidia_gpus() -> list[Gpu]:
    """GPUs that NVIDIA's driver lists; empty without the driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.partition(",") for line in done.stdout.splitlines() if "," in line]
    return [Gpu(name.strip(), driver.strip()) for driver, _, name in rows]


def is_supported(version: str) -> bool:
    """Whether this is a torch version from 2.6 to 2.13."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return bool(found) and (2, 6) <= (int(found[1]), int(found[2])) < (2, 14)


def needs_cuda_12(driver: str) -> bool:
    found = re.match(r"\d+", driver)
    return bool(found) and int(found[0]) < CUDA_13_DRIVER


def packages_for(gpus: list[Gpu], index: str = "") -> list[str]:
    """Arguments of `pip install` for torch and torchvision.

    Args:
        gpus: of `nvidia_gpus`.
        index: address to install from instead of the one that the driver asks for.
    """
    if not index and gpus and needs_cuda_12(gpus[0].driver):
        index = CUDA_12_INDEX
    if index:
        return [SUPPORTED, "torchvision", "--index-url", index]
    # pip prefers 2.13.0+cpu to 2.13.0, which it takes where the further index cannot be reached
    return [*PINNED, *([] if gpus else ["--extra-index-url", CPU_INDEX])]


def reinstall_command(gpus: list[Gpu]) -> str:
    """The command that replaces an installed torch by one that fits the driver."""
    return f"python -m pip install --force-reinstall {shlex.join(packages_for(gpus))}"
