"""What `yolov7fast data check` costs beside reading the files once, and what a second check of the same files costs.

`python -m benchmarks.data.doctor [--images 10000] [--size 640] [--runs 3] [--quick] [--json FILE]`

Draws labelled JPEGs, then in turn: reads every file once as training does (cv2.imread and the label's text) with two
processes; checks the set with an empty cache, as a command of its own, page included; checks it once more. The drawn
images are all different. Wall seconds, and CPU seconds of all processes, which other work on the machine changes less;
medians.
"""

import argparse
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

from benchmarks.measure import in_turn, machine, wall_seconds, write_json
from benchmarks.photographs import ROOT
from yolov7fast.core.errors import UserError, run_command

PROCESSES = 2
MOST = 1.5  # times the reading that a check may take
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
        with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("fork")) as pool:
            sum(pool.map(read_pair, paths, chunksize=64))

    return wall_seconds(work)


def check(data: Path, cache: Path, output: Path) -> float:
    """Seconds of the command, from the start of the interpreter to its end."""
    command = [sys.executable, "-m", "yolov7fast.commands.data_sets.data", "check", str(data), "--output", str(output)]
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
    rounds = iter(range(10**6))
    cpu: dict[str, list[float]] = {"read": [], "check": [], "again": []}

    def counted(name: str, side) -> float:
        start = cpu_of_all()
        seconds = side()
        cpu[name].append(cpu_of_all() - start)
        return seconds

    state = {"cache": folder}

    def first() -> float:
        state["cache"] = folder / f"cache{next(rounds)}"
        return check(data, state["cache"], folder / "page")

    sides = {
        "read": lambda: read_once(folder / "set"),
        "check": first,
        "again": lambda: check(data, state["cache"], folder / "page"),
    }
    sides["read"]()  # the files are in the page cache from here on, for all sides alike
    seconds = in_turn({name: partial(counted, name, side) for name, side in sides.items()}, runs)
    return seconds | {f"{name} cpu": statistics.median(values) for name, values in cpu.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, help="labelled images (default %(default)s)")
    parser.add_argument("--size", type=int, default=640, help="width of the images in pixels (default %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="rounds; medians are printed (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="1,000 images, one round")
    parser.add_argument("--json", help="write the results to this file")
    opt = parser.parse_args()
    images, runs = (1000, 1) if opt.quick else (opt.images, opt.runs)
    with tempfile.TemporaryDirectory() as name:
        seconds = measure(images, opt.size, runs, Path(name))
    ratio = seconds["check"] / seconds["read"]
    print(f"{images:,} images of {opt.size} x {opt.size * 3 // 4}, {PROCESSES} processes, median of {runs}")
    of_cpu = seconds["check cpu"] / seconds["read cpu"]
    print(f"  read every file once     {seconds['read']:8.2f} s, CPU {seconds['read cpu']:8.2f} s")
    print(f"  check, nothing cached    {seconds['check']:8.2f} s, CPU {seconds['check cpu']:8.2f} s")
    print(f"  check, nothing changed   {seconds['again']:8.2f} s, CPU {seconds['again cpu']:8.2f} s")
    print(f"  check / reading          {ratio:8.2f} (at most {MOST}), CPU {of_cpu:.2f}")
    row = {"what": "data check / reading the files once", "value": ratio, "must": f"<= {MOST}", "runs": runs}
    write_json(opt.json, {"machine": machine(), "images": images, "seconds": seconds, "ratios": [row]})


if __name__ == "__main__":
    run_command(main)
