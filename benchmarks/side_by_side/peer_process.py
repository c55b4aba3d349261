"""A command of another trainer in its environment: `PYTHON benchmarks/side_by_side/peer_process.py COMMAND ARGUMENT
...`.

COMMAND is a console script that the environment has installed (`yolo`, `libreyolo`), or `size PACKAGE FILE PIXELS`,
which prints parameters and GFLOPs of the checkpoint FILE as JSON. This project is not installed there, so nothing of it
is imported.

Other trainers import torchvision. Its wheel contains operators built for another torch and does not load with a
CPU-only torch unless the operators are declared in Python first. Only NMS is implemented: training calls no other.
"""

import json
import sys
from importlib.metadata import entry_points

import numpy as np
import torch

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
UNUSED = "roi_align qroi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool _roi_pool_backward "
UNUSED += "ps_roi_pool _ps_roi_pool_backward deform_conv2d _deform_conv2d_backward"
LOADERS = {"ultralytics": "YOLO", "libreyolo": "LibreYOLO"}  # of a checkpoint, as each package documents it


def suppress(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Greedy suppression: indices (K,) of the boxes (N, 4) xyxy that are kept, best first."""
    rows, order = boxes.detach().float().numpy(), scores.detach().float().numpy().argsort(kind="stable")[::-1]
    areas, kept = (rows[:, 2] - rows[:, 0]) * (rows[:, 3] - rows[:, 1]), []
    while order.size:
        best, rest = order[0], order[1:]
        kept.append(best)
        overlap = np.minimum(rows[best, 2:], rows[rest, 2:]) - np.maximum(rows[best, :2], rows[rest, :2])
        shared = overlap.clip(0).prod(1)
        order = rest[shared <= iou_threshold * (areas[best] + areas[rest] - shared)]
    return torch.as_tensor(np.array(kept, dtype=np.int64))


def declare_operators() -> torch.library.Library | None:
    """Make torchvision importable; None if it is already. The library must live as long as the program."""
    try:
        import torchvision  # noqa: F401
    except Exception:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    else:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + NMS)
    for name in UNUSED.split():
        library.define(f"{name}(Tensor input) -> Tensor")
    library.impl("nms", suppress, "CPU")
    from torchvision import extension
    from torchvision.ops import boxes

    for module in (extension, boxes):
        module._assert_has_ops = lambda: None
    return library


def network_size(package: str, file: str, pixels: int) -> dict[str, float]:
    """Millions of parameters, and GFLOPs (two for each multiplication and addition) of a square image."""
    from torch.utils.flop_counter import FlopCounterMode

    network = getattr(__import__(package), LOADERS[package])(file).model.float().eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, 3, pixels, pixels))
    return {"parameters": sum(p.numel() for p in network.parameters()) / 1e6, "gflops": counter.get_total_flops() / 1e9}


if __name__ == "__main__":
    library = declare_operators()
    command, *arguments = sys.argv[1:]
    if command == "size":
        package, file, pixels = arguments
        print(json.dumps(network_size(package, file, int(pixels))))
    else:
        sys.argv = [command, *arguments]
        sys.exit(next(iter(entry_points(group="console_scripts", name=command))).load()())
