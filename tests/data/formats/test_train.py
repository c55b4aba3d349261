"""From `--data` in each format to a trained detector, on a few images."""

import logging
import shutil
from pathlib import Path

import yaml

from tests.data.formats.drawn_sets import NAMES, write_csv, write_yolo, yolo_text
from tests.training.commands import small_network
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.cli.commands import test as test_command
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for


def train(folder: Path, data, *extra: str) -> int:
    """One epoch of a narrow yolov7-tiny at 64 pixels."""
    arguments = ["--cfg", small_network(folder), "--data", str(data), "--hyp", "data/hyp.small.yaml", "--img", "64"]
    arguments += ["--batch-size", "4", "--workers", "0", "--device", "cpu", "--noautoanchor", "--epochs", "1"]
    arguments += ["--project", str(folder / "runs"), "--name", "run", *extra]
    return run(parser_for("train", "yolo").parse_args(arguments))


def test_a_zip_of_another_format_trains_a_detector_with_a_validation_set_split_off(tmp_path, caplog):
    root = write_csv(tmp_path / "set", train=12, val=0)
    data = shutil.make_archive(str(tmp_path / "set"), "zip", root)
    with caplog.at_level(logging.INFO):
        assert train(tmp_path, data, "--val-fraction", "0.25") == 0
    assert not any("A closer look" in message for message in caplog.messages)
    assert any("data: CSV" in message and "train 9 images, val 3 images" in message for message in caplog.messages)
    run = tmp_path / "runs" / "run"
    assert load_checkpoint(run / "weights" / "last.pt")["model"].names == NAMES
    assert len((run / "results.txt").read_text().splitlines()) == 1
    assert yaml.safe_load((run / "opt.yaml").read_text())["data"] == data
    arguments = ["--weights", str(run / "weights" / "last.pt"), "--data", data, "--val-fraction", "0.25", "--img", "64"]
    arguments += ["--batch", "4", "--device", "cpu", "--workers", "0", "--project", str(tmp_path / "runs")]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        result = test_command.run(parser_for("test").parse_args(arguments))
    assert result is not None and result.seen == 3
    assert any("9 train, 3 val images, by a hash of file names" in message for message in caplog.messages)


def test_an_odd_set_names_the_command_for_a_closer_look(tmp_path, caplog):
    root = write_yolo(tmp_path / "my set")
    (root / "train" / "labels" / "000.txt").write_text(yolo_text(0) + "0 0.5 0.5 0.001 0.5\n")
    (root / "train" / "labels" / "001.txt").write_text("0 0.5 0.5 7 7\n")
    for part in ("images", "labels"):
        shutil.rmtree(root / "valid" / part)
        shutil.copytree(root / "train" / part, root / "valid" / part)
    with caplog.at_level(logging.INFO):
        assert train(tmp_path, root) == 0
    (line,) = [message for message in caplog.messages if "A closer look" in message]
    assert "1 x box outside" in line
    assert "1 of 8 boxes are below 3 pixels at 64" in line
    assert "7 file names are in train and in val" in line
    assert len([text for text in caplog.messages if "the validation images are training images too" in text]) == 1
    assert line.endswith(f"yolov7fast data check '{root}' --img-size 64 --cfg {tmp_path / 'small.yaml'}")
