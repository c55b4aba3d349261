"""Networks to export in tests: built in an instant, with weights that answer differently for different images."""

from pathlib import Path

import torch

from tests.mini_network import write_mini_weights
from tests.training.families.detr_commands import NETWORKS
from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint
from yolov7fast.inference.export.export_network import ExportSource, load_source
from yolov7fast.nn.model import Model
from yolov7fast.nn.model_parser import read_description

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["ant", "bee", "cow"]


def write_network(cfg: str | Path, path: Path, nc: int = 3, width: float = 0.125) -> Path:
    """A checkpoint of a network of cfg/, narrow, as the end of a training leaves it."""
    torch.manual_seed(0)
    model = Model(read_description(ROOT / cfg) | {"width_multiple": width}, nc=nc)
    model.names = [NAMES[i] if i < len(NAMES) else f"class {i}" for i in range(nc)]
    save_checkpoint({"epoch": -1, "model": model.half(), "ema": None, "optimizer": None}, path)
    return path


def mini_source(folder: Path) -> ExportSource:
    """The small network that was really trained, on three classes of blood cells."""
    return load_source(write_mini_weights(folder / "mini.pt"))


def detr_source(architecture: str, folder: Path) -> ExportSource:
    """A small DETR network. Fresh ones answer alike for every image: all weights are moved."""
    from yolov7fast.nn.detr_model import build

    torch.manual_seed(0)
    model = build(architecture, NAMES, NETWORKS[architecture]).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    return ExportSource(model, architecture, NAMES, 32, folder / f"{architecture}.pth", 96)
