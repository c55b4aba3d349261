"""Where does an iteration's time go? `python tests/profile_training_loop.py --help`

Runs the real training step on the real loader (or, with --synthetic, on one random batch) and prints a table of stages.
CUDA events measure a GPU without waiting inside the loop; a monotonic clock measures a CPU.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.cli.flags import FLAGS, Flag, Parser
from yolov7fast.cli.run_file import check_options
from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.files import write_atomically
from yolov7fast.data.data_yaml import DataYaml, load_data_yaml
from yolov7fast.families.yolo import YoloFamily
from yolov7fast.families.yolo_run import build_model, effective_hyp, init_seeds
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.plots.curves import figure
from yolov7fast.profiling.op_counter import OpCounter
from yolov7fast.training.bottleneck import ADVICE, verdict
from yolov7fast.training.distributed import World
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.step import TrainStep, choose_amp
from yolov7fast.training.timing import STAGES, StageTimer

PROFILE_FLAGS = [
    Flag("--iters", "iterations that are measured", {"type": int, "default": 30}, False),
    Flag("--warm-iters", "iterations before the measurement", {"type": int, "default": 5}, False),
    Flag("--compare-loss", "measure the plain loss and OTA in turn", {"action": "store_true"}, False),
    Flag("--synthetic", "one random batch instead of a data set", {"action": "store_true"}, False),
    Flag("--targets", "boxes an image of --synthetic", {"type": int, "default": 17}, False),
    Flag("--trace", "write a Chrome trace of three iterations to this file", {"type": str, "default": ""}, False),
    Flag("--output", "folder for profile.json and profile.png", {"type": str, "default": "runs/profile"}, False),
]


class FixedLoader(list):
    """One batch, given as often as asked for."""

    num_workers = 0

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        pass

    def close(self) -> None:
        pass


class SyntheticData:
    """What the family asks of a data set, for batches that come from none."""

    def __init__(self, classes: int):
        self.labels = [np.array([[c, 0.5, 0.5, 0.2, 0.2]], np.float32) for c in range(classes)]
        self.indices, self.n = range(classes), classes


class ProfiledFamily(YoloFamily):
    """The training family; `--synthetic` replaces its loaders by one random batch."""

    def _build_loaders(self, stage) -> None:
        if not self.opt.synthetic:
            return super()._build_loaders(stage)
        self.stage, self.img_size = stage, stage.size
        self.loader = FixedLoader([synthetic_batch(self.opt.total_batch_size, stage.size, self.opt.targets, self.nc)])
        self.dataset = SyntheticData(self.nc)


def synthetic_batch(batch: int, size: int, targets: int, classes: int) -> tuple:
    random = np.random.RandomState(0)
    images = torch.from_numpy(random.randint(0, 256, (batch, 3, size, size), dtype=np.uint8))
    n = batch * targets
    wh = np.exp(random.uniform(np.log(0.02), np.log(0.6), (n, 2)))
    columns = [np.repeat(np.arange(batch), targets)[:, None], random.randint(0, classes, (n, 1))]
    rows = np.concatenate([*columns, random.uniform(0.05, 0.95, (n, 2)), wh], 1)
    return images, torch.from_numpy(rows.astype(np.float32)), ("synthetic",) * batch, (None,) * batch


@contextmanager
def split_loss(family: YoloFamily, timer: StageTimer) -> Iterator[None]:
    """Let the losses mark the end of candidate search and matching, so that the assignment is timed apart.

    Only while the block runs: what is counted or traced afterwards must not reach the timer.
    """
    losses = (family.plain_loss, family.ota_loss)
    for loss in losses:
        for name in ("plan", "match"):
            setattr(loss, name, _marked(getattr(loss, name), timer))
    try:
        yield
    finally:
        for loss in losses:
            del loss.plan, loss.match  # the class's own show again


def _marked(part, timer):
    def run(*args, **kwargs):
        timer.mark("loss")
        result = part(*args, **kwargs)
        timer.mark("assignment")
        return result

    return run


def batches(loader, count: int):
    """`count` batches, going round the loader as often as needed."""
    epoch = given = 0
    while given < count:
        loader.set_epoch(epoch)
        for batch in loader:
            yield batch
            given += 1
            if given == count:
                return
        epoch += 1


def measure(family: YoloFamily, step: TrainStep, opt, device: torch.device) -> dict:
    """Run warm-up and measured iterations; returns the profile as it is written to profile.json."""
    timer, sizes = StageTimer(device), []
    rates = family.schedule.rates(0, 0, 0)._replace(accumulate=1)
    stream = batches(family.loader, opt.warm_iters + opt.iters + 1)
    with tqdm(total=opt.warm_iters + opt.iters, desc="profiling", leave=False, mininterval=1) as bar:
        for number in range(opt.warm_iters):
            step(next(stream), number, rates)
            bar.update()
        step.read()  # the device has done the warm-up before the clocks start
        with split_loss(family, timer):
            started = time.perf_counter()
            timer.follow()
            for number in range(opt.iters):
                batch = next(stream)
                step(batch, opt.warm_iters + number, rates, timer)
                sizes.append(len(batch[0]))
                bar.update()
            step.read()
            wall = time.perf_counter() - started
    times = timer.totals()
    with OpCounter() as counter:
        step(next(stream), 0, rates)
    return summarise(times, wall, sizes, counter)


def summarise(times: dict[str, list[float]], wall: float, sizes: list[int], counter: OpCounter) -> dict:
    stages = {name: times[name] for name in STAGES if name in times}
    total = sum(statistics.fmean(values) for values in stages.values())
    mean = {name: statistics.fmean(values) for name, values in stages.items()}
    return {
        "stages": {
            name: {
                "mean_ms": mean[name],
                "std_ms": statistics.pstdev(values),
                "share": mean[name] / total if total else 0.0,
            }
            for name, values in stages.items()
        },
        "total_ms": total,
        "wall_ms": wall * 1e3 / len(sizes),
        "images_per_s": sum(sizes) / wall,
        "gpu_busy": (mean.get("forward", 0.0) + mean.get("backward", 0.0)) / total if total else 0.0,
        "operators": counter.total,
        "host_reads": counter.host_reads,
        "iterations": len(sizes),
    }


def table(profile: dict, title: str) -> str:
    lines = [f"\n{title}", f"{'stage':>12}{'mean ms':>12}{'std ms':>12}{'share':>10}"]
    for name, row in profile["stages"].items():
        lines.append(f"{name:>12}{row['mean_ms']:12.2f}{row['std_ms']:12.2f}{row['share']:10.1%}")
    lines.append(f"{'iteration':>12}{profile['total_ms']:12.2f}{'':>12}{1:10.1%}")
    lines.append(
        f"{profile['images_per_s']:.1f} images/s, busy share (forward + backward) {profile['gpu_busy']:.1%}, "
        f"{profile['operators']} operators and {profile['host_reads']} host reads an iteration, "
        f"{profile['iterations']} iterations measured"
    )
    return "\n".join(lines)


def advice(profile: dict) -> str:
    """One line in words: what bounds this run, and which flag to try."""
    share = {name: row["share"] for name, row in profile["stages"].items()}
    loss = share.get("loss", 0.0) + share.get("assignment", 0.0)
    parts = {"data": share.get("data", 0.0), "loss": loss, "validation": 0.0}
    bound = verdict(parts | {"network": 1 - sum(parts.values())})
    return f"This run is bound by {ADVICE[bound]}"


def draw(profiles: dict[str, dict], path: Path) -> None:
    """Stacked bars, one for each loss."""
    with figure(path, (8, 1.2 + 0.7 * len(profiles)), 150) as fig:
        ax = fig.subplots()
        colours = ["#888888", "#bcbd22", "#1f77b4", "#d62728", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b"]
        for row, profile in enumerate(profiles.values()):
            left = 0.0
            for stage, colour in zip(STAGES, colours):
                width = profile["stages"].get(stage, {"mean_ms": 0.0})["mean_ms"]
                ax.barh(row, width, left=left, color=colour, label=stage if row == 0 else None)
                left += width
            ax.text(left, row, f" {left:.1f} ms", va="center")
        ax.set_yticks(range(len(profiles)), list(profiles))
        ax.set_xlabel("milliseconds an iteration")
        ax.set_xlim(right=ax.get_xlim()[1] * 1.12)
        fig.legend(loc="outside lower center", ncols=len(STAGES), fontsize=8, frameon=False)


def trace(family: YoloFamily, step: TrainStep, path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    rates = family.schedule.rates(0, 0, 0)._replace(accumulate=1)
    with torch.profiler.profile(activities=activities) as profiler:
        for number, batch in enumerate(batches(family.loader, 3)):
            step(batch, number, rates)
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
    print(f"trace of three iterations: {path} (open in chrome://tracing or ui.perfetto.dev)")


def parse(argv=None) -> argparse.Namespace:
    parser = Parser(FLAGS + PROFILE_FLAGS, prog="tests/profile_training_loop.py", description=__doc__)
    # no default data set: the trainer's would be fetched first, 20 GB for a minute's measurement
    parser.set_defaults(
        cfg="cfg/training/yolov7-tiny.yaml", hyp="data/hyp.scratch.tiny.yaml", data="", noautoanchor=True
    )
    opt = parser.parse_args(argv)
    check_options(opt)
    opt.total_batch_size, opt.evolve = opt.batch_size, True  # evolve: a family that draws and keeps nothing
    return opt


def check(opt: argparse.Namespace) -> None:
    """Refuse before anything is built what could only fail after it."""
    for name, least in (("iters", 1), ("warm_iters", 0), ("targets", 0)):
        if getattr(opt, name) < least:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(opt, name)}; it must be at least {least}")
    if not opt.synthetic and not opt.data:
        raise UserError("nothing to measure on: give --data FILE (a data yaml), or --synthetic for a random batch")
    writable_folder(Path(opt.output), "--output")
    if opt.trace and Path(opt.trace).is_dir():
        raise UserError(f"--trace {opt.trace} is a folder; give the name of a file")
    if opt.trace:
        writable_folder(Path(opt.trace).parent, "--trace")


def writable_folder(folder: Path, flag: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{flag}: folder {folder} cannot be made ({error.strerror}); give another place") from None


def trace_path(opt: argparse.Namespace, loss: str) -> Path:
    """The file of a loss's trace: as given, or with the loss in its name where two are written."""
    path = Path(opt.trace)
    return path.with_name(f"{path.stem}_{loss}{path.suffix}") if opt.compare_loss else path


def profile_loss(opt: argparse.Namespace, hyp: dict, data: DataYaml, device: torch.device, loss: str) -> dict:
    """Build network, loader and step for one kind of loss, measure them, and write the trace if one is wanted."""
    ota = int(loss == "ota")
    with tempfile.TemporaryDirectory() as scratch:
        model = build_model(opt, hyp, data.nc, device)
        if not ota and isinstance(model.model[-1], IAuxDetect):
            wish = "--compare-loss" if opt.compare_loss else "loss_ota 0"
            raise UserError(
                f"{wish}: {opt.cfg or opt.weights} has auxiliary heads, whose only loss is OTA; leave it out"
            )
        family = ProfiledFamily(opt, {**hyp, "loss_ota": ota}, data, model, device, World(), Path(scratch))
        family.use_ota = bool(ota)
        family.model.train()
        amp = choose_amp(opt.amp, device)
        step = TrainStep(family, family.model, family.net, family.optimizer, family.ema, device, amp=amp)
        try:
            profile = measure(family, step, opt, device)
            if opt.trace:
                trace(family, step, trace_path(opt, loss))
        finally:
            family.close()
    return profile


def comparison(plain: dict, ota: dict) -> str:
    """OTA against plain in words: the whole iteration, and what of it the loss is."""

    def loss_ms(profile: dict) -> float:
        return sum(profile["stages"].get(name, {"mean_ms": 0.0})["mean_ms"] for name in ("loss", "assignment"))

    whole, part = ota["total_ms"] / plain["total_ms"], loss_ms(ota) / loss_ms(plain)
    return (
        f"\nan iteration with OTA takes {whole:.3f} times one with the plain loss; "
        f"loss + assignment alone {part:.3f} times ({loss_ms(ota):.2f} against {loss_ms(plain):.2f} ms)"
    )


def main(argv=None) -> int:
    opt = parse(argv)
    check(opt)
    device = select_device(opt.device)
    init_seeds(1, opt.deterministic)
    hyp = effective_hyp(load_hyp(opt.hyp), opt)
    names = [str(number) for number in range(80)]
    data = DataYaml("--synthetic", 80, names) if opt.synthetic else load_data_yaml(opt.data)
    kinds = ("plain", "ota") if opt.compare_loss else ("ota" if hyp["loss_ota"] else "plain",)
    profiles = {}
    for kind in kinds:
        profiles[kind] = profile_loss(opt, hyp, data, device, kind)
        print(table(profiles[kind], f"{kind} loss, batch {opt.batch_size}, {opt.img_size[0]} pixels, {device.type}"))
    if opt.compare_loss:
        print(comparison(**profiles))
    last, output = profiles[kinds[-1]], Path(opt.output)
    written = last if len(kinds) == 1 else {**last, "by_loss": profiles}
    write_atomically(output / "profile.json", json.dumps(written, indent=2) + "\n")
    draw(profiles, output / "profile.png")
    print(f"\nwritten: {output / 'profile.json'}, {output / 'profile.png'}\n{advice(last)}")
    return 0
