"""Published weights as a start, made in small by the tests: with transformers' ResNet, with timm's, unusable ones."""

import copy
import json
import re

import pytest
import torch

from tests.training.families.detr_commands import BACKBONE, NETWORKS, needs_transformers
from yolov7fast.core.errors import UserError
from yolov7fast.nn.detr_model import RESNETS, build, resnet_config, transformers, without_timm

pytestmark = needs_transformers
NAMES = ["ball", "box", "cone", "star"]
UNFIT = r"^model\.network: "
PUBLISHED = {"use_timm_backbone": True, "backbone_config": None, "dilation": False}  # as the hub's files say


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    transformers()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def name_of_timm(name: str) -> str:
    """A weight of transformers' ResNet as timm calls it: conv1, bn1, layer1.0.conv2, layer1.0.downsample.0, ..."""
    name = name.replace("model.backbone.model.", "model.backbone.conv_encoder.model.")
    for ours, theirs in (("convolution", "conv1"), ("normalization", "bn1")):
        name = name.replace(f"embedder.embedder.{ours}", theirs)
    name = re.sub(r"encoder\.stages\.(\d)\.layers", lambda m: f"layer{int(m[1]) + 1}", name)
    name = re.sub(r"layer\.(\d)\.convolution", lambda m: f"conv{int(m[1]) + 1}", name)
    name = re.sub(r"layer\.(\d)\.normalization", lambda m: f"bn{int(m[1]) + 1}", name)
    return name.replace("shortcut.convolution", "downsample.0").replace("shortcut.normalization", "downsample.1")


def small_backbone(kind: str) -> dict:
    return {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 2, 1, 1], "layer_type": kind}


def save_with_timms_names(folder, kind: str, **config):
    """A small DETR as its authors would have published it; returns its network."""
    from safetensors.torch import save_file

    torch.manual_seed(3)
    network = build("detr", NAMES, NETWORKS["detr"] | {"backbone_config": small_backbone(kind)}).network
    with torch.no_grad():  # statistics of a backbone that has seen something
        for name, value in network.named_buffers():
            if "running" in name:
                value.uniform_(0.5, 1.5)
    network.save_pretrained(folder)
    weights = {name_of_timm(n): v.clone() for n, v in network.state_dict().items() if "num_batches" not in n}
    assert sum(".layer2.1.conv2." in name for name in weights) == 1 and "stages" not in "".join(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((folder / "config.json").read_text()) | PUBLISHED | config
    (folder / "config.json").write_text(json.dumps(values))
    return network


@pytest.mark.parametrize(("kind", "name"), [("basic", "resnet18"), ("bottleneck", "resnet50.a1_in1k")])
def test_weights_with_timms_backbone_need_no_timm(tmp_path, kind, name):
    """Every weight and statistic arrives: the network gives the same features and, with its classes, the same boxes."""
    published = save_with_timms_names(tmp_path, kind, backbone=name)
    started = build("detr", NAMES, {"backbone_config": small_backbone(kind)}, str(tmp_path)).network
    theirs, ours = published.state_dict(), started.state_dict()
    names = [n for n in ours if not n.endswith("num_batches_tracked")]
    assert not [n for n in names if not torch.equal(ours[n], theirs[n])]
    images, mask = torch.rand(1, 3, 64, 64), torch.ones(1, 64, 64, dtype=torch.long)
    with torch.no_grad():
        expected = published.eval()(pixel_values=images, pixel_mask=mask).pred_boxes
        found = started.eval()(pixel_values=images, pixel_mask=mask).pred_boxes
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert started.config.backbone_config.model_type == "resnet"


@pytest.mark.parametrize(("name", "weights"), [("resnet18", 11176512), ("resnet50", 23508032)])  # without classes
def test_backbones_by_name_have_their_published_size(name, weights):
    library = transformers()
    with torch.device("meta"):
        backbone = library.AutoBackbone.from_config(library.ResNetConfig(**resnet_config(name, False, "here")))
    assert sum(p.numel() for p in backbone.parameters()) == weights


def test_a_backbone_of_transformers_is_left_alone():
    own = {"backbone_config": {"model_type": "resnet", "depths": [1, 1, 1, 1]}, "d_model": 32}
    assert without_timm(own, "here") == (own, {})
    assert without_timm({"use_timm_backbone": False, "d_model": 32}, "here") == ({"d_model": 32}, {})
    of_timm = {"backbone_config": {"model_type": "timm_backbone", "backbone": "resnet18"}}
    assert without_timm(of_timm, "here")[0]["backbone_config"]["depths"] == list(RESNETS["resnet18"][0])


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"dilation": True, "backbone": "resnet50"}, r"with dilation \(DC5\).*facebook/detr-resnet-50"),
        ({"backbone": "tf_mobilenetv3_small_075"}, "tf_mobilenetv3_small_075 is one of the package timm"),
        ({"backbone": "resnet50"}, "weights of the backbone are absent or of another shape"),  # these are a resnet18's
        ({"model_type": "yolos"}, "a network of type yolos, not detr"),
    ],
)
def test_published_weights_that_cannot_be_used_are_refused(tmp_path, config, complaint):
    save_with_timms_names(tmp_path, "basic", **config)
    with pytest.raises(UserError, match=complaint):
        build("detr", NAMES, {}, str(tmp_path))


def test_settings_beside_published_weights_are_checked_and_count(tmp_path):
    build("detr", NAMES, copy.deepcopy(NETWORKS["detr"])).network.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="did you mean 'num_queries'"):
        build("detr", NAMES, {"num_querys": 5}, str(tmp_path))
    started = build("detr", NAMES, {"num_queries": 7}, str(tmp_path))
    assert started.network.model.query_position_embeddings.weight.shape == (7, 32)
    assert started.network.config.encoder_layers == 1  # what is not said stays as published


@pytest.mark.parametrize("source", ["/nowhere", "nobody/nothing", ""])
def test_weights_that_are_nowhere_are_refused(tmp_path, source):
    with pytest.raises(UserError, match=r"config\.json and model\.safetensors"):
        build("detr", NAMES, {}, source or str(tmp_path))  # a folder that exists, but is empty


@pytest.mark.parametrize(
    ("architecture", "settings", "complaint"),
    [
        ("detr", {"num_queries": 20.5}, "num_queries"),
        ("detr", {"backbone_config": {"depth": [1]}}, "did you mean 'depths'"),
        ("detr", {"d_model": 33}, "d_model is 33, not a multiple of encoder_attention_heads, 2"),
        ("rtdetr_v2", {"d_model": 33}, "d_model is 33, not a multiple of decoder_attention_heads, 2"),
        ("rtdetr_v2", {"encoder_hidden_dim": 33}, "encoder_hidden_dim is 33"),
        ("detr", {"dropout": 3.0}, "dropout is 3.0"),
        ("detr", {"activation_function": "nope"}, "unknown value 'nope'"),
        ("detr", {"backbone_config": 5}, "backbone_config is 5"),
        ("detr", {"backbone_config": {"model_type": "nix"}}, "nix"),
        ("detr", {"num_labels": 7}, "leave out 'num_labels'"),
        ("rtdetr_v2", {"encoder_in_channels": [16, 24]}, UNFIT),
        ("rtdetr_v2", {"backbone_config": BACKBONE | {"out_features": ["stage3", "stage4"]}}, UNFIT),
        ("rtdetr_v2", {"decoder_method": "abc"}, UNFIT),
        ("detr", {"backbone_config": BACKBONE | {"num_channels": 1}}, UNFIT),
        ("detr", {"return_dict": False}, UNFIT),
    ],
)
def test_impossible_networks_are_refused_before_they_train(architecture, settings, complaint):
    with pytest.raises(UserError, match=complaint):
        build(architecture, NAMES, copy.deepcopy(NETWORKS[architecture]) | settings)
