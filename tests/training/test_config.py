"""The config of a run has a field for each flag, with its default, and is stored with upstream's keys."""

import pytest

from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import config_of
from yolov7fast.training.config import DetrTrainConfig, TrainConfig, YoloTrainConfig


@pytest.mark.parametrize("family, config_class", [("yolo", YoloTrainConfig), ("detr", DetrTrainConfig)])
def test_a_config_has_a_field_for_each_flag_with_its_default(family, config_class):
    flags, default = flags_of("train", family), config_class()
    assert flags.keys() <= config_class.names()
    assert {name: getattr(default, name) for name in flags} == {name: flag.default for name, flag in flags.items()}
    assert config_of(parser_for("train", family).parse_args([]), family) == default


def test_a_family_from_outside_has_the_shared_flags():
    assert flags_of("train", "spots").keys() <= TrainConfig.names()


def test_batches_are_stored_as_the_total_and_divided_for_a_process():
    config = YoloTrainConfig.from_options({"batch_size": 8, "world_size": 2, "given": ["epochs"], "removed_flag": 1})
    assert (config.batch_size, config.batch_per_process) == (8, 4)
    stored = config.stored()
    assert (stored["batch_size"], stored["total_batch_size"]) == (8, 8)
    assert "given" not in stored and stored["hyp"] == "data/hyp.scratch.p5.yaml"
