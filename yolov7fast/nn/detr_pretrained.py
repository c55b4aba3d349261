"""Published weights whose ResNet is timm's, read without timm: the same layers under transformers' names.

A configuration that says `use_timm_backbone: true, backbone: resnet50` asks for a package that is not needed here:
transformers has the same ResNet. Only its layers are called otherwise.
"""

from collections.abc import Mapping
from typing import Any

from yolov7fast.core.errors import UserError

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
    """A config.json's values with transformers' own ResNet in the place of timm's, and how names in the file change
    (patterns for `from_pretrained`; none where the backbone is transformers' already)."""
    values = dict(published)
    of_timm = bool(values.pop("use_timm_backbone", True))
    backbone = values.get("backbone_config") or {}
    name = values.pop("backbone", None) or "resnet50"  # what the configuration means by saying nothing
    if backbone:
        of_timm = backbone.get("model_type") == "timm_backbone"
    if not of_timm:
        return values, {}
    own = resnet_config(str(backbone.get("backbone") or name), bool(values.get("dilation")), source)
    return {**values, "backbone_config": own, "dilation": False}, NAMES


def resnet_config(name: str, dilated: bool, source: str) -> dict[str, Any]:
    """transformers' description of the ResNet that timm calls `name`; a training recipe may follow after a dot."""
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
