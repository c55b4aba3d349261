"""DETR and RT-DETR networks of the package `transformers`, behind one small module of our own.

`transformers` is an optional dependency (requirements-detr.txt) and is imported here alone, and only when a network is
built. No file of ours holds its classes: a checkpoint is a state dict and the configuration as plain values.
"""

import difflib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from utils.errors import UserError

HOW_TO_INSTALL = "DETR networks need the package transformers: .venv/bin/pip install -r requirements-detr.txt"


class Architecture(NamedTuple):
    """What differs between the kinds of networks."""

    config: str  # class names in transformers
    network: str
    backbone: str  # model_type of its ResNet in transformers
    mean: tuple[float, float, float]  # the input is (image in 0..1 - mean) / std
    std: tuple[float, float, float]
    padded_frame: bool  # boxes are shares of the padded picture; else of the picture without its padding
    has_background: bool  # softmax with a last class "nothing"; else independent sigmoids


ARCHITECTURES = {
    "detr": Architecture(
        *("DetrConfig", "DetrForObjectDetection", "resnet"),
        *((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # ImageNet's, as the published weights expect
        padded_frame=False,
        has_background=True,
    ),
    "rtdetr_v2": Architecture(
        *("RTDetrV2Config", "RTDetrV2ForObjectDetection", "rt_detr_resnet"),
        *((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        padded_frame=True,
        has_background=False,
    ),
}


def transformers() -> ModuleType:
    """The package, imported on first use.

    Beside a torch without its CUDA part an installed torchvision may fail to import, and transformers with it: it is
    hidden then, since nothing here needs it.
    """
    if "transformers" not in sys.modules:
        try:
            importlib.import_module("torchvision")
        except Exception:  # a torchvision built for another torch raises whatever it stumbles over
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            sys.modules["torchvision"] = None
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise UserError(HOW_TO_INSTALL) from None


class Detector(nn.Module):
    """A network of transformers with its input normalisation and the names of its classes."""

    def __init__(self, network: nn.Module, architecture: str, names: Sequence[str], live_norms: bool):
        """live_norms: the backbone's batch norms learn, instead of being constants of a pretrained backbone."""
        super().__init__()
        self.network, self.architecture = network, architecture
        self.names, self.live_norms = list(names), live_norms
        kind = self.kind
        self.register_buffer("mean", torch.tensor(kind.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(kind.std).view(3, 1, 1), persistent=False)

    @property
    def kind(self) -> Architecture:
        return ARCHITECTURES[self.architecture]

    def forward(self, images: torch.Tensor, mask: torch.Tensor, labels: list[dict[str, torch.Tensor]] | None = None):
        """images (B, 3, H, W) in 0..1; mask (B, H, W) 1 inside the pictures, 0 on padding; labels: per image
        `class_labels` (n,) and `boxes` (n, 4) cxcywh, shares of the frame. Returns transformers' output, with
        `logits` (B, queries, classes [+ 1]) and `pred_boxes` (B, queries, 4), with labels also `loss` and its parts.
        """
        images = (images - self.mean) / self.std * mask[:, None]  # padding is 0, as in the published training
        return self.network(pixel_values=images, pixel_mask=mask, labels=labels)

    def description(self) -> dict[str, Any]:
        """Plain values from which `rebuild` makes the same network."""
        config = json.loads(self.network.config.to_json_string(use_diff=False))
        kept = {"architecture": self.architecture, "names": self.names, "live_norms": self.live_norms}
        return {**kept, "config": config}


# --- building ---------------------------------------------------------------------------------------------------------


def build(architecture: str, names: Sequence[str], settings: Mapping[str, Any], pretrained: str = "") -> Detector:
    """A network for the classes `names`.

    settings: keys of the architecture's configuration in transformers, `backbone_config` among them. pretrained: a
    folder or a name on the Hugging Face hub whose weights it starts with; its class layer is new where the number of
    classes differs, and its backbone keeps its batch norms and, for DETR, its first layers.
    """
    library, kind = transformers(), architecture_of(architecture)
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    if pretrained:
        return Detector(_pretrained(library, kind, pretrained, labels, settings), architecture, names, False)
    config = _configuration(library, kind, {**settings, **labels})
    network = getattr(library, kind.network)(config)
    thaw(network)
    return Detector(network, architecture, names, True)


def rebuild(description: Mapping[str, Any]) -> Detector:
    """The network of a checkpoint's description, with weights still to be loaded."""
    library, kind = transformers(), architecture_of(description["architecture"])
    config = getattr(library, kind.config).from_dict(dict(description["config"]))
    network = getattr(library, kind.network)(config)
    if description["live_norms"]:
        thaw(network)
    else:
        train_upper_stages(network)
    return Detector(network, description["architecture"], description["names"], description["live_norms"])


def architecture_of(name: str) -> Architecture:
    if name not in ARCHITECTURES:
        raise UserError(f"model: architecture '{name}' is not known: it is one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def _configuration(library: ModuleType, kind: Architecture, settings: dict[str, Any]):
    """The configuration object; the backbone is the architecture's own ResNet unless it is described otherwise."""
    backbone = {"model_type": kind.backbone, **settings.pop("backbone_config", {})}
    backbone_class = type(library.AutoConfig.for_model(backbone["model_type"]))
    _check_keys(backbone, backbone_class, "model.network.backbone_config")
    config_class = getattr(library, kind.config)
    _check_keys(settings, config_class, "model.network")
    if "out_features" not in backbone and "out_indices" not in backbone:
        backbone["out_features"] = ["stage4"] if kind.has_background else ["stage2", "stage3", "stage4"]
    try:
        return config_class(**settings, backbone_config=backbone)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"model.network: {' '.join(str(error).split())[:300]}") from None


def _check_keys(settings: Mapping[str, Any], config_class: type, where: str) -> None:
    """Refuse what transformers would silently keep: a key that its configuration does not have."""
    known = [name for name in dir(config_class()) if not name.startswith("_")]
    for key in settings:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise UserError(f"{where}: unknown key '{key}' of {config_class.__name__}{hint}")


def _pretrained(library: ModuleType, kind: Architecture, source: str, labels: dict, settings: Mapping[str, Any]):
    network_class = getattr(library, kind.network)
    try:
        network = network_class.from_pretrained(source, **labels, **settings, ignore_mismatched_sizes=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(
            f"model.pretrained {source}: {reason}; give a folder with config.json and model.safetensors, "
            "or a hub name where the hub can be reached"
        ) from None
    train_upper_stages(network)
    return network


# --- what of the backbone learns --------------------------------------------------------------------------------------


def thaw(network: nn.Module) -> None:
    """Let all of the backbone learn: without pretrained weights frozen layers and norms would be mere noise."""
    for module in list(network.model.backbone.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("FrozenBatchNorm2d"):
                setattr(module, name, nn.BatchNorm2d(len(child.weight)))
    network.model.backbone.requires_grad_(True)


def train_upper_stages(network: nn.Module) -> None:
    """A pretrained backbone as DETR trains it: stem and first stage stay as they are."""
    for name, parameter in network.model.backbone.named_parameters():
        parameter.requires_grad_("embedder" not in name and "stages.0." not in name)
