"""What a run's page says of how and where it was run: command, commit, machine, versions."""

import os
import platform
import resource
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

import yolov7fast
from yolov7fast.core.files.paths import CHECKOUT
from yolov7fast.core.text import counted

# follow from others, or are facts of the command line
NOT_SHOWN = {
    *("given", "config", "save_dir", "resume", "local_rank", "global_rank", "world_size", "total_batch_size"),
    *("test_size", "bucket", "rate"),
}
LONGEST = 300  # characters of a value


def command_line() -> str:
    """What was typed, as far as Python knows it."""
    return shlex.join(sys.argv if sys.argv[0].startswith("yolov7fast ") else ["python", *sys.argv])


def changed_settings(opt: Namespace, defaults: Mapping[str, Any]) -> dict[str, str]:
    """Options that differ from their defaults."""
    values = {**vars(opt), "batch_size": getattr(opt, "total_batch_size", opt.batch_size)}
    return {
        name: str(value)[:LONGEST]
        for name, value in values.items()
        if name not in NOT_SHOWN and name in defaults and value != defaults[name]
    }


def machine_facts(device: torch.device) -> dict[str, str]:
    """By what they are called on the page."""
    facts = {
        "Commit": _commit(),
        "Machine": f"{platform.node()}, {platform.system()} {platform.release()}",
        "Processor": f"{_processor()}, {os.cpu_count()} cores",
        "Memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "Device": _device(device),
        "YOLOv7 Fast": yolov7fast.__version__,
        "Python": platform.python_version(),
        "torch": torch.__version__ + (f", CUDA {torch.version.cuda}" if torch.version.cuda else ""),
        "NumPy": np.__version__,
        "OpenCV": cv2.__version__,
    }
    return {name: value for name, value in facts.items() if value}


def _commit() -> str:
    """Of the checkout that runs; nothing where the program is installed, or git does not know."""
    if CHECKOUT is None:
        return ""
    words = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        return f"{device.type}, {counted(torch.get_num_threads(), 'thread')}"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names)


def peak_memory(device: torch.device) -> tuple[float, str]:
    """GB at most so far, and of what."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 1e9, "GPU, at most"
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, "main process, at most"
