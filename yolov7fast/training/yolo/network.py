"""The network of a YOLO run: from its description, with its heads, and with what fits of the start weights."""

import logging
import re
from argparse import Namespace
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, cast

import torch
from torch import nn

from yolov7fast.checkpoint.api import find_weights, load_checkpoint, module_of, state_dict_of, transfer_weights
from yolov7fast.core.errors import UserError
from yolov7fast.data.class_groups import geometry_config, training_geometry
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.nn.description import check_description
from yolov7fast.nn.head_config import HeadConfig, choose_head_config
from yolov7fast.nn.model import Model
from yolov7fast.nn.multihead import heads_of

log = logging.getLogger(__name__)
SHOWN = 40  # names in a list


def build_model(opt: Namespace, hyp: Mapping[str, float], nc: int, device: torch.device, checkpoint=None) -> Model:
    """The network on its device: from its description, with what fits of the start weights."""
    anchors = hyp.get("anchors")
    resumed = checkpoint is not None
    heads = stored_heads(checkpoint, opt.weights) if resumed else chosen_heads(opt, nc)
    if not opt.weights:
        return Model(opt.cfg, ch=3, nc=nc, anchors=anchors, heads=heads).to(device)
    source = checkpoint if resumed else load_checkpoint(opt.weights)
    description = opt.cfg or description_of(module_of(source, prefer_ema=False, origin=opt.weights), opt.weights)
    model = Model(description, ch=3, nc=nc, anchors=anchors, heads=heads, origin=opt.weights).to(device)
    weights = state_dict_of(source, prefer_ema=opt.transfer_weights, origin=opt.weights)
    keep_anchors = resumed or not (opt.cfg or anchors) or (opt.transfer_weights and anchors_agree(model, weights))
    exclude = () if keep_anchors else ("anchor",)
    exclude += foreign_heads(model, source, opt.weights)
    transfer_weights(model, weights, exclude=exclude, origin=opt.weights)
    if opt.transfer_weights and not resumed:
        log_transfer(model, weights, exclude)
    if not resumed and isinstance(source, dict) and source.get("optimizer"):
        log.info(
            "%s is an unfinished run's checkpoint; only its weights are used (--resume would resume it)", opt.weights
        )
    return model


# --- heads ------------------------------------------------------------------------------------------------------------


def chosen_heads(opt: Namespace, nc: int) -> dict[str, Any] | None:
    """The head configuration that the flags ask for, as the model takes it; None: the description's own."""
    asked = [name for name in ("heads", "head_config", "standard_grouping", "geometry_grouping") if getattr(opt, name)]
    if asked and opt.single_cls:
        raise UserError(
            f"--single-cls leaves one class, which heads cannot divide: leave out --{asked[0].replace('_', '-')}"
        )
    grouping = (opt.standard_grouping, opt.geometry_grouping)
    names = load_data_yaml(opt.data, fetch=False, val_fraction=opt.val_fraction).names if any(grouping) else ()
    config = choose_head_config(
        *(nc, opt.heads, opt.head_config, *grouping), lambda heads: _by_boxes(opt, heads), names=names
    )
    if config is None:
        return None
    for head, (name, ids, weight) in enumerate(zip(config.names, config.classes, config.weights)):
        log.info("head %d: %s, %d classes, weight %g", head, name, len(ids), weight)
    return config.to_dict()


def _by_boxes(opt: Namespace, heads: int) -> HeadConfig:
    """Classes grouped by shape and size of their boxes in the training set, as `yolov7fast data heads` does."""
    data = load_data_yaml(opt.data, val_fraction=opt.val_fraction, allow_download=opt.allow_download)
    return geometry_config(training_geometry(data, opt.img_size[0]), heads, use_area=True)


def stored_heads(checkpoint: Mapping[str, Any], origin: str) -> dict[str, Any] | int | None:
    """The head configuration that a checkpoint's network was built with, whatever became of its file."""
    return heads_of(description_of(module_of(checkpoint, prefer_ema=False, origin=origin), origin))


def description_of(network: nn.Module, origin: str) -> dict[str, Any]:
    """What a checkpoint's network was built from. origin: the file, for messages."""
    description = getattr(network, "yaml", None)
    if not isinstance(description, dict):
        raise UserError(f"{origin} is damaged: its network has no description; give another checkpoint")
    check_description(description, origin)
    return description


# --- start weights ----------------------------------------------------------------------------------------------------

HEAD_ENTRIES = (".heads.", ".attentions.")  # what state dicts call what belongs to one head


def foreign_heads(model: Model, source: Any, origin: str) -> tuple[str, ...]:
    """Words for the entries that must start fresh because the weights' heads stand for other classes; () if none.

    Names and shapes agree all the same where two groupings have groups of equal size.
    """
    network = find_weights(source, prefer_ema=False, origin=origin)
    ours = getattr(model.model[-1], "head_config", None)
    if not isinstance(network, nn.Module):
        if not ours or not any(".heads." in name for name in network):
            return ()
        log.warning(
            "%s holds weights only and does not name the classes of its heads, so all heads start fresh; "
            "a checkpoint written by training names them",
            origin,
        )
        return HEAD_ENTRIES
    theirs = getattr(cast(Model, network).model[-1], "head_config", None)
    if not ours or not theirs or HeadConfig.from_dict(ours).classes == HeadConfig.from_dict(theirs).classes:
        return ()
    log.info("%s: its heads stand for other groups of classes, so all heads start fresh", origin)
    return HEAD_ENTRIES


# --- --transfer-weights -----------------------------------------------------------------------------------------------


def anchors_agree(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether the weights' anchors are those of the model: then they count among what is taken."""
    own = {name: value for name, value in model.state_dict().items() if "anchor" in name}
    return all(
        name in weights and weights[name].shape == value.shape and torch.equal(weights[name].to(value), value)
        for name, value in own.items()
    )


def log_transfer(model: nn.Module, weights: Mapping[str, torch.Tensor], exclude: Iterable[str]) -> None:
    """List what of the weights is kept, what starts fresh here, and what is dropped."""
    own = model.state_dict()
    fits = {n for n, v in weights.items() if n in own and v.shape == own[n].shape}
    kept = {n for n in fits if not any(word in n for word in exclude)}
    for word, names, of in (
        ("kept", kept, own),
        ("fresh", own.keys() - kept, own),
        ("dropped", weights.keys() - kept, weights),
    ):
        log.info("%s (%d): %s", word, len(names), listed(names, of))


def listed(names: Collection[str], of: Collection[str]) -> str:
    """Entries of a state dict in words: layers that are in it as a whole by number, `model.0-76`, others by name."""
    layer = {name: int(name.split(".")[1]) if re.match(r"model\.\d+\.", name) else -1 for name in of}
    numbers = sorted(set(layer.values()))
    whole = sorted(set(numbers) - {layer[name] for name in of if name not in names} - {-1})
    parts = []
    for _, group in groupby(enumerate(whole), lambda place: numbers.index(place[1]) - place[0]):
        first, *_, last = [number for _, number in group] * 2
        parts.append(f"model.{first}" if first == last else f"model.{first}-{last}")
    parts += [name for name in of if name in names and layer[name] not in whole]
    more = f" and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return (", ".join(parts[:SHOWN]) + more) or "nothing"
