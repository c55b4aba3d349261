"""Print the memory of a training step by batch size. Nothing is trained: the network runs without values.

Compare the last column with the memory of the GPU, of which a tenth should stay free; `--batch-size auto` of train.py
leaves it free automatically.
"""

import argparse
from collections.abc import Sequence

from yolov7fast.cli.checks import check_limits
from yolov7fast.cli.flags import Flag, flags_of
from yolov7fast.cli.parser import Parser
from yolov7fast.core.errors import UserError
from yolov7fast.core.programs import program

TAKEN = (*("cfg", "data", "hyp", "img_size", "adam", "amp", "loss_ota", "assigner", "heads"), "single_cls")
COCO_CLASSES = 80
BATCH_SIZE = Flag("--batch-size", int, 64, "largest batch of one GPU; the table halves it down to 1", "plan", low=1)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    training = flags_of("train")
    flags = [*(training[name] for name in TAKEN), BATCH_SIZE]
    parser = Parser(flags, prog=program("plan").invocation, description=__doc__)
    parser.set_defaults(cfg="cfg/training/yolov7-tiny.yaml", hyp="data/hyp.scratch.tiny.yaml", data="")
    opt = parser.parse_args(argv)
    check_limits(opt, {flag.dest: flag for flag in flags})
    if not opt.cfg:
        raise UserError("--cfg is empty: name a network, such as yolov7-tiny")
    return opt


def main(argv: Sequence[str] | None = None) -> int:
    opt = parse(argv)
    import torch

    from yolov7fast.core.files.paths import check_file
    from yolov7fast.data.data_yaml import load_data_yaml
    from yolov7fast.data.dataset import LoadImagesAndLabels
    from yolov7fast.training.hyperparameters import load_hyp, with_assigner
    from yolov7fast.training.memory_plan import GIB, Workload, assumed_labels
    from yolov7fast.training.step import choose_amp

    hyp, size = with_assigner(load_hyp(opt.hyp), opt.loss_ota, opt.assigner), opt.img_size[0]
    classes, labels = COCO_CLASSES, assumed_labels()
    if opt.data:
        data = load_data_yaml(opt.data)
        classes = data.nc
        labels = LoadImagesAndLabels(data.split("train"), size, single_cls=opt.single_cls, prefix="plan: ").labels
    classes = 1 if opt.single_cls else classes
    heads = {"heads": opt.heads} if opt.heads else {}
    dtype = choose_amp(opt.amp, torch.device("cuda")).dtype
    work = Workload(check_file(opt.cfg, "cfg"), classes, size, hyp, labels, dtype, opt.adam, heads=heads)
    stride = max(int(work.model.stride.max()), 32)
    if size % stride:
        raise UserError(f"--img-size {size}: give a multiple of {stride}, the network's largest stride")
    about = opt.data or "as many boxes as in COCO, since --data names no data set"
    print(f"{opt.cfg}, {size} pixels, {str(dtype).removeprefix('torch.')}, {classes} classes; {about}\n")
    print(f"{'batch':>6}{'network':>10}{'images':>10}{'step':>10}{'CUDA':>10}{'total GB':>10}")
    batch = opt.batch_size
    while batch:
        plan = work.plan(batch)
        print(f"{batch:6}" + "".join(f"{part / GIB:10.2f}" for part in (*plan, plan.total)))
        batch //= 2
    print(
        "\nnetwork: weights, gradients, optimizer and EMA; step: activations and temporary values of forward, loss "
        "(of the densest mosaic) and backward; CUDA: an assumption"
    )
    return 0
