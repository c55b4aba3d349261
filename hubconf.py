"""Upstream's entries for torch.hub: `torch.hub.load(FOLDER, "custom", "best.pt", source="local")`.

A detector takes file names, http addresses, PIL images, arrays and tensors of RGB values, and lists of them, at
`size=640`; `conf`, `iou` and `classes` are attributes. docs/python.md describes its results.
"""

from pathlib import Path

dependencies = ["torch", "yaml"]
DEPLOY = Path(__file__).resolve().parent / "cfg" / "deploy"


def custom(path_or_model="path/to/model.pt", autoshape=True):
    """The detector of a weights file, or of a network or checkpoint in memory.

    autoshape=False: return the network itself, which takes tensors (B, 3, H, W) in 0..1.
    """
    from copy import deepcopy

    from torch import nn

    from yolov7fast.checkpoint.ensemble import attempt_load, inference_network
    from yolov7fast.core.device import select_device
    from yolov7fast.inference.detector import load

    if isinstance(path_or_model, (str, Path)):
        return load(path_or_model) if autoshape else attempt_load(path_or_model, map_location=select_device(""))
    given = deepcopy(path_or_model) if isinstance(path_or_model, nn.Module) else path_or_model  # fusing changes it
    return _detector(inference_network(given, "the network"), autoshape)


def _create(name, pretrained, channels, classes, autoshape):
    from yolov7fast.checkpoint.ensemble import attempt_load
    from yolov7fast.nn.model import Model

    network = attempt_load(f"{name}.pt") if pretrained else Model(DEPLOY / f"{name}.yaml", ch=channels, nc=classes)
    return _detector(network.eval(), autoshape)


def _detector(network, autoshape):
    from yolov7fast.core.device import select_device
    from yolov7fast.inference.detector import ImageDetector
    from yolov7fast.predictors.predictor import PredictOptions
    from yolov7fast.predictors.yolo_predictor import network_predictor

    if not autoshape:
        return network
    return ImageDetector(network_predictor(network.to(select_device("")), PredictOptions()))


def yolov7(pretrained=True, channels=3, classes=80, autoshape=True):
    """YOLOv7. pretrained: with upstream's published weights (./yolov7.pt); otherwise with random weights."""
    return _create("yolov7", pretrained, channels, classes, autoshape)


def yolov7x(pretrained=True, channels=3, classes=80, autoshape=True):
    return _create("yolov7x", pretrained, channels, classes, autoshape)


def yolov7_tiny(pretrained=True, channels=3, classes=80, autoshape=True):
    return _create("yolov7-tiny", pretrained, channels, classes, autoshape)


def yolov7_w6(pretrained=True, channels=3, classes=80, autoshape=True):
    return _create("yolov7-w6", pretrained, channels, classes, autoshape)


def yolov7_e6(pretrained=True, channels=3, classes=80, autoshape=True):
    return _create("yolov7-e6", pretrained, channels, classes, autoshape)


def yolov7_d6(pretrained=True, channels=3, classes=80, autoshape=True):
    return _create("yolov7-d6", pretrained, channels, classes, autoshape)


def yolov7_e6e(pretrained=True, channels=3, classes=80, autoshape=True):
    return _create("yolov7-e6e", pretrained, channels, classes, autoshape)
