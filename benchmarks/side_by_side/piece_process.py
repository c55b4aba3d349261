"""One side of `pieces.py` in its own environment: `PYTHON -m benchmarks.side_by_side.piece_process SIDE IMAGES [DIR]`.

SIDE is yolov7fast, upstream (DIR: its checkout), ultralytics or libreyolo; IMAGES a folder of images whose data set may
be written. Requests come as lines of JSON (`Request`), answers go back as lines of JSON: seconds of CPU time on one
thread, counts, or null for what a side does not have. Of this project, a peer's environment needs no more than what
imports torch and NumPy alone.
"""

import contextlib
import importlib
import json
import random
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.op_counter import OpCounter
from benchmarks.side_by_side.inputs import RARE, STRIDES, raw_outputs, target_rows

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "cfg/training/yolov7-tiny.yaml"
CLASSES, LOSS_SIZE, SAMPLES = 80, 320, 32
SAMPLE_KINDS = ("default", "ram", "disk")


class Request(NamedTuple):
    """One piece of work: a loss of `batch` images at 320 pixels, or samples of an augmented data set."""

    work: str  # "ota", "plain": losses; or one of SAMPLE_KINDS
    wish: str  # of a loss "forward", "both" (with backward) or "count"; of samples "sample"
    boxes: int = 0  # an image, of a loss
    batch: int = 0
    size: int = 0  # pixels of a sample


Loss = Callable[[Any], torch.Tensor]  # of raw outputs: the sum to differentiate
Losses = Callable[[str, int, int], tuple[Any, Loss] | None]  # work, boxes, batch: raw outputs, and the loss of them
Samples = Callable[[str, int], Callable[[int], Any] | None]  # kind, pixels: makes the sample of an index


class Sides(NamedTuple):
    losses: Losses
    samples: Samples


# --- this project and upstream ----------------------------------------------------------------------------------------


def own(images: str, folder: str) -> Sides:
    from benchmarks.data.bench import CACHES
    from yolov7fast.core.process.memory import keep_freed_memory
    from yolov7fast.data.dataset import LoadImagesAndLabels
    from yolov7fast.losses.yolo_loss import ComputeLoss, ComputeLossOTA
    from yolov7fast.nn.model import Model
    from yolov7fast.training.hyperparameters import load_hyp, scale_gains

    keep_freed_memory()
    hyp = dict(load_hyp(ROOT / "data" / "hyp.scratch.tiny.yaml"))

    def losses(work: str, boxes: int, batch: int) -> tuple[Any, Loss]:
        model: Any = Model(str(ROOT / NETWORK), nc=CLASSES)
        model.hyp, model.gr = scale_gains(hyp, levels=3, classes=CLASSES, img_size=LOSS_SIZE, smoothing=0.0), 1.0
        return anchor_loss({"ota": ComputeLossOTA, "plain": ComputeLoss}[work](model), boxes, batch)

    def samples(kind: str, size: int) -> Callable[[int], Any]:
        place = Path(images).parents[2]
        return LoadImagesAndLabels(images, size, augment=True, hyp=hyp, cache_dir=place, **CACHES[kind]).__getitem__

    return Sides(losses, samples)


def upstream(images: str, folder: str) -> Sides:
    """The checkout as it is, with the overlay's repairs alone."""
    from benchmarks.side_by_side.parts import Case
    from yolov7fast.overlay.checkout import Checkout
    from yolov7fast.overlay.parts import OverlaySettings, put_in
    from yolov7fast.training.hyperparameters import load_hyp

    checkout = Checkout(folder)
    put_in(checkout, OverlaySettings(loss=False, fast_dataloader=False, metrics=False))
    hyp = dict(load_hyp(ROOT / "data" / "hyp.scratch.tiny.yaml"))

    def losses(work: str, boxes: int, batch: int) -> tuple[Any, Loss]:
        case = Case(checkout, batch, batch, LOSS_SIZE, boxes, CLASSES, 0, 1, None, hyp)
        kind = getattr(checkout.module("utils.loss"), {"ota": "ComputeLossOTA", "plain": "ComputeLoss"}[work])
        return anchor_loss(kind(case.model()), boxes, batch)

    def samples(kind: str, size: int) -> Callable[[int], Any] | None:
        if kind != "default":
            return None
        datasets = checkout.module("utils.datasets")
        return datasets.LoadImagesAndLabels(images, size, 16, True, dict(hyp), False, False, False).__getitem__

    return Sides(losses, samples)


def anchor_loss(loss: Any, boxes: int, batch: int) -> tuple[list[torch.Tensor], Loss]:
    rows, pixels = target_rows(batch, boxes, CLASSES), torch.zeros(batch, 3, LOSS_SIZE, LOSS_SIZE)
    further = [pixels] if "OTA" in type(loss).__name__ else []
    return raw_outputs(batch, LOSS_SIZE, CLASSES), lambda raw: loss(raw, rows, *further)[0]


# --- peers, by what their documents and signatures say ----------------------------------------------------------------


def peer(name: str) -> Any:
    """A module of a peer, which the project's own environment does not have."""
    return importlib.import_module(name)


def ultralytics(images: str, folder: str) -> Sides:
    """Its task-aligned assignment in the place of OTA; an anchor-free head, so its raw outputs are of other shapes."""
    get_cfg = peer("ultralytics.cfg").get_cfg

    def losses(work: str, boxes: int, batch: int) -> tuple[Any, Loss] | None:
        if work != "ota":
            return None
        model = peer("ultralytics.nn.tasks").DetectionModel("yolo11n.yaml", nc=CLASSES, verbose=False)
        model.args = get_cfg()
        with torch.no_grad():
            raw = model.train()(torch.zeros(batch, 3, LOSS_SIZE, LOSS_SIZE))
        generator = torch.Generator().manual_seed(0)
        raw |= {name: torch.randn(raw[name].shape, generator=generator) * 0.5 for name in ("boxes", "scores")}
        raw["scores"] -= RARE
        rows, loss = target_rows(batch, boxes, CLASSES), model.init_criterion()
        given = {"batch_idx": rows[:, 0], "cls": rows[:, 1:2], "bboxes": rows[:, 2:]}
        return raw, lambda raw: loss(raw, given)[0].sum()

    def samples(kind: str, size: int) -> Callable[[int], Any] | None:
        if kind not in ("default", "ram"):
            return None
        cfg = get_cfg(overrides={"imgsz": size, "cache": "ram" if kind == "ram" else False})
        data = {"names": {0: "RBC", 1: "WBC", 2: "Platelets"}, "nc": 3, "channels": 3}
        return peer("ultralytics.data").build_yolo_dataset(cfg, images, 16, data, mode="train").__getitem__

    return Sides(losses, samples)


def libreyolo(images: str, folder: str) -> Sides:
    """Its SimOTA on YOLOv7's anchor head; labels are padded to (image, box, class and box in pixels)."""

    def losses(work: str, boxes: int, batch: int) -> tuple[Any, Loss] | None:
        if work != "ota":
            return None
        network = peer("libreyolo.models.yolo7.net").YOLOv7Model(num_classes=CLASSES)
        raw = [level.movedim(-1, 2).flatten(1, 2) for level in raw_outputs(batch, LOSS_SIZE, CLASSES)]
        rows = target_rows(batch, boxes, CLASSES)
        labels = torch.cat([rows[:, 1:2], rows[:, 2:] * LOSS_SIZE], 1).view(batch, boxes, 5)
        loss = peer("libreyolo.models.yolo7.loss").YOLOv7Loss(CLASSES, network.anchors, STRIDES)
        return [level.contiguous() for level in raw], lambda raw: loss(raw, labels)["total_loss"]

    return Sides(losses, lambda kind, size: None)


# --- answering --------------------------------------------------------------------------------------------------------


def leaves(raw: Any) -> Any:
    """The same raw outputs, each a leaf of a new graph."""
    if isinstance(raw, torch.Tensor):
        return raw.detach().requires_grad_()
    if isinstance(raw, dict):
        return {name: leaves(value) for name, value in raw.items()}
    return [leaves(value) for value in raw]


def works(sides: Sides, request: Request) -> Callable[[], Any] | None:
    if request.wish == "sample":
        make = sides.samples(request.work, request.size)
        return None if make is None else lambda: seeded_samples(make)
    found = sides.losses(request.work, request.boxes, request.batch)
    if found is None:
        return None
    raw, loss = found
    return (lambda: loss(leaves(raw)).backward()) if request.wish == "both" else (lambda: loss(raw))


def seeded_samples(make: Callable[[int], Any]) -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    for index in range(SAMPLES):
        make(index)


def answer(work: Callable[[], Any] | None, wish: str) -> dict[str, float] | None:
    if work is None:
        return None
    if wish == "count":
        with OpCounter() as counter:
            work()
        return {"operators": counter.total, "host_reads": counter.host_reads}
    start = time.process_time()
    work()
    return {"seconds": (time.process_time() - start) / (SAMPLES if wish == "sample" else 1)}


SIDES = {"yolov7fast": own, "upstream": upstream, "ultralytics": ultralytics, "libreyolo": libreyolo}


def main(side: str, images: str, folder: str = "") -> None:
    torch.set_num_threads(1)
    replies, sys.stdout = sys.stdout, sys.stderr  # what a side prints is not an answer
    if side in ("ultralytics", "libreyolo"):
        from benchmarks.side_by_side.peer_process import declare_operators

        library = declare_operators()  # noqa: F841  lives as long as this call
    sides = SIDES[side](images, folder)
    prepared = cache(lambda request: works(sides, request))
    for line in sys.stdin:
        request = Request(**json.loads(line))
        with contextlib.suppress(BrokenPipeError):
            try:
                reply = {"answer": answer(prepared(request), request.wish)}
            except Exception as error:  # the other process reports it
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
