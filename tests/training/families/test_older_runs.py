"""Runs that an older version of this program began, stopped in mid-epoch: the present one resumes them to the same end.

tests/golden/old_run_*.tar.xz hold what the older version left behind after 6 of 12 steps, and the weights with which
it ended the same run without an interruption.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml

from tests.training.commands import weights_of
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for

NEAR = 0.1  # of the change since the stop; a YOLO run without its momentum ends 0.33 away, other processors 0.04
GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def unpack(family: str, folder: Path, data: Path) -> dict:
    """Put the stopped run into `folder`, with the paths of this machine in its opt.yaml; returns what is expected."""
    with tarfile.open(GOLDEN / f"old_run_{family}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    path = folder / "run" / "opt.yaml"
    options = yaml.safe_load(path.read_text())
    options |= {"data": str(data / "shapes.yaml"), "project": str(folder), "save_dir": str(folder / "run")}
    if family == "yolo":
        options["cfg"] = str(folder / "small.yaml")
    path.write_text(yaml.safe_dump(options, sort_keys=False))
    return json.loads((folder / "expected.json").read_text())


def is_recorded_on_this_kind_of_machine(expected: dict) -> bool:
    """Whether the same program would compute the same bits here."""
    versions = {"torch": torch.__version__, "numpy": np.__version__, "opencv": cv2.__version__}
    same_versions = all(expected["versions"][name] == version for name, version in versions.items())
    return same_versions and expected["cpu_capability"] == torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize("family", ["yolo", pytest.param("detr", marks=needs_transformers)])
def test_a_run_begun_before_is_resumed_to_the_recorded_weights(tmp_path, shapes_small, family):
    expected = unpack(family, tmp_path, shapes_small)
    (checkpoint,) = (tmp_path / "run").rglob("last.pt*")
    stopped = weights_of(checkpoint)
    assert run(parser_for("train", family).parse_args(["--resume", str(tmp_path / "run")]), family) == 0
    found = weights_of(tmp_path / "run" / "weights" / expected["final"])
    assert found.keys() == expected["sha256"].keys()
    if is_recorded_on_this_kind_of_machine(expected):
        hashes = {name: hashlib.sha256(value.numpy().tobytes()).hexdigest()[:32] for name, value in found.items()}
        different = [name for name in hashes if hashes[name] != expected["sha256"][name]]
        assert not different, f"{len(different)} of {len(hashes)} tensors differ, first {different[:3]}"
        assert (tmp_path / "run" / "results.txt").read_text() == expected["results.txt"]
        return
    recorded = np.load(io.BytesIO((tmp_path / "expected.npz").read_bytes()))
    if family == "detr":
        for name in recorded.files:
            np.testing.assert_allclose(found[name].numpy(), recorded[name], rtol=1e-3, atol=1e-4, err_msg=name)
        return
    # OTA's choices let another rounding grow from step to step, in some tensors more than in others
    changes = {
        name: np.linalg.norm(recorded[name] - value.numpy()) for name, value in stopped.items() if name in recorded
    }
    moved = [name for name, change in changes.items() if change > 0]
    assert len(moved) > len(recorded.files) / 2
    apart = [np.linalg.norm(found[name].numpy() - recorded[name]) / changes[name] for name in moved]
    assert np.median(apart) < NEAR
