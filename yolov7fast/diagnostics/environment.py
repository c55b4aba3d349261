"""Is the machine fit for training? Driver, torch's build, memory, shared memory, cores, disk; each with its remedy."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from yolov7fast.diagnostics.results import FIGURE, LEFT_OUT, Line, judged
from yolov7fast.diagnostics.setting import Setting

GB = 1e9
# what the default loader may have under way: 8 workers, 2 batches each, of 16 images at 640 pixels
IN_FLIGHT = 8 * 2 * 16 * 3 * 640 * 640
LEAST = {"gpu": 4 * GB, "ram": 4 * GB, "free disk": 5 * GB}
LEAST_DISK_SPEED = 80e6  # bytes a second: some 800 JPEGs of 100 kB
CORES_PER_GPU = 4
WHEELS = "pip install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/"


# --- readings, which tests replace ------------------------------------------------------------------------------------


def nvidia_smi() -> list[str] | None:
    """'driver version, name' of each GPU; None without NVIDIA's driver."""
    words = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else None


def cpu_quota() -> float | None:
    """Cores that the container may use (cgroup); None: all."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        folder = Path("/sys/fs/cgroup/cpu")
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return None if quota < 0 else quota / period
    return None


def free_memory() -> float | None:
    """Bytes of RAM that are free for us: of the machine, or what the container's limit leaves."""
    found = []
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with contextlib.suppress(OSError, ValueError):
        folder = Path("/sys/fs/cgroup")
        found.append(float((folder / "memory.max").read_text()) - float((folder / "memory.current").read_text()))
    return min(found, default=None)


def disk_speed(folder: Path, size: int) -> tuple[float, float]:
    """Bytes a second, written and read, of a file whose pages are dropped in between."""
    path, block = folder / ".yolov7fast_disk_check", os.urandom(4 << 20)
    try:
        start = time.perf_counter()
        with path.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        written = time.perf_counter() - start
        with path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            while file.read(len(block)):
                pass
        return size / written, size / (time.perf_counter() - start)
    finally:
        path.unlink(missing_ok=True)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def check_driver(setting: Setting) -> Line:
    """Does torch reach the GPU that the driver shows?"""
    cards, built = nvidia_smi(), torch.version.cuda
    if setting.on_gpu:
        driver = cards[0].split(",")[0] if cards else "unknown"
        return judged("driver", True, f"driver {driver}, torch {torch.__version__} built for CUDA {built}")
    if not cards:
        return Line("driver", LEFT_OUT, "no NVIDIA GPU on this machine")
    driver, name = (part.strip() for part in cards[0].split(",", 1))
    if built is None:
        text = f"{name} is here (driver {driver}), but torch {torch.__version__} is built without CUDA"
        return judged("driver", False, text, f"{WHEELS}cu128")
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":
        return Line("driver", LEFT_OUT, f"{name} is here and was not asked for (--device cpu)")
    text = f"{name} is here, but driver {driver} does not serve torch's CUDA {built}"
    return judged("driver", False, text, f"update the driver, or take an older build: {WHEELS}cu126")


def check_architecture(setting: Setting) -> Line:
    """Does torch's build hold code for this card? Binary code serves its own major version, PTX every later card."""
    name = "torch's CUDA build against the card"
    if not setting.on_gpu:
        return Line(name, LEFT_OUT, "no GPU")
    capability, built = torch.cuda.get_device_capability(setting.device), torch.cuda.get_arch_list()
    card = f"{torch.cuda.get_device_name(setting.device)}, sm_{capability[0]}{capability[1]}"
    if serves(capability, built):
        return judged(name, True, f"{card}, is served by {', '.join(built)}")
    text = f"{card}, is not among {', '.join(built) or 'none'}"
    return judged(name, False, text, f"{WHEELS}cu128 (or newer), which holds sm_{capability[0]}{capability[1]}")


def serves(capability: tuple[int, int], built: Sequence[str]) -> bool:
    for entry in built:
        kind, _, digits = entry.partition("_")
        digits = "".join(c for c in digits if c.isdigit())
        if not digits:
            continue
        version = int(digits[:-1]), int(digits[-1])
        if kind == "sm" and version[0] == capability[0] and version[1] <= capability[1]:
            return True
        if kind == "compute" and version <= capability:
            return True
    return False


def check_gpu_memory(setting: Setting) -> Line:
    if not setting.on_gpu:
        return Line("GPU memory", LEFT_OUT, "no GPU")
    free, total = torch.cuda.mem_get_info(setting.device)
    text = f"{free / GB:.1f} of {total / GB:.1f} GB free"
    remedy = "end what uses the GPU (nvidia-smi shows it), or train with a smaller --batch-size"
    return judged("GPU memory", free >= LEAST["gpu"], text, remedy, free=free, total=total)


def check_ram(setting: Setting) -> Line:
    free = free_memory()
    if free is None:
        return Line("RAM", LEFT_OUT, "the system does not say how much is free")
    remedy = "train without --cache-images ram and with fewer --workers, or rent more memory"
    return judged("RAM", free >= LEAST["ram"], f"{free / GB:.1f} GB free", remedy, free=free)


def check_shared_memory(setting: Setting) -> Line:
    """The default loader passes batches through /dev/shm, which containers keep at 64 MB unless set otherwise."""
    name = "/dev/shm"
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Line(name, LEFT_OUT, "this system has none")
    text = f"{free / GB:.2f} GB free; the default loader passes up to {IN_FLIGHT / GB:.2f} GB (batch 16 at 640 pixels)"
    remedy = "train with --fast-dataloader, which needs none of it, or start the container with --shm-size 8g"
    return judged(name, free >= IN_FLIGHT, text, remedy, free=free)


def check_cores(setting: Setting) -> Line:
    """Cores that a container sees but may not use make loaders and torch start too many threads."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    cores = min(seen, quota or seen)
    whole = max(int(cores), 1)
    text = f"{cores:g} cores for up to 8 --workers"
    if quota is not None and quota < 0.75 * seen:
        remedy = f"train with --workers {whole} and OMP_NUM_THREADS={whole}"
        return judged(
            "cores", False, f"{seen} cores are seen, but the container may use {quota:g}", remedy, cores=cores
        )
    if setting.on_gpu:
        wanted = CORES_PER_GPU * torch.cuda.device_count()
        remedy = "train with --fast-dataloader --cache-images disk --fast-augment, or rent more cores"
        return judged(
            "cores", cores >= wanted, f"{text}; a GPU is fed by {CORES_PER_GPU} and more", remedy, cores=cores
        )
    return Line("cores", FIGURE, text, figures={"cores": cores})


def check_disk(setting: Setting) -> list[Line]:
    """Of the folder the command was started in."""
    free = shutil.disk_usage(setting.place).free
    remedy = f"free some space: caches and checkpoints go below {setting.place}"
    lines = [judged("free disk", free >= LEAST["free disk"], f"{free / GB:.0f} GB", remedy, free=free)]
    if free < 4 * setting.disk_bytes or not os.access(setting.place, os.W_OK):
        return [*lines, Line("disk speed", LEFT_OUT, f"no room to write a file in {setting.place}")]
    written, read = disk_speed(setting.place, setting.disk_bytes)
    text = f"writes {written / 1e6:.0f} MB/s, reads {read / 1e6:.0f} MB/s"
    remedy = "copy the data set to a local disk, or train with --cache-images ram"
    ok = min(written, read) >= LEAST_DISK_SPEED
    return [*lines, judged("disk speed", ok, text, remedy, written=written, read=read)]


CHECKS: Sequence[Callable[[Setting], Line | list[Line]]] = (
    check_driver,
    check_architecture,
    check_gpu_memory,
    check_ram,
    check_shared_memory,
    check_cores,
    check_disk,
)
