"""tools/train_detr.py as a user starts it, on networks and images small enough for tests."""

import importlib.util
from pathlib import Path

import pytest
import yaml

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed: pip install -r tests/requirements.txt",
)
BACKBONE = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "layer_type": "basic"}
ATTENTION = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
NETWORKS = {
    "detr": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 12, "auxiliary_loss": True}
    | ATTENTION
    | {"backbone_config": BACKBONE},
    "rtdetr_v2": {"d_model": 32, "encoder_hidden_dim": 32, "encoder_in_channels": [16, 24, 32], "decoder_layers": 2}
    | {"decoder_in_channels": [32, 32, 32], "num_queries": 12, "num_denoising": 6, "hidden_expansion": 0.5}
    | ATTENTION
    | {"backbone_config": BACKBONE},
}


def run_file(folder: Path, data: Path, architecture: str = "detr", **training) -> str:
    """A run of 4 batches an epoch at 64 pixels, as a run file of sections."""
    path = folder / f"{architecture}.yaml"
    values = {
        "training": {"batch_size": 4, "max_epochs": 2, "optimizer": {"lr": 1e-3, "backbone_lr": 1e-3}, **training},
        "model": {"architecture": architecture, "network": NETWORKS[architecture]},
        "data": {"dataset": str(data / "shapes.yaml"), "img_size": 64, "workers": 0},
        "run": {"project": str(folder / "runs"), "name": "run", "device": "cpu"},
    }
    path.write_text(yaml.safe_dump(values))
    return str(path)
