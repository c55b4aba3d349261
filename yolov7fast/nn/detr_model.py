"""DETR and RT-DETR networks of the package `transformers`.

`transformers` is an optional dependency (group detr), imported only here and only when a network is built.
Checkpoints do not contain its classes: they hold a state dict and the configuration as plain values.
"""

import difflib
import importlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from yolov7fast.core.errors import CheckpointError, UserError, one_line, shown
from yolov7fast.core.files.settings_files import is_whole
from yolov7fast.core.text import printable

log = logging.getLogger(__name__)
HOW_TO_INSTALL = "DETR networks need the package transformers: python -m pip install 'transformers>=5'"


class Architecture(NamedTuple):
    """What differs between the kinds of networks."""

    config: str  # class names in transformers
    network: str
    backbone: str  # model_type of its ResNet in transformers
    mean: tuple[float, float, float]  # the input is (image in 0..1 - mean) / std
    std: tuple[float, float, float]
    padded_frame: bool  # boxes are fractions of the padded image; otherwise of the image without its padding
    has_background: bool  # softmax with a last class "nothing"; else independent sigmoids
    picks_cells: bool  # queries begin as the best cells of the feature maps, of which there must be as many


ARCHITECTURES = {
    "detr": Architecture(
        *("DetrConfig", "DetrForObjectDetection", "resnet"),
        *((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # ImageNet's, as the published weights expect
        padded_frame=False,
        has_background=True,
        picks_cells=False,
    ),
    "rtdetr_v2": Architecture(
        *("RTDetrV2Config", "RTDetrV2ForObjectDetection", "rt_detr_resnet"),
        *((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        padded_frame=True,
        has_background=False,
        picks_cells=True,
    ),
}


def transformers() -> ModuleType:
    """The package, imported on first use.

    A torchvision that was built for another torch fails to import, and transformers with it: it is hidden then.
    """
    if "transformers" not in sys.modules:
        try:
            importlib.import_module("torchvision")
        except Exception:
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            modules: dict[str, Any] = sys.modules
            modules["torchvision"] = None
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise UserError(HOW_TO_INSTALL) from None


class DetrNetwork(nn.Module):
    """A network of transformers with its input normalisation and the names of its classes."""

    network: Any  # of the architecture's class in transformers
    mean: torch.Tensor
    std: torch.Tensor

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

    def least_height(self, height: int, width: int) -> int:
        """The height, increased by the coarsest stride until images of this width have a cell for every query."""
        config = self.network.config
        while self.kind.picks_cells and cells(height, width, config.feat_strides) < config.num_queries:
            height += max(config.feat_strides)
        return height

    def forward(self, images: torch.Tensor, mask: torch.Tensor, labels: list[dict[str, torch.Tensor]] | None = None):
        """images (B, 3, H, W) in 0..1; mask (B, H, W) 1 inside the images, 0 on padding; labels: per image
        `class_labels` (n,) and `boxes` (n, 4) cxcywh, fractions of the frame. Returns transformers' output, with
        `logits` (B, queries, classes [+ 1]) and `pred_boxes` (B, queries, 4), with labels also `loss` and its parts.
        """
        images = (images - self.mean) / self.std * mask[:, None]  # padding is 0, as in the published training
        return self.network(pixel_values=images, pixel_mask=mask, labels=labels)

    def description(self) -> dict[str, Any]:
        """Plain values from which `rebuild` makes the same network."""
        config = json.loads(self.network.config.to_json_string(use_diff=False))
        kept = {"architecture": self.architecture, "names": self.names, "live_norms": self.live_norms}
        return {**kept, "config": config}


def cells(height: int, width: int, strides: Sequence[int]) -> int:
    """Cells in the feature maps of an image."""
    return sum(-(-height // stride) * -(-width // stride) for stride in strides)


# --- building ---------------------------------------------------------------------------------------------------------


def build(architecture: str, names: Sequence[str], settings: Mapping[str, Any], pretrained: str = "") -> DetrNetwork:
    """A network for the classes `names`.

    settings: keys of the architecture's configuration in transformers, `backbone_config` among them. pretrained: a
    folder or a name on the Hugging Face hub whose weights it starts with; its class layer is new where the number of
    classes differs, and its backbone keeps its batch norms and, for DETR, its first layers.
    """
    library, kind = transformers(), architecture_of(architecture)
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    if pretrained:
        return DetrNetwork(_pretrained(library, kind, pretrained, labels, settings), architecture, names, False)
    config = _configuration(library, kind, settings, labels)
    with _as_user_errors("model.network"):
        network = getattr(library, kind.network)(config)
        thaw(network)
        spread_queries(network)
        model = DetrNetwork(network, architecture, names, True)
    try_out(model)
    return model


def spread_queries(network: nn.Module) -> None:
    """Draw DETR's query embeddings from N(0, 1), as the published training does.

    transformers draws them with a standard deviation of 0.02: all queries then start with almost the same prediction,
    and classes are learnt only after the queries have diverged.
    """
    for name, parameter in network.named_parameters():
        if name.endswith("query_position_embeddings.weight"):
            nn.init.normal_(parameter)


TRIED_SIZE = 64


@torch.no_grad()
def try_out(model: DetrNetwork) -> None:
    """Run one image, so that incompatible settings are reported before anything is written."""
    with _as_user_errors("model.network", "; these values are incompatible: reset one to its default"):
        height = model.least_height(TRIED_SIZE, TRIED_SIZE)
        image = torch.zeros(1, 3, height, TRIED_SIZE)
        output = model.eval()(image, torch.ones(1, height, TRIED_SIZE))
        queries = model.network.config.num_queries
        if output.logits.shape[:2] != (1, queries) or output.pred_boxes.shape != (1, queries, 4):
            raise UserError(f"model.network: it does not return {queries} boxes")
    model.train()


def rebuild(description: Mapping[str, Any], origin: str | Path) -> DetrNetwork:
    """The network of a checkpoint's description, without its weights. origin: file name for messages."""
    library = transformers()
    name = description.get("architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise CheckpointError(f"{origin}: its network has an unknown architecture ({shown(name)})")
    kind = ARCHITECTURES[name]
    try:
        check_sizes(description.get("config"), f"{origin} is damaged")
    except UserError as error:
        raise CheckpointError(str(error)) from None
    if not all(isinstance(label, str) for label in description.get("names") or [None]):
        raise CheckpointError(f"{origin} is damaged: its class names are not text")
    try:
        config = getattr(library, kind.config).from_dict(dict(description["config"]))
        network = getattr(library, kind.network)(config)
        if description["live_norms"]:
            thaw(network)
        else:
            train_upper_stages(network)
        return DetrNetwork(network, name, description["names"], description["live_norms"])
    except Exception as error:  # transformers answers values that it cannot use with exceptions of every kind
        raise CheckpointError(f"{origin} is damaged: its network cannot be built ({one_line(error, 150)})") from None


def architecture_of(name: str) -> Architecture:
    if name not in ARCHITECTURES:
        raise UserError(f"model: architecture '{name}' is not known: it is one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


# --- configurations: everything a user can get wrong in them is an error before any image is read --------------------

LARGEST = 100_000  # of any number of things; classes are the most
MOST_LAYERS = 100  # in a row
WIDEST = 8_192  # channels
MOST_WEIGHTS = 5 * 10**9
COUNTED = ("layers", "depths", "levels", "points")  # ends of keys
WIDE = ("d_model", "_dim", "hidden_sizes", "embedding_size", "channels")

FROM_DATA = ("num_labels", "id2label", "label2id")
COUNTS = (
    *("num_queries", "d_model", "encoder_hidden_dim", "encoder_layers", "decoder_layers", "encoder_ffn_dim"),
    *("decoder_ffn_dim", "encoder_attention_heads", "decoder_attention_heads"),
)


def network_settings(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every key of a network's configuration with its value in `settings` or its default."""
    return _configuration(transformers(), architecture_of(architecture), settings, {}).to_dict()


def _configuration(
    library: ModuleType,
    kind: Architecture,
    settings: Mapping[str, Any],
    labels: Mapping[str, Any],
    published: Mapping[str, Any] | None = None,
):
    """The configuration object: `settings` override those of `published` weights. The default backbone is the
    architecture's ResNet."""
    published, own = dict(published or {}), dict(settings)
    given = own.pop("backbone_config", None) or {}
    if not isinstance(given, Mapping):
        raise UserError(
            f"model.network: backbone_config is {shown(given)}; it is a mapping, such as {{depths: [2, 2]}}"
        )
    backbone = {"model_type": kind.backbone, **(published.pop("backbone_config", None) or {}), **given}
    config_class = getattr(library, kind.config)
    with _as_user_errors("model.network"):
        _check_keys(given, type(library.AutoConfig.for_model(backbone["model_type"])), "model.network.backbone_config")
        _check_keys(own, config_class, "model.network")
        if "out_features" not in backbone and "out_indices" not in backbone:
            backbone["out_features"] = ["stage4"] if kind.has_background else ["stage2", "stage3", "stage4"]
        config = config_class.from_dict({**published, **own, **labels, "backbone_config": backbone})
    check_sizes(config.to_dict(), "model.network")
    _check_values(config, kind)
    return config


def check_sizes(config: Any, where: str) -> None:
    """UserError for numbers with which building would need too much memory or time. where: begins the message."""
    if not isinstance(config, Mapping):
        raise UserError(f"{where}: its configuration is {shown(config)}, not a mapping")
    layers, width = 0, 1
    for key, value in _numbers(config, ""):
        limit = MOST_LAYERS if key.endswith(COUNTED) else WIDEST if key.endswith(WIDE) else LARGEST
        if not is_whole(value, -limit, limit):
            raise UserError(f"{where}: {shown(key)} is {shown(value)}; at most {limit:,} is possible")
        layers += value if key.endswith(COUNTED) else 0
        width = max(width, value) if key.endswith(WIDE) else width
    if layers * width * width * 10 > MOST_WEIGHTS:  # about ten matrices in each
        raise UserError(f"{where}: {layers} layers of {width} channels would not fit into memory")


def _numbers(value: Any, key: str) -> Iterator[tuple[str, int]]:
    """Every integer with its key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _numbers(item, str(name)[:100])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item, key)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield key, value


def _check_keys(settings: Mapping[str, Any], config_class: type, where: str) -> None:
    """UserError for a key that the configuration does not have; transformers would ignore it."""
    known = [name for name in dir(config_class()) if not name.startswith("_")]
    for key in settings:
        if key in FROM_DATA:
            raise UserError(f"{where}: leave out '{key}': the classes are those of the data yaml")
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise UserError(f"{where}: unknown key '{printable(key, 60)}' of {config_class.__name__}{hint}")


def _check_values(config, kind: Architecture) -> None:
    """UserError for numbers with which transformers would fail in a step or train something else."""
    for name in COUNTS:
        value = getattr(config, name, 1)
        if value < 1:
            raise UserError(f"model.network: {name} is {value}; it must be at least 1")
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        if not 0 <= getattr(config, name) < 1:
            raise UserError(f"model.network: {name} is {getattr(config, name)}; it is a fraction between 0 and 1")
    inside = "d_model" if kind.has_background else "encoder_hidden_dim"  # the encoder's width
    for width, heads in ((inside, "encoder_attention_heads"), ("d_model", "decoder_attention_heads")):
        whole, parts = getattr(config, width), getattr(config, heads)
        if whole % parts:
            raise UserError(f"model.network: {width} is {whole}, not a multiple of {heads}, {parts}")
    if getattr(config, inside) % 4:
        raise UserError(
            f"model.network: {inside} is {getattr(config, inside)}; it must be a multiple of 4, "
            "since positions are encoded by sines and cosines of x and y"
        )


@contextmanager
def _as_user_errors(where: str, remedy: str = "") -> Iterator[None]:
    """Convert the exceptions that transformers raises for invalid values, which are of every type, to UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        reason = f"unknown value {text}" if isinstance(error, KeyError) else text or type(error).__name__
        raise UserError(f"{where}: {reason}{remedy}") from None


# --- published weights ------------------------------------------------------------------------------------------------

WHAT_TO_GIVE = "give a folder with config.json and model.safetensors, or a hub name where the hub can be reached"


def _pretrained(library: ModuleType, kind: Architecture, source: str, labels: dict, settings: Mapping[str, Any]):
    """The network with published weights: the complete backbone, and the other weights that fit."""
    source = str(Path(source).expanduser()) if source.startswith("~") else source
    if not Path(source).is_dir() and (source.count("/") > 1 or source[0] in "/."):
        raise UserError(f"model.pretrained {source}: no such folder; {WHAT_TO_GIVE}")
    config_class, network_class = getattr(library, kind.config), getattr(library, kind.network)
    with _as_user_errors(f"model.pretrained {source}", f"; {WHAT_TO_GIVE}"):
        published, _ = config_class.get_config_dict(source)
    if not isinstance(published, Mapping) or "model_type" not in published:
        raise UserError(f"model.pretrained {source}: no config.json of a network is there; {WHAT_TO_GIVE}")
    if published["model_type"] != config_class.model_type:
        raise UserError(
            f"model.pretrained {source}: a network of type {published['model_type']}, not "
            f"{config_class.model_type}; choose weights that fit --architecture"
        )
    values, renamed = without_timm(published, source)
    config = _configuration(library, kind, settings, labels, values)
    with _as_user_errors(f"model.pretrained {source}", f"; {WHAT_TO_GIVE}"):
        network, found = network_class.from_pretrained(
            *(source,),
            config=config,
            key_mapping=renamed or None,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    _check_taken(found, source)
    train_upper_stages(network)
    return network


def _check_taken(found: Mapping[str, Any], source: str) -> None:
    """UserError if weights of the backbone, which stays frozen, are missing; new weights elsewhere are logged."""
    new = sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])})
    lost = [name for name in new if ".backbone." in name and not name.endswith("num_batches_tracked")]
    if lost:
        raise UserError(
            f"model.pretrained {source}: {len(lost)} weights of the backbone are absent or of another shape, such as "
            f"{lost[0]}; leave backbone_config out, or describe the backbone of these weights"
        )
    if new:
        log.info("%s: %d layers' weights are new, such as %s", source, len(new), new[0])


# --- trainable parts of the backbone ----------------------------------------------------------------------------------


def thaw(network: Any) -> None:
    """Make the whole backbone trainable, for training without pretrained weights."""
    for module in list(network.model.backbone.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("FrozenBatchNorm2d"):
                setattr(module, name, nn.BatchNorm2d(len(child.weight)))
    network.model.backbone.requires_grad_(True)


def train_upper_stages(network: Any) -> None:
    """Freeze stem and first stage of a pretrained backbone, as DETR does."""
    for name, parameter in network.model.backbone.named_parameters():
        parameter.requires_grad_("embedder" not in name and "stages.0." not in name)


# --- published weights of timm's ResNets, read without timm -----------------------------------------------------------

# timm's name -> depths of the stages, and whether its blocks are bottlenecks
RESNETS = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}
# applied in this order to the names in a file, the stem first: within blocks conv1 is another layer
NAMES = {
    r"\.model\.conv1\.": ".model.embedder.embedder.convolution.",
    r"\.model\.bn1\.": ".model.embedder.embedder.normalization.",
    **{rf"\.model\.layer{stage + 1}\.(\d+)\.": rf".model.encoder.stages.{stage}.layers.\1." for stage in range(4)},
    **{rf"\.conv{place + 1}\.weight": f".layer.{place}.convolution.weight" for place in range(3)},
    **{rf"\.bn{place + 1}\.": f".layer.{place}.normalization." for place in range(3)},
    r"\.downsample\.0\.": ".shortcut.convolution.",
    r"\.downsample\.1\.": ".shortcut.normalization.",
}


def without_timm(published: Mapping[str, Any], source: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a config.json with transformers' ResNet instead of timm's, and the changed names of weights
    (patterns for `from_pretrained`; empty if the backbone is not timm's)."""
    values = dict(published)
    of_timm = bool(values.pop("use_timm_backbone", True))
    backbone = values.get("backbone_config") or {}
    name = values.pop("backbone", None) or "resnet50"  # the default of the configuration
    if backbone:
        of_timm = backbone.get("model_type") == "timm_backbone"
    if not of_timm:
        return values, {}
    own = resnet_config(str(backbone.get("backbone") or name), bool(values.get("dilation")), source)
    return {**values, "backbone_config": own, "dilation": False}, NAMES


def resnet_config(name: str, dilated: bool, source: str) -> dict[str, Any]:
    """transformers' description of timm's ResNet `name`, which may have a training recipe after a dot."""
    known = RESNETS.get(name.split(".")[0])
    if known is None or dilated:
        what = f"its backbone {name} {'with dilation (DC5) ' if dilated else ''}"
        raise UserError(
            f"model.pretrained {source}: {what}is one of the package timm, which is not used here; take weights with "
            f"an undilated {', '.join(RESNETS)}, such as facebook/detr-resnet-50"
        )
    depths, bottleneck = known
    widths = [width * (4 if bottleneck else 1) for width in (64, 128, 256, 512)]
    kind = "bottleneck" if bottleneck else "basic"
    return {"model_type": "resnet", "embedding_size": 64, "hidden_sizes": widths, "depths": list(depths)} | {
        "layer_type": kind,
        "out_features": ["stage4"],
    }
