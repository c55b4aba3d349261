"""The small network that was really trained (recorded weights, 3 classes of blood cells), as a checkpoint file."""

from pathlib import Path

import numpy as np
import torch
import yaml

from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint
from yolov7fast.nn.model import Model

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["RBC", "WBC", "Platelets"]


def mini_model() -> Model:
    """yolov7-tiny at an eighth of its width with the recorded weights, float32, not fused."""
    config = yaml.safe_load((ROOT / "cfg/training/yolov7-tiny.yaml").read_text()) | {"width_multiple": 0.125}
    model = Model(config, ch=3, nc=3)
    with np.load(ROOT / "tests/golden/eval_mini_weights.npz") as recorded:
        state = {name: torch.from_numpy(recorded[name]).float() for name in recorded.files}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing), (missing, unexpected)
    model.names = NAMES
    return model.eval()


def write_mini_weights(path: Path) -> Path:
    """A stripped checkpoint of that network, as the end of a training leaves it."""
    save_checkpoint({"epoch": -1, "model": mini_model().half(), "ema": None, "optimizer": None}, path)
    return path
