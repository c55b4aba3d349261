"""Parts of `benchmarks.data` about samples that are decoded: compared with upstream, and the first epoch."""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import cv2

from benchmarks.data.bench import Bench
from benchmarks.measure import cpu_seconds, in_turn
from benchmarks.photographs import ROOT
from yolov7fast.core.errors import UserError
from yolov7fast.data.caches.image_cache import PackedImages


def beside_upstream(bench: Bench) -> None:
    """Uncached samples of upstream and of the default path, in turn, each in a separate process, and compared."""
    if bench.upstream is None:
        print("no --upstream DIR: upstream's samples are not measured")
        return
    path = bench.scratch / "upstream.json"
    command = [sys.executable, "-m", "benchmarks.side_by_side.reference", "--repo", str(bench.upstream)]
    command += ["--parts", "samples"]
    command += ["--epochs", "0", "--runs", str(bench.runs), "--images", str(bench.images), "--json", str(path)]
    if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        raise UserError(f"upstream's samples could not be measured; run {' '.join(command)}")
    rows = bench.results["beside_upstream"] = json.loads(path.read_text())["rows"]
    for row in rows:
        if "error" in row:
            raise UserError(f"upstream's samples could not be measured: {row['error']}")
        text = f"{row['upstream'] * 1e3:.0f} -> {row['overlay'] * 1e3:.0f} ms, difference {row['difference']:g}"
        bench.show(f"upstream / default: {row['what']}", text, row["upstream"] / row["overlay"], "must >= 1.3x")


def first_epoch(bench: Bench) -> None:
    """Seconds to build the packed cache of many images at 320 compared with one pass.

    The images are links to the photographs, as many as `--images` says; a pass reads and decodes every file once.
    """
    n = bench.first_epoch_images
    files = bench.dataset(320).img_files
    folder = bench.scratch / "links"
    folder.mkdir(exist_ok=True)
    links = [folder / f"{i:06}{Path(files[i % len(files)]).suffix}" for i in range(n)]
    for i, link in enumerate(links):
        link.symlink_to(Path(files[i % len(files)]).resolve())
    paths = list(map(str, links))

    def plain() -> None:
        for path in paths:
            cv2.imread(path)

    def build() -> None:
        with tempfile.TemporaryDirectory() as place, contextlib.redirect_stderr(io.StringIO()):
            PackedImages.open_or_build(paths, 320, augment=True, cache_dir=place)

    works = {"plain pass": plain, "pack": build}
    wall = bench.results["first_epoch_s"] = {}

    def both(name: str) -> float:
        """CPU seconds of a work; its wall seconds are kept."""
        start = time.perf_counter()
        cpu = cpu_seconds(works[name])
        wall[name] = time.perf_counter() - start
        return cpu

    costs = bench.results["first_epoch_cpu_s"] = in_turn({name: partial(both, name) for name in works}, 1)
    bench.results["first_epoch_images"] = n
    text = f"{costs['plain pass']:.1f} -> {costs['pack']:.1f} s of CPU, {wall['pack']:.1f} s"
    bench.show(f"{n} images: pack / plain pass", text, costs["pack"] / costs["plain pass"])
