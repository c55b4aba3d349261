"""Cost of the data path: samples on one core, batches from workers, caches, memory.

    python -m benchmarks.data [--quick] [--images N] [--upstream DIR] [--json FILE]

Uses the BCCD photographs (640x480) at ../shared/bccd where present, else the project's own data set. Compared sides run
in turn in one process; values are medians. CPU time is used where waiting does not matter, because other work on the
machine affects it less than wall time. With the folder of a checkout of upstream, its samples are measured in the same
run (`benchmarks.side_by_side.reference`).
"""

import contextlib
import io
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.data.bench import CACHES, Bench, sample_maker
from benchmarks.data.first_epoch import beside_upstream, first_epoch
from benchmarks.data.stages import stage_table
from benchmarks.measure import cpu_seconds, in_turn, quick_parser, wall_seconds, write_json
from benchmarks.photographs import image_folder
from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.data.caches.image_cache import PackedImages
from yolov7fast.data.loading.create_dataloader import make_loader

FAST = {"worker_tensor": True, "persistent_workers": True}  # what --fast-dataloader sets


def samples(bench: Bench) -> None:
    """Milliseconds of CPU for one training sample on one core: how images are kept, and how they are augmented."""
    out = bench.results["ms_per_sample"] = {}
    count = 32 if bench.quick else 100
    for size in (320, 640):
        sides = {kind: sample_maker(bench.dataset(size, kind), count) for kind in CACHES}
        for work in sides.values():
            work()  # page in
        costs = in_turn({kind: partial(cpu_seconds, work) for kind, work in sides.items()}, bench.runs)
        costs = {kind: seconds / count * 1e3 for kind, seconds in costs.items()}
        out[size] = costs
        for kind, cost in costs.items():
            must = "must >= 3.0x" if (size, kind) == (320, "disk") else ""
            bench.show(f"sample {size} {kind}", f"{cost:.2f} ms", costs["default"] / cost, must)


def stages(bench: Bench) -> None:
    """Where a sample's time goes (CPU time, with a timer around each stage)."""
    out = bench.results["stages_ms"] = {}
    count = 60 if bench.quick else 200
    for size in (320, 640):
        for kind in CACHES:
            table = out[f"{size} {kind}"] = stage_table(sample_maker(bench.dataset(size, kind), count), count)
            bench.show(f"stages {size} {kind}", "  ".join(f"{k} {v:.2f}" for k, v in table.items()))


def _loader(bench: Bench, batch_size: int, fast: bool, kind: str, size: int = 320):
    dataset = bench.dataset(size, kind)
    options = FAST if fast else {}
    return make_loader(dataset, batch_size, 2, **options)


def _drain(loader, batches: int, use=None) -> None:
    """Take so many batches, in as many epochs as it needs."""
    while batches > 0:
        for imgs, *_ in loader:
            if use is not None:
                use(imgs)
            batches -= 1
            if batches <= 0:
                return


def main_process(bench: Bench) -> None:
    """CPU time of the main process for one batch of 64 from 2 workers: received only, and received and copied."""
    out = bench.results["main_cpu_ms_per_batch"] = {}
    batches = 8 if bench.quick else 24
    device = torch.empty((64, 3, 320, 320), dtype=torch.uint8)  # in place of the memory of a device

    def cost(loader, use) -> float:
        return cpu_seconds(lambda: _drain(loader, batches, use)) / batches * 1e3

    uses = {"received": None, "received and copied": lambda imgs: device[: len(imgs)].copy_(imgs)}
    for label, use in uses.items():
        loaders = {side: _loader(bench, 64, side == "fast", "disk") for side in ("default", "fast")}
        try:
            for loader in loaders.values():
                _drain(loader, 6, use)  # every slot of the fast loader once
            costs = in_turn({side: partial(cost, loader, use) for side, loader in loaders.items()}, bench.runs)
        finally:
            for loader in loaders.values():
                loader.close()
        out[label] = costs
        text = f"{costs['default']:.2f} -> {costs['fast']:.2f} ms"
        must = "must <= 0.25x" if label == "received" else ""
        bench.show(f"main process, batch of 64, {label}", text, costs["fast"] / costs["default"], must)


def first_batch(bench: Bench) -> None:
    """Seconds from making the loader to its first batch, 2 workers, uncached, by batch size."""
    out = bench.results["first_batch_s"] = {}
    for batch_size in (128,) if bench.quick else (32, 64, 128):

        def first(fast: bool, batch_size=batch_size) -> float:
            loader = []

            def work():
                loader.append(_loader(bench, batch_size, fast, "default"))
                next(iter(loader[0]))

            try:
                return wall_seconds(work)
            finally:
                loader[0].close()

        times = out[batch_size] = in_turn({"default": partial(first, False), "fast": partial(first, True)}, bench.runs)
        text = f"{times['default']:.2f} -> {times['fast']:.2f} s"
        must = "must <= 0.60x" if batch_size == 128 else ""
        bench.show(f"first batch of {batch_size}", text, times["fast"] / times["default"], must)


def throughput(bench: Bench) -> None:
    """Samples a second from 2 workers over an epoch, by batch size: depending on the batch size."""
    out = bench.results["samples_per_s"] = {}
    for batch_size in (64,) if bench.quick else (16, 64, 128):
        loaders = {side: _loader(bench, batch_size, side == "fast", "disk") for side in ("default", "fast")}
        epochs = 1 if bench.quick else 3

        def rate(loader, epochs=epochs) -> float:
            _drain(loader, len(loader))  # uses up the batches made in advance
            seconds = wall_seconds(lambda: _drain(loader, epochs * len(loader)))
            return epochs * len(loader.dataset) / seconds

        try:
            rates = out[batch_size] = in_turn({k: partial(rate, v) for k, v in loaders.items()}, bench.runs)
        finally:
            for loader in loaders.values():
                loader.close()
        text = f"{rates['default']:.0f} -> {rates['fast']:.0f} samples/s"
        bench.show(f"2 workers, batch {batch_size}, disk cache", text, rates["fast"] / rates["default"])


def memory(bench: Bench) -> None:
    """Memory of the whole process tree (proportional set size) after each epoch; the third against the first."""
    out = bench.results["memory_mb"] = {}
    for side in ("default", "fast"):
        loader = _loader(bench, 16, side == "fast", "disk")
        try:
            sizes = []
            for _ in range(3 if bench.quick else 6):
                _drain(loader, len(loader))
                sizes.append(_tree_pss())
        finally:
            loader.close()
        out[side] = sizes
        text = " ".join(f"{s:.0f}" for s in sizes) + " MB"
        bench.show(f"memory after each epoch, {side}", text, sizes[2] / sizes[0], "must < 1.02x")


def _tree_pss() -> float:
    """MB of this process and all below it; memory shared by k of them counts 1/k in each."""
    pids, total = [os.getpid()], 0.0
    while pids:
        pid = pids.pop()
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += next(float(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1e3
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                pids += [int(p) for p in children.read_text().split()]
    return total


def packing(bench: Bench) -> None:
    """Building the packed file, opening it again, milliseconds an image, by the number of images."""
    out = bench.results["packing_ms_per_image"] = {}
    files = bench.dataset(320).img_files
    for n in (len(files) // 4, len(files)):
        times = {"build": [], "open": []}
        for _ in range(bench.runs):
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
                work = partial(PackedImages.open_or_build, files[:n], 320, augment=True, cache_dir=folder)
                times["build"].append(wall_seconds(work) / n * 1e3)
                times["open"].append(wall_seconds(work) / n * 1e3)
        costs = out[n] = {what: statistics.median(values) for what, values in times.items()}
        bench.show(f"pack {n} images", f"{costs['build']:.2f} ms to build, {costs['open']:.3f} ms to open")


PARTS = [
    samples,
    beside_upstream,
    first_epoch,
    stages,
    main_process,
    first_batch,
    throughput,
    memory,
    packing,
]


def main(argv: list[str] | None = None) -> int:
    parser = quick_parser("benchmarks.data", __doc__, "fewer rounds: rough results in about a minute")
    parser.add_argument("--only", choices=[p.__name__ for p in PARTS], action="append", help="this part alone")
    parser.add_argument("--images", type=int, help="images of the first epoch (default 10,000; 500 with --quick)")
    parser.add_argument(
        "--upstream", type=Path, metavar="DIR", help="folder of a checkout of upstream, to compare with"
    )
    opt = parser.parse_args(argv)
    images = opt.images or (500 if opt.quick else 10_000)
    torch.set_num_threads(1)
    keep_freed_memory()  # as processes that load images do
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(image_folder(Path(scratch)) / "images" / "train", Path(scratch), opt.quick, images, opt.upstream)
        print(" ".join(f"{k} {v}" for k, v in bench.results["machine"].items()))
        print(f"data set {bench.results['images']}, medians of {bench.runs} rounds in turn")
        for part in PARTS:
            if opt.only is None or part.__name__ in opt.only:
                part(bench)
    write_json(opt.json, bench.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
