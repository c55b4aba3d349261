"""Overfit mode: how long it trains, at which rates, and which options are kept."""

import pytest
import yaml

from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import config_of


def settled(family: str, *arguments: str):
    return config_of(parser_for("train", family).parse_args(list(arguments)), family)


def write(path, **values) -> str:
    path.write_text(yaml.safe_dump(values))
    return str(path)


@pytest.mark.parametrize(
    ("name", "family", "epochs"),
    [("detr_smoke", "detr", 500), ("rtdetr_small", "detr", 750)],
)
def test_the_length_and_the_rates_of_a_run_file_are_replaced(name, family, epochs):
    """1500 iterations of three batches, of two."""
    opt = settled(family, "--config", f"configs/{name}.yaml", "--subset-size", "10", "--overfit")
    assert (opt.overfit, opt.epochs, opt.max_iter, opt.checkpoint_period) == (10, epochs, 0, epochs)
    assert (opt.schedule, opt.backbone_lr) == ("cosine", opt.lr) and opt.epochs == 5 * opt.eval_interval


def test_yolo_gets_adam_and_an_update_for_every_batch():
    opt = settled("yolo", "--batch-size", "4", "--overfit")
    assert opt.epochs == 300 and opt.adam  # three batches each: no fewer epochs than a usual run
    assert opt.hyp["base"] == "data/hyp.scratch.p5.yaml"
    assert (opt.hyp["lr0"], opt.hyp["nominal_batch"], opt.hyp["warmup_epochs"]) == (0.002, 4, 0)
    opt = settled("yolo", "--batch-size", "auto", "--overfit", "7")  # the images are one batch
    assert opt.epochs == 300 and opt.hyp["nominal_batch"] == 7


@pytest.mark.parametrize("length", [("--epochs", "5"), ("--max-epochs", "5"), ("--max-iter", "9")])
def test_a_length_on_the_command_line_is_kept(length):
    opt = settled("detr", "--config", "configs/detr_smoke.yaml", "--overfit", *length)
    assert (opt.epochs, opt.max_iter) == ((2, 9) if "iter" in length[0] else (5, 0))
    assert opt.eval_interval == 1 and opt.schedule == "cosine"


def test_rates_on_the_command_line_are_kept():
    opt = settled("detr", "--overfit", "--schedule", "step", "--backbone-lr", "0.5")
    assert (opt.schedule, opt.backbone_lr) == ("step", 0.5)
    opt = settled("yolo", "--overfit", "--hyp", "data/hyp.small.yaml")
    assert (opt.hyp, opt.adam) == ("data/hyp.small.yaml", False)


def test_a_pretrained_backbone_keeps_its_rate():
    assert settled("detr", "--overfit", "--pretrained", "facebook/detr-resnet-50").backbone_lr == 1e-5


def test_what_stands_in_the_run_file_that_asks_for_overfit_is_kept(tmp_path):
    base = write(tmp_path / "base.yaml", overfit=False, epochs=2, schedule="step", eval_interval=3)
    own = write(tmp_path / "own.yaml", base=base, training={"max_epochs": 10, "overfit": True})
    opt = settled("detr", "--config", own)
    assert (opt.overfit, opt.epochs, opt.eval_interval, opt.schedule) == (10, 10, 3, "cosine")
    further = write(tmp_path / "further.yaml", base=own, schedule="step")
    opt = settled("detr", "--config", further)
    assert (opt.epochs, opt.schedule) == (10, "step")


def test_what_such_a_file_inherits_is_replaced(tmp_path):
    base = write(tmp_path / "base.yaml", overfit=False, epochs=2)
    own = write(tmp_path / "own.yaml", base=base, overfit=True, batch_size=10)
    assert settled("detr", "--config", own).epochs == 1500
    off = write(tmp_path / "off.yaml", base=own, overfit=False, epochs=3)
    assert settled("detr", "--config", off).epochs == 3
    assert settled("detr", "--config", off, "--overfit").epochs == 1500
