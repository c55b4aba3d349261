"""What does a training need, before a machine is rented? Memory by layer, the batch that fits each GPU, files, cores
and disk that feed it, links between GPUs, hours and money. Nothing is trained: the network runs without values."""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from yolov7fast.cli.checks import check_limits
from yolov7fast.cli.flags import Flag, flags_of
from yolov7fast.cli.parser import Parser
from yolov7fast.cli.programs import program
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically

own = partial(Flag, group="plan")
TAKEN = (
    *("cfg", "data", "hyp", "img_size", "epochs", "adam", "amp", "loss_ota", "assigner", "heads"),
    *("single_cls", "rate"),
)
RECORDED_SPEED = 374.0  # images/s of yolov7-tiny at 320 on an RTX 5090, as recorded by its user: 64 in 171 ms
COCO = 80, 118_287, (640, 480)  # classes, training images, their usual size
PLAN_FLAGS = [
    own("--batch-size", int, 16, "images per batch of one GPU", low=1),
    own(
        "--images-per-second",
        float,
        RECORDED_SPEED,
        "of one GPU; the default is what yolov7-tiny at 320 was recorded at on an RTX 5090",
        low=0.001,
    ),
    own("--gpus", int, 1, "GPUs that train together", low=1),
    own("--layers", bool, False, "show the activations of every layer"),
    own("--json", str, "", "write the plan to this file, too"),
]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    training = flags_of("train")
    parser = Parser([*(training[name] for name in TAKEN), *PLAN_FLAGS], prog=program("plan").invocation)
    parser.description = __doc__
    parser.set_defaults(cfg="cfg/training/yolov7-tiny.yaml", hyp="data/hyp.scratch.tiny.yaml", data="")
    opt = parser.parse_args(argv)
    check_limits(opt, {**{name: training[name] for name in TAKEN}, **{flag.dest: flag for flag in PLAN_FLAGS}})
    if not opt.cfg:
        raise UserError("--cfg is empty: name a network, such as yolov7-tiny")
    return opt


def training_set(opt: argparse.Namespace, hyp: dict[str, Any]) -> tuple[int, Any, Any]:
    """(classes, source of the images, data set); without --data COCO's classes and nothing else."""
    from yolov7fast.data.data_yaml import load_data_yaml
    from yolov7fast.data.dataset import LoadImagesAndLabels

    if not opt.data:
        return COCO[0], None, None
    data = load_data_yaml(opt.data)
    found = LoadImagesAndLabels(
        data.split("train"), opt.img_size[0], augment=True, hyp=hyp, single_cls=opt.single_cls, prefix="plan: "
    )
    return 1 if opt.single_cls else data.nc, data.split("train"), found


def workload(opt: argparse.Namespace) -> tuple[Any, Any, Any]:
    """What is planned (`planning.memory.Workload`), the source of its images and their data set, if one is given."""
    from yolov7fast.core.files.paths import check_file
    from yolov7fast.families.yolo.family import effective_hyp
    from yolov7fast.planning.density import assumed_labels
    from yolov7fast.planning.memory import Workload, half
    from yolov7fast.training.hyperparameters import load_hyp

    opt.auto_lr = False  # what `effective_hyp` reads besides
    hyp = effective_hyp(load_hyp(opt.hyp), opt)
    classes, source, dataset = training_set(opt, hyp)
    labels = dataset.labels if dataset else assumed_labels(classes)
    cfg, size, dtype = check_file(opt.cfg, "cfg"), opt.img_size[0], half(opt.amp, is_gpu=True)
    heads = {"heads": opt.heads} if opt.heads else {}
    work = Workload(cfg, classes, size, hyp, labels, dtype, opt.adam, heads=heads)
    stride = max(int(work.model.stride.max()), 32)
    if size % stride:
        raise UserError(f"--img-size {size}: give a multiple of {stride}, the network's largest stride")
    return work, source, dataset


def main(argv: Sequence[str] | None = None) -> int:
    opt = parse(argv)
    from yolov7fast.planning import feeding, files, report, running
    from yolov7fast.planning.memory import CARDS, GIB

    work, source, dataset = workload(opt)
    size, pace, gpus = opt.img_size[0], opt.images_per_second, opt.gpus
    precision = str(work.dtype).removeprefix("torch.")
    about = opt.data or "COCO's numbers, since --data names no data set"
    print(f"{opt.cfg}, {size} pixels, {precision}, {work.classes} classes; {about}")
    memory = work.plan(opt.batch_size)
    print(report.memory_text(memory, opt.layers))
    batches = {card: work.estimated_batch(card * GIB) for card in CARDS}
    print(report.batches_text(batches))
    shapes = dataset.shapes if dataset else np.tile(np.array(COCO[2]), (COCO[1], 1))
    names = dataset.img_files if dataset else ()
    sizes = files.file_bytes(work.model, opt.adam, opt.epochs, shapes, names, size)
    print(report.files_text(sizes, opt.epochs))
    costs = feeding.measure_samples(source, size, work.hyp) if dataset else {}
    print(report.feeding_text(costs, pace * gpus))
    shared = running.exchange(work.network.gradients, max(gpus, 2), opt.batch_size, pace)
    print(report.exchange_text(shared))
    length = running.duration(len(shapes), opt.epochs, pace, gpus, opt.rate)
    print(report.duration_text(length, opt.epochs, len(shapes), pace, gpus))
    if opt.json:
        network, step = memory.network._asdict(), memory.step._asdict()
        written = {
            "cfg": opt.cfg,
            "img_size": size,
            "precision": precision,
            "memory": {**memory._asdict(), "network": network, "step": step, "total": memory.total},
            "largest_batch": {str(card): batch for card, batch in batches.items()},
            "files": sizes._asdict(),
            "sample": {kind: cost._asdict() for kind, cost in costs.items()},
            "exchange": shared._asdict() | {"exposed_ms": {n: shared.exposed_ms[v] for n, v in running.LINKS.items()}},
            "hours": length.hours,
            "cost": length.cost,
        }
        write_atomically(opt.json, json.dumps(written, indent=2) + "\n")
        print(f"\nwritten: {opt.json}")
    return 0
