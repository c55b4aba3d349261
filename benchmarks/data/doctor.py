"""Time of `yolov7fast data check` compared with reading the files once, and of a second check of the same files.

`python -m benchmarks.data.doctor [--images 10000] [--size 640] [--runs 3] [--quick] [--json FILE]`

Draws labelled JPEGs, then in turn: reads every file once with two processes, each image decoded by cv2.imread and each
label read as text, in processes that run already and keep their memory as loaders do; checks the set with an empty
cache, as a separate command, from the start of Python to the page; checks it once more; and checks it for a network
whose anchors reach no box, so that others are searched for. The drawn images are all different. Wall seconds, and CPU
seconds of all processes, which other work on the machine changes less; medians.
"""

import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from benchmarks.measure import in_turn, note, quick_parser, show_machine, wall_seconds, write_json
from benchmarks.photographs import ROOT
from yolov7fast.core.errors import UserError, run_command
from yolov7fast.core.process.memory import keep_freed_memory

PROCESSES = 2
MOST = 1.5  # times the reading that a check may take
FAR = "anchors:\n  - [2,2, 3,3, 4,4]\n  - [5,5, 6,6, 7,7]\n"  # anchors that reach none of the drawn boxes
NAMES = ("red", "green", "blue")


def draw_set(folder: Path, images: int, size: int) -> Path:
    """`images` JPEGs of `size` x 3/4 `size` pixels with 1 to 8 rectangles each, a tenth of them for validation."""
    width, height = size, size * 3 // 4
    for i in tqdm(range(images), desc="drawing", leave=False):
        rng = np.random.default_rng(i)
        split = "val" if i % 10 == 9 else "train"
        ground = cv2.resize(rng.integers(40, 200, (6, 8, 3), np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
        grain = np.tile(rng.integers(0, 24, (64, 64, 3), np.uint8), (height // 64 + 1, width // 64 + 1, 1))
        image, lines = cv2.add(ground, grain[:height, :width]), []
        for _ in range(rng.integers(1, 9)):
            cls = int(rng.integers(len(NAMES)))
            w, h = rng.integers(width // 20, width // 3), rng.integers(height // 20, height // 3)
            x, y = rng.integers(0, width - w), rng.integers(0, height - h)
            colour = [40, 40, 40]
            colour[2 - cls] = 230
            cv2.rectangle(image, (int(x), int(y)), (int(x + w), int(y + h)), colour, -1)
            lines.append(f"{cls} {(x + w / 2) / width:.6f} {(y + h / 2) / height:.6f} {w / width:.6f} {h / height:.6f}")
        for kind, name in (("images", f"{i:06}.jpg"), ("labels", f"{i:06}.txt")):
            path = folder / kind / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "images":
                cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, 90])
            else:
                path.write_text("\n".join(lines) + "\n")
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: {list(NAMES)}\n")
    return folder / "data.yaml"


def read_pair(path: str) -> int:
    """Read an image and its label as training does; bytes of pixels, so that nothing is skipped."""
    image = cv2.imread(path)
    with open(path.replace("/images/", "/labels/").removesuffix("jpg") + "txt") as file:
        file.read()
    return image.nbytes


def read_once(folder: Path) -> float:
    """Seconds to read all files once."""
    paths = sorted(map(str, folder.glob("images/*/*.jpg")))

    def work() -> None:
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(PROCESSES, fork, initializer=keep_freed_memory) as pool:
            sum(pool.map(read_pair, paths, chunksize=64))

    return wall_seconds(work)


def check(data: Path, cache: Path, output: Path, *more: str) -> float:
    """Seconds of the command, including the start of the interpreter."""
    command = [sys.executable, "-m", "yolov7fast.cli.commands.data", "check", str(data), "--output", str(output)]
    command += more
    environment = {**os.environ, "YOLOV7FAST_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    codes = []
    log = output.with_suffix(".txt")

    def work() -> None:
        with log.open("w") as file:
            codes.append(subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file).returncode)

    seconds = wall_seconds(work)
    if codes[0] not in (0, 3, 4):
        raise UserError(f"the check ended with code {codes[0]}: {log.read_text()[-500:]}")
    return seconds


def cpu_of_all() -> float:
    """CPU seconds of this process and of all that have ended below it."""
    own, below = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime


def measure(images: int, size: int, runs: int, folder: Path) -> dict:
    data = draw_set(folder / "set", images, size)
    (folder / "far.yaml").write_text(FAR)
    number = iter(range(10**6))
    caches = [folder]

    def anew(*more: str) -> float:
        caches.append(folder / f"cache{next(number)}")
        return check(data, caches[-1], folder / "page", *more)

    sides = {
        "read": lambda: read_once(folder / "set"),
        "check": anew,
        "again": lambda: check(data, caches[-1], folder / "page"),
        "anchors": lambda: anew("--cfg", str(folder / "far.yaml")),
    }
    cpu: dict[str, list[float]] = {name: [] for name in sides}

    def counted(name: str, side) -> float:
        start = cpu_of_all()
        seconds = side()
        cpu[name].append(cpu_of_all() - start)
        return seconds

    sides["read"]()  # the files are in the page cache from here on, for all sides alike
    seconds = in_turn({name: partial(counted, name, side) for name, side in sides.items()}, runs)
    return seconds | {f"{name} cpu": statistics.median(values) for name, values in cpu.items()}


def main() -> None:
    parser = quick_parser("benchmarks.data.doctor", __doc__, "1,000 images, one round")
    parser.add_argument("--images", type=int, default=10_000, help="labelled images (default %(default)s)")
    parser.add_argument("--size", type=int, default=640, help="width of the images in pixels (default %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="rounds; medians are printed (default %(default)s)")
    opt = parser.parse_args()
    images, runs = (1000, 1) if opt.quick else (opt.images, opt.runs)
    results: dict = {"machine": show_machine(), "images": images, "size": opt.size}
    with tempfile.TemporaryDirectory() as name:
        seconds = results["seconds"] = measure(images, opt.size, runs, Path(name))
    print(f"{images:,} images of {opt.size} x {opt.size * 3 // 4}, {PROCESSES} processes, median of {runs}")
    for name, text in (
        ("read", "read every file once"),
        ("check", "check, nothing cached"),
        ("again", "check, nothing changed"),
        ("anchors", "check, anchors searched"),
    ):
        print(f"  {text:<25}{seconds[name]:8.2f} s, CPU {seconds[f'{name} cpu']:8.2f} s")
    of_cpu = seconds["check cpu"] / seconds["read cpu"]
    note(results, "data check / reading the files once", seconds["check"] / seconds["read"], f"<= {MOST}", runs)
    note(results, "data check / reading the files once, CPU time of all processes", of_cpu, "-", runs)
    with_anchors = seconds["anchors"] / seconds["read"]
    note(results, "data check with a search for anchors / reading the files once", with_anchors, "-", runs)
    note(results, "second check of the same files, seconds", seconds["again"], "-", runs)
    write_json(opt.json, results)


if __name__ == "__main__":
    run_command(main)
