"""Upstream's entries for torch.hub: `torch.hub.load(FOLDER, "custom", "best.pt", source="local")`.

A detector takes file names, addresses, PIL images, arrays and tensors of RGB values, and lists of them, at `size=640`;
`conf`, `iou` and `classes` are attributes; its answer is described in docs/python.md.
"""

from pathlib import Path

dependencies = ["torch", "yaml"]
DEPLOY = Path(__file__).resolve().parent / "cfg" / "deploy"


def custom(path_or_model="path/to/model.pt", autoshape=True):
    """A detector of your own weights (a path), or of a network or checkpoint in memory.

    autoshape=False: the network itself, which takes tensors (B, 3, H, W) of 0..1.
    """
    from yolov7fast.inference.detector import from_weights

    return from_weights(path_or_model, autoshape)


def _create(name, pretrained, channels, classes, autoshape):
    from yolov7fast.inference.detector import from_description

    return from_description(name, DEPLOY / f"{name}.yaml", pretrained, channels, classes, autoshape)


def yolov7(pretrained=True, channels=3, classes=80, autoshape=True):
    """YOLOv7. pretrained: with the weights of ./yolov7.pt, which upstream publishes; else fresh ones."""
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
