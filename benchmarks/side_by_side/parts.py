"""The parts that `reference.py` runs on both sides: losses, a training step, samples, the loader, metrics."""

import argparse
import contextlib
import io
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.photographs import ROOT
from benchmarks.side_by_side.inputs import raw_outputs, target_rows
from benchmarks.side_by_side.sides import Side, in_a_process
from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.labels import find_images, img2label_paths
from yolov7fast.overlay import replacements
from yolov7fast.overlay.checkout import Checkout
from yolov7fast.overlay.repairs import torchvision_loads
from yolov7fast.overlay.replacements import HostTargets, fast_create_dataloader
from yolov7fast.training.hyperparameters import load_hyp, scale_gains

NETWORK = "cfg/training/yolov7-tiny.yaml"
SAMPLES = 32  # in one timing
LOADER_BATCHES = 8  # in one timing: enough to use up the batches prepared in advance


Works = Iterator[tuple[str, dict[str, Side]]]  # name of the task, upstream's and the overlay's side


@dataclass
class Case:
    """Sizes, the checkout, and inputs that are the same for both sides."""

    checkout: Checkout
    batch: int
    step_batch: int
    size: int
    targets: int
    classes: int
    workers: int
    runs: int
    images: Path | None  # folder of images, in a data set that may be written
    hyp: dict[str, float]

    @classmethod
    def of(cls, opt: argparse.Namespace, checkout: Checkout, scratch: Path) -> "Case":
        images = own_data(opt.images.resolve(), scratch / "data") if opt.images.is_dir() else None
        sizes = (opt.batch_size, opt.step_batch_size, opt.img_size, opt.targets, opt.classes, opt.workers, opt.runs)
        return cls(checkout, *sizes, images, dict(load_hyp(ROOT / "data" / "hyp.scratch.tiny.yaml")))

    def model(self):
        """The checkout's own network with the loss gains that its trainer sets."""
        torch.manual_seed(0)
        with contextlib.redirect_stdout(io.StringIO()):
            model = self.checkout.module("models.yolo").Model(str(self.checkout.root / NETWORK), ch=3, nc=self.classes)
        gains = scale_gains(self.hyp, levels=3, classes=self.classes, img_size=self.size, smoothing=0.0)
        model.hyp, model.gr, model.nc = dict(gains), 1.0, self.classes
        return model

    def maps(self) -> list[torch.Tensor]:
        return raw_outputs(self.batch, self.size, self.classes)

    def rows(self, batch: int) -> torch.Tensor:
        """Targets (N, 6)."""
        return target_rows(batch, self.targets, self.classes)


class Part(NamedTuple):
    name: str
    prepare: Callable[[Case], Works]
    needs_images: bool = False


def own_data(images: Path, folder: Path) -> Path:
    """A data set below `folder` that may be written: images linked, labels copied; returns its folder of images."""
    found = find_images(str(images))
    for image, label in zip(found, img2label_paths(found), strict=True):
        name = Path(image).relative_to(images)
        link, copy = folder / "images" / "train" / name, folder / "labels" / "train" / name.with_suffix(".txt")
        for path in (link, copy):
            path.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(image)
        if Path(label).is_file():
            shutil.copyfile(label, copy)
    return folder / "images" / "train"


def loss_part(name: str, wants_images: bool) -> Callable[[Case], Works]:
    def prepare(case: Case) -> Works:
        model, maps, rows = case.model(), case.maps(), case.rows(case.batch)
        images = [torch.zeros(case.batch, 3, case.size, case.size)] if wants_images else []
        theirs, ours = getattr(case.checkout.module("utils.loss"), name)(model), replacements.REPLACED[name](model)

        def forward(loss, targets) -> Callable:
            return lambda: loss(maps, targets, *images)[1]

        def both_ways(loss, targets) -> Callable:
            def run():
                leaves = [m.detach().requires_grad_() for m in maps]
                total, items = loss(leaves, targets, *images)
                total.backward()
                return items, [m.grad for m in leaves]

            return run

        for what, work in (("forward", forward), ("forward + backward", both_ways)):
            counted = work is forward
            sides = {"upstream": work(theirs, rows), "overlay": work(ours, HostTargets.of(rows))}
            yield f"{name}, {what}", {side: Side(run, counted) for side, run in sides.items()}

    return prepare


def step_part(case: Case) -> Works:
    """One training step of the checkout's network with its own OTA loss and with ours; each side has a separate
    network."""
    images = torch.from_numpy(np.random.RandomState(0).rand(case.step_batch, 3, case.size, case.size)).float()
    rows = case.rows(case.step_batch)

    def side(loss_class, targets) -> Side:
        model = case.model().train()
        loss, optimizer = loss_class(model), torch.optim.SGD(model.parameters(), lr=0.0)

        def run():
            total, items = loss(model(images), targets, images)
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            return items

        return Side(run)

    theirs = case.checkout.module("utils.loss").ComputeLossOTA
    ours = replacements.ComputeLossOTA
    yield "training step with OTA", {"upstream": side(theirs, rows), "overlay": side(ours, HostTargets.of(rows))}


def seeded() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def samples_part(case: Case) -> Works:
    """Uncached mosaic samples, CPU time; each side in a separate forked process, as in a loader.

    Loader processes of this project keep freed memory (`core.process.memory`), which cannot be on and off in one
    process.
    """

    def side(kind, size: int, prepare: Callable[[], object]) -> Side:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            dataset = kind(str(case.images), size, case.step_batch, True, dict(case.hyp), False, False, False)

        def run():
            seeded()
            return [[part.numpy() for part in dataset[i % len(dataset)][:2]] for i in range(SAMPLES)]

        return in_a_process(run, prepare)

    theirs = case.checkout.module("utils.datasets").LoadImagesAndLabels
    for size in sorted({case.size, 640}):
        sides = {"upstream": side(theirs, size, int), "overlay": side(LoadImagesAndLabels, size, keep_freed_memory)}
        yield f"{SAMPLES} samples at {size}, CPU time", sides


def loader_part(case: Case) -> Works:
    """Batches one after the other, while the loader's processes prepare the next ones, as in training."""

    def side(create) -> Side:
        seeded()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            settings = {"hyp": dict(case.hyp), "augment": True, "workers": case.workers}
            opt = SimpleNamespace(single_cls=False)
            loader = create(str(case.images), case.size, case.step_batch, 32, opt, **settings)[0]

        def endless():
            while True:
                yield from loader

        stream, count = endless(), min(len(loader), LOADER_BATCHES)

        def run():
            batches = (next(stream) for _ in range(count))
            return [
                (images[:, :, ::16, ::16].clone(), torch.as_tensor(np.asarray(rows))) for images, rows, *_ in batches
            ]

        return Side(run)

    theirs = case.checkout.module("utils.datasets").create_dataloader
    sides = {"upstream": side(theirs), "overlay": side(fast_create_dataloader())}
    yield f"{LOADER_BATCHES} batches of {case.workers} workers", sides


def metrics_part(case: Case) -> Works:
    """NMS of a batch as in an evaluation, and average precision of many detections."""
    draw = np.random.RandomState(0)
    general, theirs = case.checkout.module("utils.general"), case.checkout.module("utils.metrics")
    if torchvision_loads():  # otherwise upstream's side would run the overlay's stub for its operator
        prediction = torch.from_numpy(draw.rand(8, 6300, 5 + case.classes)).float() ** 4
        prediction[..., :4] *= case.size
        sides = {"upstream": general.non_max_suppression, "overlay": replacements.non_max_suppression}
        works = {name: Side(lambda call=call: call(prediction.clone(), 0.3, 0.65)) for name, call in sides.items()}
        yield "suppression, 8 images", works
    n = 2400 * case.batch
    right = np.sort(draw.rand(n, 10) < np.linspace(0.3, 0.05, 10), 1)[:, ::-1]
    scores = draw.permutation(n).astype(np.float32) / n  # no equal values: upstream does not define their order
    inputs = right, scores, draw.randint(0, case.classes, n), draw.randint(0, case.classes, n // 15)
    calls = {"upstream": theirs.ap_per_class, "overlay": replacements.ap_per_class_for(theirs)}
    works = {name: Side(lambda call=call: list(call(*inputs))) for name, call in calls.items()}
    yield f"average precision, {n} detections", works


PARTS = (
    Part("plain", loss_part("ComputeLoss", False)),
    Part("ota", loss_part("ComputeLossOTA", True)),
    Part("step", step_part),
    Part("metrics", metrics_part),
    Part("samples", samples_part, needs_images=True),
    Part("loader", loader_part, needs_images=True),  # the last: its processes continue to work ahead
)
