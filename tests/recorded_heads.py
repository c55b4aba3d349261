"""The multi-head layers whose outputs and losses were recorded: 6 classes on 3 heads, 64-pixel images."""

from types import SimpleNamespace

import numpy as np
import torch

from yolov7fast.nn.multihead import HeadConfig, MultiHeadDetect, MultiHeadDetectAttention

ANCHORS = [[10, 13, 16, 30, 33, 23], [30, 61, 62, 45, 59, 119], [116, 90, 156, 198, 373, 326]]
CHANNELS = [8, 16, 32]
VARIANTS = ("plain_compact", "plain_full", "cbam_compact", "cbam_full")


def recorded_head(golden, variant: str) -> MultiHeadDetect:
    """With the recorded weights, anchors in cells."""
    toy = golden("head_config.json")["toy_config"] | {"full_head": variant.endswith("full")}
    cls = MultiHeadDetectAttention if variant.startswith("cbam") else MultiHeadDetect
    head = cls(6, ANCHORS, HeadConfig.from_dict(toy), CHANNELS)
    shapes = golden("eval_multihead.json")[f"{variant}_state"]
    assert {name: list(value.shape) for name, value in head.state_dict().items()} == shapes
    assert list(head.state_dict()) == list(shapes)
    fill(head, np.random.RandomState(52), 0.2)
    return with_strides(head)


def fill(module: torch.nn.Module, draw: np.random.RandomState, scale: float) -> None:
    """Draw every entry of the state but the anchors, in order."""
    shapes = {name: value.shape for name, value in module.state_dict().items() if "anchor" not in name}
    values = {name: torch.tensor(draw.randn(*shape) * scale, dtype=torch.float32) for name, shape in shapes.items()}
    module.load_state_dict(values, strict=False)


def with_strides(head):
    head.stride = torch.tensor([8.0, 16.0, 32.0])
    head.anchors /= head.stride.view(-1, 1, 1)
    return head


def features(golden) -> list[torch.Tensor]:
    arrays = golden("eval_multihead.npz")
    return [torch.from_numpy(arrays[f"x{level}"]) for level in range(3)]


def network(head, **hyp) -> SimpleNamespace:
    """What the losses ask of a network, around a head alone."""
    defaults = {"box": 0.05, "obj": 0.7, "cls": 0.3, "cls_pw": 1.0, "obj_pw": 1.0, "fl_gamma": 0.0, "anchor_t": 4.0}
    return SimpleNamespace(model=[head], hyp=defaults | hyp, gr=1.0)
