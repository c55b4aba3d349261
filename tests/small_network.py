"""A network that is built, run and saved in an instant: yolov7-tiny's three levels after 6 convolutions, not 55."""

import torch

from yolov7fast.nn.model import Model

ACTIVATION = "nn.LeakyReLU(0.1)"
NETWORK = {
    "nc": 80,
    "depth_multiple": 1.0,
    "width_multiple": 1.0,
    "anchors": [[10, 13, 16, 30, 33, 23], [30, 61, 62, 45, 59, 119], [116, 90, 156, 198, 373, 326]],
    "backbone": [
        [-1, 1, "Conv", [8, 3, 2, None, 1, ACTIVATION]],
        [-1, 1, "Conv", [8, 3, 2, None, 1, ACTIVATION]],
        [-1, 1, "Conv", [16, 3, 2, None, 1, ACTIVATION]],
        [-1, 1, "Conv", [16, 3, 2, None, 1, ACTIVATION]],
        [-1, 1, "Conv", [32, 3, 2, None, 1, ACTIVATION]],
    ],
    "head": [
        [-1, 1, "nn.Upsample", [None, 2, "nearest"]],
        [[-1, 3], 1, "Concat", [1]],
        [-1, 1, "Conv", [16, 1, 1, None, 1, ACTIVATION]],
        [[2, 7, 4], 1, "IDetect", ["nc", "anchors"]],
    ],
}


def small_network(nc: int, names: list[str], head: str = "IDetect") -> Model:
    torch.manual_seed(0)
    (sources, *row), *before = reversed(NETWORK["head"])
    sources = sources * 2 if head == "IAuxDetect" else sources
    rows = [*reversed(before), [sources, 1, head, row[-1]]]
    model = Model({**NETWORK, "head": rows, "nc": nc}, ch=3, nc=nc)
    model.names = names
    return model
