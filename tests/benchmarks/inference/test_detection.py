"""The benchmarks of detection run at the smallest size and write the figures that they print."""

import json

import pytest
import torch

from benchmarks.inference import detect, formats, slicing
from tests.mini_network import write_mini_weights
from tests.training.commands import small_network


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    return str(write_mini_weights(tmp_path_factory.mktemp("benchmarks") / "best.pt"))


def test_throughput_of_every_way_is_measured(weights, tmp_path, capsys):
    flags = ["--images", "3", "--img-size", "64", "--batch-size", "2", "--runs", "1"]
    assert detect.main(["--weights", weights, *flags, "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert all(rate > 0 for rate in figures["rates"].values()) and len(figures["rates"]) == 3
    assert figures["ratios"][0]["value"] > 0 and "images/s" in capsys.readouterr().out


def test_recall_is_measured_with_and_without_slices(weights, tmp_path, capsys):
    flags = ["--images", "1", "--side", "2", "--img-size", "64", "--json", str(tmp_path / "figures.json")]
    assert slicing.main(["--weights", weights, *flags]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures["recall"]) == {"whole", "sliced"} and figures["small"] > 0
    assert "recall of small objects" in capsys.readouterr().out


def test_an_object_counts_as_found_by_a_box_of_its_class_that_covers_it():
    labels = torch.tensor([[0.0, 10, 10, 20, 20], [1, 10, 10, 20, 20], [0, 50, 50, 60, 60]])
    boxes = torch.tensor([[10.0, 10, 20, 19, 0.9, 0], [56, 50, 66, 60, 0.9, 0]])
    assert slicing.found(labels, boxes).tolist() == [True, False, False]
    assert slicing.found(labels, torch.zeros(0, 6)).tolist() == [False] * 3


def test_large_images_hold_the_scenes_and_their_labels():
    image, labels = slicing.large_image(0, 2)
    assert image.shape == (800, 800, 3) and len(labels) >= 4
    assert (labels[:, 1:] >= 0).all() and (labels[:, 1:] <= 800).all()
    assert labels[:, 1].max() > 400 and labels[:, 2].max() > 400


@pytest.mark.slow
def test_formats_are_timed_for_every_network_and_size(tmp_path, capsys):
    flags = ["--img-size", "32", "64", "--runs", "1", "--threads", "1", "--json", str(tmp_path / "figures.json")]
    assert formats.main(["--cfg", small_network(tmp_path), *flags]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert list(figures["milliseconds"]) == ["small at 32", "small at 64"]
    assert all(ms > 0 for row in figures["milliseconds"].values() for ms in row.values())
    assert [row["value"] > 0 for row in figures["ratios"]] == [True, True] and "small at 64" in capsys.readouterr().out
