"""`yolov7fast plan`: what it prints and writes."""

import json

import pytest

from yolov7fast.commands.machine import plan
from yolov7fast.core.errors import UserError

CFG = ("--cfg", "yolov7-tiny", "--img-size", "64", "--batch-size", "4")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("yolov7fast.planning.feeding.SECONDS", 0)


def test_a_plan_names_everything_and_its_json_adds_up(tmp_path, shapes_small, capsys):
    out = tmp_path / "plan.json"
    flags = ("--data", str(shapes_small / "shapes.yaml"), "--rate", "2", "--gpus", "2", "--epochs", "10")
    assert plan.main([*CFG, *flags, "--layers", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    for word in (
        "activations",
        "EMA",
        "77 IDetect",
        "loss",
        "80 GB",
        "--cache-images disk",
        "cores",
        "NVLink",
        "hours",
    ):
        assert word in text, word
    found = json.loads(out.read_text())
    memory = found["memory"]
    parts = [*memory["network"].values(), memory["images"], memory["step"]["peak"], memory["reserve"]]
    assert sum(parts) == memory["total"] and sum(memory["step"]["by_layer"].values()) == memory["step"]["activations"]
    batches = list(found["largest_batch"].values())
    assert batches == sorted(batches) and batches[0] > 4
    assert found["cost"] == pytest.approx(found["hours"] * 2) and found["precision"] == "float16"


def test_without_a_data_set_it_plans_with_the_numbers_of_coco(capsys):
    assert plan.main([*CFG, "--amp", "off"]) == 0
    text = capsys.readouterr().out
    assert "float32, 80 classes; COCO's numbers" in text and "118,287 images" in text
    assert "measured with --data alone" in text


def test_mistakes_are_named():
    with pytest.raises(UserError, match="--img-size 65: give a multiple of 32"):
        plan.main(["--cfg", "yolov7-tiny", "--img-size", "65"])
    with pytest.raises(UserError, match="--gpus is 0"):
        plan.main(["--gpus", "0"])
    with pytest.raises(UserError, match="--cfg is empty"):
        plan.main(["--cfg", ""])
