"""Table of a network's layers with shapes, parameters and operations, computed on the meta device."""

import argparse
import copy

import torch
from torch.utils.flop_counter import FlopCounterMode

from yolov7fast.core.errors import UserError
from yolov7fast.nn.model import Model


def shapes_of(output) -> str:
    """Shapes of a layer's output (a map, or lists of them), without the batch axis."""
    if isinstance(output, torch.Tensor):
        return "x".join(str(side) for side in output.shape[1:])
    return " ".join(shapes_of(part) for part in output)


def layer_table(model: Model, img_size: int) -> tuple[list[list[str]], float]:
    """Rows index, from, module, output, parameters, GFLOPs for one square image in training mode, and total GFLOPs."""
    rows, seen = [], [0]
    model = copy.deepcopy(model).to("meta").train()

    def after(m, _, output):
        flops = counter.get_total_flops()
        gflops = f"{(flops - seen[0]) / 1e9:.3f}"
        rows.append([str(m.i), str(m.f), m.type, shapes_of(output), f"{m.np:,}", gflops])
        seen[0] = flops

    for m in model.model:
        m.register_forward_hook(after)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, model.yaml["ch"], img_size, img_size, device="meta"))
    return rows, seen[0] / 1e9


def count_gflops(model: Model, img_size: int) -> float:
    """10^9 operations (a multiplication and an addition are two) of one image of img_size x img_size."""
    return layer_table(model, img_size)[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m models.yolo", description="Table of a network's layers.")
    parser.add_argument("--cfg", default="cfg/training/yolov7.yaml", help="model description (YAML)")
    parser.add_argument("--img-size", type=int, default=640, help="side of the square input in pixels")
    opt = parser.parse_args()
    with torch.device("meta"):
        model = Model(opt.cfg)
    multiple = int(model.stride.max())
    if opt.img_size < 1 or opt.img_size % multiple:
        raise UserError(f"--img-size {opt.img_size}: must be a multiple of {multiple}, the largest stride of {opt.cfg}")
    rows, gflops = layer_table(model, opt.img_size)
    rows.insert(0, ["layer", "from", "module", "output", "parameters", "GFLOPs"])
    widths = [max(len(row[k]) for row in rows) for k in range(6)]
    for index, source, module, output, parameters, ops in rows:
        left = f"{index:>{widths[0]}}  {source:>{widths[1]}}  {module:<{widths[2]}}"
        print(f"{left}  {parameters:>{widths[4]}}  {ops:>{widths[5]}}  {output}")
    total = sum(p.numel() for p in model.parameters())
    print(
        f"{opt.cfg}: {len(rows) - 1} layers, {total:,} parameters, {gflops:.1f} GFLOPs at {opt.img_size}x{opt.img_size}"
    )
