"""What the options of a YOLO run mean for memory."""

import math
from argparse import Namespace
from dataclasses import replace

import torch

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, module_of
from yolov7fast.core.resize_schedule import parse_resize_schedule
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.labels import Subset
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training.base_family import class_names
from yolov7fast.training.memory_plan import GPU_RESERVE, Workload
from yolov7fast.training.step import choose_amp
from yolov7fast.training.yolo.network import chosen_heads, description_of

LARGEST_SCALE = 1.5  # of --multi-scale


def planned_work(opt: Namespace, device: torch.device) -> tuple[Workload, int]:
    """The work of a run on `device`, and the number of its training images. Files are as `check_files` found them."""
    data = load_data_yaml(opt.data, val_fraction=opt.val_fraction, allow_download=opt.allow_download)
    hyp = hyper.with_assigner(hyper.load_hyp(opt.hyp), opt.loss_ota, opt.assigner)
    subset = Subset(opt.overfit) if opt.overfit else None
    if opt.subset_size:
        subset = Subset(opt.subset_size, opt.subset_seed)
    images = LoadImagesAndLabels(
        data.split("train"),
        opt.img_size[0],
        single_cls=opt.single_cls,
        subset=subset,
        prefix="train: ",
        cache_dir=opt.cache_dir or None,
        keep_partial_labels=opt.keep_partial_labels,
    )
    nc = len(class_names(data, opt.single_cls))
    heads = chosen_heads(opt, nc)
    cfg = opt.cfg or description_of(module_of(load_checkpoint(opt.weights), False, opt.weights), opt.weights)
    sizes = [opt.img_size[0], *(step.size for step in parse_resize_schedule(opt.resize_schedule))]
    largest = max(sizes) * (LARGEST_SCALE if opt.multi_scale else 1) * (2 if opt.quad else 1)
    is_gpu = device.type == "cuda"
    work = Workload(
        cfg,
        nc,
        math.ceil(largest / 32) * 32,
        hyp,
        images.labels,
        choose_amp(opt.amp, device).dtype,
        opt.adam,
        reserve=GPU_RESERVE if is_gpu else 0,
        heads={"heads": heads} if heads else {},
        frozen=frozen_prefixes(opt.freeze),
    )
    stride = int(work.model.stride.max())
    if work.img_size % stride:
        work = replace(work, img_size=math.ceil(work.img_size / stride) * stride)
    return work, len(images)


def frozen_prefixes(layers: list[int]) -> tuple[str, ...]:
    """Of the parameters that --freeze stops, see `optimization.freeze_layers`."""
    numbers = range(layers[0]) if len(layers) == 1 else layers
    return tuple(f"model.{number}." for number in numbers)
