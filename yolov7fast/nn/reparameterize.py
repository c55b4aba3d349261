"""Conversion of trained weights to deploy weights: implicit vectors are merged, the auxiliary head is omitted.

The networks of cfg/deploy have the layers of cfg/training up to the convolutions that the lead head reads, under the
same names, and a plain head. BatchNorm and RepConv stay as they are; `Model.fuse()` merges them when loading.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from yolov7fast.core.errors import UserError
from yolov7fast.nn.heads import Detect, fold_implicit
from yolov7fast.nn.model import Model


def to_deploy(
    weights: Mapping[str, torch.Tensor], cfg: str | Path, ch: int = 3, origin: str | Path = "the weights"
) -> Model:
    """The network of a deploy description with the weights of a trained one.

    weights: state dict by names `model.<layer>. ...`; ch: channels of the image; origin: the file's name, for messages.
    The body keeps the weights' dtype; the merged head is float32, so that it adds no rounding to half-precision files.
    """
    trained = head_prefix(weights, origin)
    anchors = weights[f"{trained}.anchors"]  # (levels, anchors, 2)
    nc = len(weights[f"{trained}.m.0.bias"]) // anchors.shape[1] - 5
    model = Model(cfg, ch=ch, nc=nc)
    head = model.model[-1]
    own = f"model.{head.i}"
    if type(head) is not Detect or (head.nl, head.na) != tuple(anchors.shape[:2]):
        raise UserError(
            f"{cfg}: its head ({type(head).__name__}, {head.nl} levels) does not suit {origin} "
            f"({anchors.shape[0]} levels); give the file of the same name under cfg/deploy"
        )
    body = {name: value for name, value in model.state_dict().items() if not name.startswith(f"{own}.")}
    for name, value in body.items():
        if name not in weights or weights[name].shape != value.shape:
            there = list(weights[name].shape) if name in weights else "nothing"
            raise UserError(
                f"{cfg}: {name} is {list(value.shape)}, but {origin} has {there}; give the deploy file of this network"
            )
    merged = {name: weights[name] for name in body}
    merged |= {f"{own}.{name}": weights[f"{trained}.{name}"] for name in ("anchors", "anchor_grid")}
    for level in range(head.nl):
        parts = (f"m.{level}.weight", f"m.{level}.bias", f"ia.{level}.implicit", f"im.{level}.implicit")
        folded = fold_implicit(*(weights[f"{trained}.{part}"].double() for part in parts))
        merged |= {f"{own}.{part}": value for part, value in zip(parts, folded)}
    model.load_state_dict(merged)
    for layer in list(model.model)[:-1]:
        layer.to(next(value.dtype for value in merged.values() if value.is_floating_point()))
    return model


def head_prefix(weights: Mapping[str, torch.Tensor], origin: str | Path) -> str:
    """`model.<layer>` of the trained head, known by its implicit vectors."""
    for name in weights:
        found = re.fullmatch(r"(model\.\d+)\.ia\.0\.implicit", name)
        if found:
            return found[1]
    several = any(".heads." in name for name in weights)
    why = "several heads have none to merge: use the file as it is" if several else "there is nothing to merge"
    raise UserError(f"{origin}: has no head with implicit vectors (IDetect, IAuxDetect); {why}")
