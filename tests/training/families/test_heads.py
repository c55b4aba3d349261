"""Multi-head networks through the training command: heads from flags, exact resume, transfer, mistakes."""

import json
import logging
from pathlib import Path

import pytest
import torch
import yaml

from tests.training.commands import ROOT, assert_same_weights, here, small_run, train
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.run_evaluation import test as evaluate_weights
from yolov7fast.nn.model import Model
from yolov7fast.nn.model_parser import read_description
from yolov7fast.nn.multihead import SHIPPED, HeadConfig
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.yolo_network import (
    anchors_agree,
    build_model,
    chosen_heads,
    foreign_heads,
    log_transfer,
)

TINY = "cfg/training/yolov7-tiny-1b4h.yaml"
FATAL = "tests/training/fatal_train.py"


def small_description(folder: Path, cfg: str = TINY) -> str:
    path = folder / "small_heads.yaml"
    path.write_text(yaml.safe_dump(read_description(ROOT / cfg) | {"width_multiple": 0.125}))
    return str(path)


def heads_run(folder: Path, shapes: Path, *extra: str) -> list[str]:
    return small_run(folder, shapes, "--epochs", "2", "--seed", "5", "--cfg", small_description(folder), *extra)


def write_config(folder: Path) -> Path:
    """Four classes on two heads, one of them alone; in an order of its own."""
    path = folder / "heads.yaml"
    config = HeadConfig(4, ((2,), (3, 0, 1)), (1.0, 1.5), ("alone", "others"))
    path.write_text(yaml.safe_dump(config.to_dict()))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, shapes_small) -> Path:
    """A run of 2 epochs with OTA on the heads of a file."""
    folder = tmp_path_factory.mktemp("heads")
    done = train(*heads_run(folder, shapes_small, "--heads", "2", "--head-config", str(write_config(folder))))
    assert done.returncode == 0, done.stderr
    assert "head 1: others, 3 classes, weight 1.5" in done.stderr
    return folder / "runs" / "run"


def test_validation_has_a_loss_and_the_checkpoint_knows_its_heads(trained, shapes_small):
    rows = [line.split() for line in (trained / "results.txt").read_text().splitlines()]
    assert len(rows) == 2
    assert all(float(value) > 0 for row in rows for value in row[-3:])
    network = load_checkpoint(trained / "weights" / "last.pt")["model"]
    assert HeadConfig.from_dict(network.model[-1].head_config).classes == ((2,), (3, 0, 1))
    assert network.names == ["ball", "box", "cone", "star"]
    data, weights = str(shapes_small / "shapes.yaml"), str(trained / "weights" / "last.pt")
    found = evaluate_weights(data, weights, 8, 64, save_dir=trained / "test", plots=False, device="cpu", workers=0)
    assert len(found[1]) == 4
    assert json.loads((trained / "test" / "metrics.json").read_text())["images"] == 8
    heads = json.loads((trained / "page.json").read_text())["validation"]["heads"]
    assert [(head["name"], head["classes"]) for head in heads] == [("0: alone", 1), ("1: others", 3)]
    assert "By head" in (trained / "index.html").read_text()


def test_a_killed_run_resumes_exactly_and_without_the_head_file(trained, tmp_path, shapes_small):
    config = write_config(tmp_path)
    command = heads_run(tmp_path, shapes_small, "--head-config", str(config), "--save-every", "0.00001")
    assert train(*command, script=FATAL, FATAL="step 6").returncode != 0
    config.unlink()
    done = train("--resume", str(tmp_path / "runs" / "run"))
    assert done.returncode == 0, done.stderr
    assert_same_weights(trained / "weights/epoch_001.pt", tmp_path / "runs/run/weights/epoch_001.pt")


# --- which heads ------------------------------------------------------------------------------------------------------


def options(*arguments: str):
    return parser_for("train").parse_args(list(arguments))


def test_flags_choose_the_heads(shapes_small, tmp_path):
    assert chosen_heads(options(), 80) is None
    assert chosen_heads(options("--heads", "8"), 80) == HeadConfig.consecutive(80, 8).to_dict()
    shipped = {name: HeadConfig.load(path).to_dict() for name, path in SHIPPED.items()}
    assert chosen_heads(options("--standard-grouping"), 80) == shipped["standard"]
    assert chosen_heads(options("--geometry-grouping", "--heads", "4"), 80) == shipped["geometry"]
    assert chosen_heads(options("--head-config", str(write_config(tmp_path))), 4)["heads"] == 2
    data = str(shapes_small / "shapes.yaml")
    grouped = HeadConfig.from_dict(chosen_heads(options("--geometry-grouping", "--heads", "2", "--data", data), 4))
    assert grouped.heads == 2 and grouped.grouping == "geometry_area"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head-config", "FILE", "--single-cls"], "--single-cls leaves one class.*leave out --head-config"),
        (["--head-config", str(SHIPPED["standard"])], "is for 80 classes, the data set has 4.*yolov7fast data heads"),
    ],
)
def test_heads_that_do_not_fit_are_refused(arguments, message, tmp_path):
    config = str(write_config(tmp_path))
    with pytest.raises(UserError, match=message):
        chosen_heads(options(*(config if argument == "FILE" else argument for argument in arguments)), 4)


def test_mistakes_in_a_network_from_weights_name_the_file(tmp_path, shapes_small):
    several = Model(
        read_description(ROOT / TINY) | {"width_multiple": 0.125}, nc=3, heads=HeadConfig.consecutive(3, 3).to_dict()
    )
    save_checkpoint({"model": several}, tmp_path / "three.pt")
    opt = options("--weights", str(tmp_path / "three.pt"), "--data", str(shapes_small / "shapes.yaml"))
    with pytest.raises(UserError, match=r"three\.pt, layer 77 .* is for 3 classes, the data set has 4: .* give --cfg"):
        build_model(opt, load_hyp("data/hyp.small.yaml"), 4)


# --- a start from one head --------------------------------------------------------------------------------------------


def test_transfer_lists_what_is_kept_fresh_and_dropped(caplog):
    with torch.device("meta"):
        one, several = Model(ROOT / "cfg/training/yolov7-tiny.yaml"), Model(ROOT / TINY)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        log_transfer(several, one.state_dict(), ())
    kept, fresh, dropped = (record.getMessage() for record in caplog.records)
    assert kept.startswith("kept (332): model.0.") and kept.endswith(" and 326 more")
    assert fresh.startswith("fresh (24): model.77.heads.0.0.weight, model.77.heads.0.0.bias")
    assert dropped.startswith("dropped (12): model.77.m.0.weight")


def test_anchors_count_as_taken_only_where_they_are_the_same():
    one = Model(read_description(ROOT / "cfg/training/yolov7-tiny.yaml") | {"width_multiple": 0.125})
    description = read_description(ROOT / TINY) | {"width_multiple": 0.125}
    assert anchors_agree(Model(description), one.half().state_dict())
    description["anchors"] = [[1, 2] * 3, [3, 4] * 3, [5, 6] * 3]
    assert not anchors_agree(Model(description), one.state_dict())


def test_heads_of_other_classes_are_not_taken_over(tmp_path, caplog):
    """Two groupings in groups of two: every name and shape agrees, the classes do not."""
    groups = {"a": ((0, 1), (2, 3)), "b": ((0, 2), (1, 3))}
    heads = {name: HeadConfig(4, classes, (1.0, 1.0), ("x", "y")).to_dict() for name, classes in groups.items()}
    description = read_description(ROOT / TINY) | {"width_multiple": 0.125}
    models = {name: Model(description, nc=4, heads=config) for name, config in heads.items()}
    save_checkpoint({"model": models["a"]}, tmp_path / "a.pt")
    source = load_checkpoint(tmp_path / "a.pt")
    assert foreign_heads(models["a"], source, "a.pt") == ()
    one_head = Model(read_description(ROOT / "cfg/training/yolov7-tiny.yaml") | {"width_multiple": 0.125}, nc=4)
    assert foreign_heads(models["a"], {"model": one_head.state_dict()}, "one.pt") == ()
    assert foreign_heads(models["a"], {"model": models["b"].state_dict()}, "b.pt")
    assert "b.pt holds weights only and does not name the classes of its heads" in caplog.text
    with caplog.at_level(logging.INFO):
        words = foreign_heads(models["b"], source, "a.pt")
    assert "a.pt: its heads predict other groups of classes" in caplog.text
    entries = [name for name in models["b"].state_dict() if any(word in name for word in words)]
    assert len(entries) == 2 * 3 * 2 and all(".heads." in name for name in entries)


def test_a_one_head_checkpoint_starts_a_multi_head_run(tmp_path, shapes_small, caplog):
    one = Model(read_description(ROOT / "cfg/training/yolov7-tiny.yaml") | {"width_multiple": 0.125}, nc=4)
    save_checkpoint({"model": one.state_dict()}, tmp_path / "one.pt")
    weights = ["--weights", str(tmp_path / "one.pt"), "--transfer-weights"]
    flags = ["--heads", "2", "--max-iter", "1", "--auto-lr", "--test-batch-size", "3", "--loss-ota", "0"]
    with caplog.at_level(logging.INFO):
        assert here(*heads_run(tmp_path, shapes_small, *flags, *weights)) == 0
    assert "Transferred 332/344 items" in caplog.text and "kept (332): model.0." in caplog.text
