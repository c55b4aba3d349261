"""The network of a YOLO run: built from its description and heads, with the start weights that fit."""

import logging
from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from torch import nn

from yolov7fast.checkpoint.checkpoint_reader import (
    find_weights,
    load_checkpoint,
    module_of,
    state_dict_of,
    transfer_weights,
)
from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.nn import compiling
from yolov7fast.nn.model import Model
from yolov7fast.nn.model_parser import check_description
from yolov7fast.nn.multihead import HeadConfig, choose_head_config, heads_of
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training.config import YoloTrainConfig

log = logging.getLogger(__name__)
SHOWN = 6  # names in a list


def build_model(config: YoloTrainConfig, hyp: Mapping[str, float], nc: int, checkpoint: Any = None) -> Model:
    """The network on the CPU: built from its description, with the start weights that fit."""
    anchors = hyp.get("anchors")
    resumed = checkpoint is not None
    heads = stored_heads(checkpoint, config.weights) if resumed else chosen_heads(config, nc)
    if not config.weights:
        return Model(config.cfg, ch=3, nc=nc, anchors=anchors, heads=heads)
    source = checkpoint if resumed else load_checkpoint(config.weights)
    description = config.cfg or description_of(
        module_of(source, prefer_ema=False, origin=config.weights), config.weights
    )
    model = Model(description, ch=3, nc=nc, anchors=anchors, heads=heads, origin=config.weights)
    weights = state_dict_of(source, prefer_ema=config.transfer_weights, origin=config.weights)
    keep_anchors = resumed or not (config.cfg or anchors) or (config.transfer_weights and anchors_agree(model, weights))
    exclude = () if keep_anchors else ("anchor",)
    exclude += foreign_heads(model, source, config.weights)
    transfer_weights(model, weights, exclude=exclude, origin=config.weights)
    if config.transfer_weights and not resumed:
        log_transfer(model, weights, exclude)
    if not resumed and isinstance(source, dict) and source.get("optimizer"):
        log.info(
            "%s is an unfinished run's checkpoint; only its weights are used (--resume would resume it)", config.weights
        )
    return model


def diagnose_compilation(config: YoloTrainConfig, checkpoint: dict[str, Any] | None) -> int:
    """DIAGNOSE_COMPILE=1: print where torch.compile would break the network; returns the exit code."""
    device = select_device(config.device)
    data = load_data_yaml(config.data, fetch=False, val_fraction=config.val_fraction)
    model = build_model(config, hyper.load_hyp(config.hyp), 1 if config.single_cls else data.nc, checkpoint).to(device)
    return compiling.diagnose(model, torch.zeros(2, 3, config.img_size[0], config.img_size[0], device=device))


# --- heads ------------------------------------------------------------------------------------------------------------


def chosen_heads(config: YoloTrainConfig, nc: int) -> dict[str, Any] | None:
    """The head configuration of the flags, as the model takes it; None: that of the description."""
    asked = [
        name for name in ("heads", "head_config", "standard_grouping", "geometry_grouping") if getattr(config, name)
    ]
    if asked and config.single_cls:
        raise UserError(
            f"--single-cls leaves one class, which heads cannot divide: leave out --{asked[0].replace('_', '-')}"
        )
    grouping = (config.standard_grouping, config.geometry_grouping)
    names = load_data_yaml(config.data, fetch=False, val_fraction=config.val_fraction).names if any(grouping) else ()
    chosen = choose_head_config(
        *(nc, config.heads, config.head_config, *grouping), lambda heads: _by_boxes(config, heads), names=names
    )
    if chosen is None:
        return None
    for head, (name, ids, weight) in enumerate(zip(chosen.names, chosen.classes, chosen.weights)):
        log.info("head %d: %s, %d classes, weight %g", head, name, len(ids), weight)
    return chosen.to_dict()


def _by_boxes(config: YoloTrainConfig, heads: int) -> HeadConfig:
    """Classes grouped by shape and size of their boxes in the training set, as `yolov7fast data heads` does."""
    from yolov7fast.data.class_groups import geometry_config, training_geometry

    data = load_data_yaml(config.data, val_fraction=config.val_fraction, allow_download=config.allow_download)
    return geometry_config(training_geometry(data, config.img_size[0]), heads, use_area=True)


def stored_heads(checkpoint: Mapping[str, Any], origin: str) -> dict[str, Any] | int | None:
    """The head configuration that a checkpoint's network was built with; its file is not needed."""
    return heads_of(description_of(module_of(checkpoint, prefer_ema=False, origin=origin), origin))


def description_of(network: nn.Module, origin: str) -> dict[str, Any]:
    """The description of a checkpoint's network. origin: the file, for messages."""
    description = getattr(network, "yaml", None)
    if not isinstance(description, dict):
        raise UserError(f"{origin} is damaged: its network has no description; give another checkpoint")
    check_description(description, origin)
    return description


# --- start weights ----------------------------------------------------------------------------------------------------

HEAD_ENTRIES = (".heads.", ".attentions.")  # names in state dicts of the parts that belong to one head


def foreign_heads(model: Model, source: Any, origin: str) -> tuple[str, ...]:
    """Parts of names of entries that must be initialised because the weights' heads predict other classes; () if none.

    Names and shapes are equal if two groupings have groups of equal size.
    """
    network = find_weights(source, prefer_ema=False, origin=origin)
    ours = getattr(model.model[-1], "head_config", None)
    if not isinstance(network, nn.Module):
        if not ours or not any(".heads." in name for name in network):
            return ()
        log.warning(
            "%s holds weights only and does not name the classes of its heads, so all heads are initialised; "
            "a checkpoint written by training names them",
            origin,
        )
        return HEAD_ENTRIES
    theirs = getattr(cast(Model, network).model[-1], "head_config", None)
    if not ours or not theirs or HeadConfig.from_dict(ours).classes == HeadConfig.from_dict(theirs).classes:
        return ()
    log.info("%s: its heads predict other groups of classes, so all heads are initialised", origin)
    return HEAD_ENTRIES


# --- --transfer-weights -----------------------------------------------------------------------------------------------


def anchors_agree(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether the weights' anchors are those of the model: then they are loaded too."""
    own = {name: value for name, value in model.state_dict().items() if "anchor" in name}
    return all(
        name in weights and weights[name].shape == value.shape and torch.equal(weights[name].to(value), value)
        for name, value in own.items()
    )


def log_transfer(model: nn.Module, weights: Mapping[str, torch.Tensor], exclude: Collection[str]) -> None:
    """List the weights that were loaded, initialised and dropped."""
    own = model.state_dict()
    fits = {name for name, value in weights.items() if name in own and value.shape == own[name].shape}
    kept = {name for name in fits if not any(word in name for word in exclude)}
    rest = [name for name in own if name not in kept], [name for name in weights if name not in kept]
    for word, names in (("kept", sorted(kept)), ("fresh", rest[0]), ("dropped", rest[1])):
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        log.info("%s (%d): %s%s", word, len(names), ", ".join(names[:SHOWN]) or "nothing", more)
