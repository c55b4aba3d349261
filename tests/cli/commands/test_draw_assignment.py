"""The plot of positives: one for each image, for one assigner or several; mistakes are reported."""

import cv2
import numpy as np
import pytest
import torch
import yaml

from yolov7fast.checkpoint.checkpoint_reader import save_checkpoint
from yolov7fast.cli.commands.draw_assignment import main
from yolov7fast.core.errors import UserError
from yolov7fast.nn.model import Model


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A data set of two images, one without boxes, and an untrained network of three classes."""
    root = tmp_path_factory.mktemp("scene")
    (root / "images").mkdir()
    (root / "labels").mkdir()
    for name, label in (("a", "0 0.5 0.5 0.3 0.4\n2 0.3 0.6 0.2 0.2\n"), ("b", "")):
        cv2.imwrite(str(root / "images" / f"{name}.jpg"), np.full((48, 64, 3), 120, np.uint8))
        (root / "labels" / f"{name}.txt").write_text(label)
    for nc in (3, 2):
        content = {"train": str(root / "images"), "val": str(root / "images"), "nc": nc, "names": list("xyz")[:nc]}
        (root / f"data{nc}.yaml").write_text(yaml.safe_dump(content))
    torch.manual_seed(0)
    model = Model("cfg/training/yolov7-tiny.yaml", ch=3, nc=3)
    save_checkpoint({"epoch": -1, "model": model.half(), "ema": None, "optimizer": None}, root / "net.pt")
    return root


def arguments(scene, out, data="data3.yaml", **more):
    given = {"data": scene / data, "weights": scene / "net.pt", "img-size": 64, "device": "cpu", "out": out, **more}
    return [part for key, value in given.items() for part in (f"--{key}", str(value))]


def test_assigners_stand_side_by_side(scene, tmp_path):
    assert main(arguments(scene, tmp_path / "all")) == 0
    assert main(arguments(scene, tmp_path / "one", loss="ota", images=1)) == 0
    every, one = (cv2.imread(str(tmp_path / name)) for name in ("all/a_all.png", "one/a_ota.png"))
    assert every.shape[1] == 3 * one.shape[1]
    assert every[every.shape[0] // 4].std() > 1  # something was drawn
    assert (tmp_path / "all" / "b_all.png").is_file() and not (tmp_path / "one" / "b_ota.png").exists()


def test_another_number_of_classes_is_reported(scene, tmp_path):
    (scene / "labels" / "a.txt").write_text("0 0.5 0.5 0.3 0.4\n")
    with pytest.raises(UserError, match=r"2 classes.*3"):
        main(arguments(scene, tmp_path, data="data2.yaml"))
