"""What hubconf.py gives: detectors or networks of weights, of descriptions, and of networks in memory."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch import nn

from yolov7fast.checkpoint.ensemble import attempt_load, inference_network
from yolov7fast.core.device import select_device
from yolov7fast.inference.api.detector import Detector, load
from yolov7fast.nn.model import Model
from yolov7fast.predictors.base import PredictOptions
from yolov7fast.predictors.yolo import network_predictor


def from_weights(weights: str | Path | nn.Module | Mapping[str, Any], autoshape: bool = True) -> Detector | nn.Module:
    """A detector of a file, a network or a checkpoint in memory; autoshape False: the network."""
    if isinstance(weights, str | Path):
        return load(weights) if autoshape else attempt_load(weights, map_location=select_device(""))
    given = deepcopy(weights) if isinstance(weights, nn.Module) else weights  # fusing changes a network
    network = inference_network(given, "the network")
    return detector_of(network) if autoshape else network


def from_description(
    name: str, cfg: Path, pretrained: bool, channels: int, classes: int, autoshape: bool
) -> Detector | nn.Module:
    """A network of a description of cfg/deploy, with upstream's published weights, or fresh ones."""
    network = Model(cfg, ch=channels, nc=classes)
    if pretrained:
        network = attempt_load(f"{name}.pt")
    network = network.eval()
    return detector_of(network) if autoshape else network


def detector_of(network: Any) -> Detector:
    device = select_device("")
    return Detector(network_predictor(network.to(device), PredictOptions()))
