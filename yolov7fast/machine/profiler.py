"""Stage times of real training steps, on a data set or on one random batch; several losses alternate batch by batch."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.core.device import is_accelerator
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.distributed import World
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.optimizer import ModelEMA
from yolov7fast.training.step import TrainStep, choose_amp
from yolov7fast.training.timing import STAGES, StageTimer
from yolov7fast.training.yolo_family import YoloFamily
from yolov7fast.training.yolo_network import build_model

KERNEL_STEPS = 5  # traced to measure the GPU's work


class FixedLoader(list):
    """A loader that yields the same batch in every epoch."""

    num_workers = 0

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        pass

    def close(self) -> None:
        pass


class SyntheticData:
    """The attributes of a data set that the family reads, for a random batch."""

    def __init__(self, classes: int):
        self.labels = [np.array([[c, 0.5, 0.5, 0.2, 0.2]], np.float32) for c in range(classes)]
        self.indices, self.n = range(classes), classes

    def __len__(self) -> int:
        return self.n


class ProfiledFamily(YoloFamily):
    """The YOLO family; `--synthetic` replaces its loaders by one random batch."""

    dataset: Any  # a data set, or `SyntheticData`
    loader: Any  # a loader, or `FixedLoader`

    def __init__(self, config: YoloTrainConfig, data: DataYaml, model: Any, device: torch.device, targets: int | None):
        """targets: boxes of each image of the random batch; None: the loaders of the data set."""
        self.targets = targets
        super().__init__(config, data, model, device, World())

    def build_loaders(self, stage: Any) -> None:
        if self.targets is None:
            return super().build_loaders(stage)
        self.stage, self.img_size = stage, stage.size
        images, *rest = synthetic_batch(self.config.batch_size, stage.size, self.targets, self.nc)
        images = images.pin_memory() if is_accelerator(self.device) else images  # as loaders do
        self.loader = FixedLoader([(images, *rest)])
        self.dataset = SyntheticData(self.nc)


def synthetic_batch(batch: int, size: int, targets: int, classes: int) -> tuple:
    """A seeded batch as loaders yield it: uint8 (B, 3, size, size), float32 (B * targets, 6), paths, shapes."""
    random = np.random.RandomState(0)
    images = torch.from_numpy(random.randint(0, 256, (batch, 3, size, size), dtype=np.uint8))
    n = batch * targets
    wh = np.exp(random.uniform(np.log(0.02), np.log(0.6), (n, 2)))
    columns = [np.repeat(np.arange(batch), targets)[:, None], random.randint(0, classes, (n, 1))]
    rows = np.concatenate([*columns, random.uniform(0.05, 0.95, (n, 2)), wh], 1)
    return images, torch.from_numpy(rows.astype(np.float32)), ("synthetic",) * batch, (None,) * batch


def random_batch_data(classes: int) -> DataYaml:
    """The classes of a random batch, in place of a data file."""
    return DataYaml("a random batch", classes, [str(number) for number in range(classes)])


def build_step(
    config: YoloTrainConfig, data: DataYaml, device: torch.device, targets: int | None = None
) -> tuple[ProfiledFamily, TrainStep]:
    """The family and the training step of `train.py` with this config; targets: boxes an image of a random batch."""
    model = build_model(config, load_hyp(config.hyp), data.nc).to(device)
    family = ProfiledFamily(config, data, model, device, targets)
    family.optimizer, family.ema = family.build_optimizer(), ModelEMA(model)
    family.build_loaders(family.stages[0])
    family.fit_to_data(resumed=False)
    family.net = family.wrapped()
    family.build_loss()
    family.model.train()
    amp = choose_amp(config.amp, device)
    return family, TrainStep(family, family.model, family.net, family.optimizer, family.ema, device, amp=amp)


def batches(loader, count: int) -> Iterator[tuple]:
    """`count` batches, from as many epochs as needed."""
    epoch = given = 0
    while given < count:
        loader.set_epoch(epoch)
        for batch in loader:
            yield batch
            given += 1
            if given == count:
                return
        epoch += 1


def in_turn(kinds: Sequence[str], rounds: int) -> Iterator[str]:
    """Each kind once a round, every second round in reverse order, so that a drift affects all equally."""
    for number in range(rounds):
        yield from kinds if number % 2 == 0 else reversed(kinds)


def measure(
    family: YoloFamily, step: TrainStep, kinds: Sequence[str], iters: int, warm_iters: int, device: torch.device
) -> dict[str, dict]:
    """Profiles by assigner, as in profile.json; the losses train one network on the batches of one loader."""
    timers = {kind: StageTimer(device) for kind in kinds}
    sizes: dict[str, list[int]] = {kind: [] for kind in kinds}
    rates = family.schedule.rates(0, 0, 0)._replace(accumulate=1)
    traced = KERNEL_STEPS if device.type == "cuda" else 0
    total = (warm_iters + iters + traced) * len(kinds)
    stream = batches(family.loader, total)
    with tqdm(total=total, desc="profiling", mininterval=1) as bar:

        def iteration(kind: str, *timer: StageTimer) -> int:
            batch = next(stream)
            family.assigner = kind
            step(batch, 0, rates, *timer)
            bar.update()
            return len(batch[0])

        for kind in in_turn(kinds, warm_iters):
            iteration(kind)
        step.sync_metrics()  # waits until the device has finished the warm-up
        for kind in in_turn(kinds, iters):
            timers[kind].follow()
            sizes[kind].append(iteration(kind, timers[kind]))
        step.sync_metrics()
        profiles = {kind: summarise(timers[kind].totals(), timers[kind].host_totals(), sizes[kind]) for kind in kinds}
        for kind in kinds if traced else ():
            profiles[kind]["kernel_ms"] = kernel_ms(partial(iteration, kind), traced)
    return profiles


def kernel_ms(iteration: Callable[[], object], steps: int) -> float:
    """Milliseconds of an iteration in which the GPU works, by torch.profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            iteration()
        torch.cuda.synchronize()
    events = (event for event in profiler.events() or () if event.device_type.name != "CPU")
    spans = sorted(
        (e.time_range.start, e.time_range.end) for e in events if not getattr(e, "is_user_annotation", False)
    )
    busy = done = 0.0
    for start, end in spans:  # kernels of several streams may overlap
        busy += max(end - max(start, done), 0.0)
        done = max(done, end)
    return busy / 1e3 / steps


def summarise(times: Mapping[str, list[float]], host: Mapping[str, list[float]], sizes: Sequence[int]) -> dict:
    """A profile from the milliseconds of each iteration by stage, by the device's and by the host's clock, and the
    number of images of each iteration. `host_ms`: without waiting for data."""
    stages = {name: times[name] for name in STAGES if name in times}
    mean = {name: statistics.fmean(values) for name, values in stages.items()}
    on_host = {name: statistics.fmean(host[name]) for name in stages}
    total = sum(mean.values()) or 1e-9
    rows = {
        name: {
            "mean_ms": mean[name],
            "std_ms": statistics.pstdev(values),
            "fraction": mean[name] / total,
            "host_ms": on_host[name],
        }
        for name, values in stages.items()
    }
    return {
        "stages": rows,
        "total_ms": total,
        "host_ms": sum(on_host.values()) - on_host.get("data", 0.0),
        "images_per_s": statistics.fmean(sizes) / total * 1e3,
        "gpu_busy": (mean.get("forward", 0.0) + mean.get("backward", 0.0)) / total,
        "iterations": len(sizes),
    }
