"""Weights of one network as the start of another: what fits is taken, and how much of it is said."""

import logging

import pytest
import torch

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError, load_checkpoint, state_dict_of, transfer_weights
from yolov7fast.nn.model import Model


@pytest.fixture
def weights(reference_files):
    return state_dict_of(load_checkpoint(reference_files["training_yolov7_tiny__full"]))


@pytest.fixture
def description(reference_files):
    return load_checkpoint(reference_files["training_yolov7_tiny__stripped"])["model"].yaml


def test_same_network_takes_everything_in_its_own_precision(weights, description, caplog):
    model = Model(description)
    with caplog.at_level(logging.INFO):
        assert transfer_weights(model, weights, origin="w.pt") == (344, 344)
    assert "Transferred 344/344 items from w.pt" in caplog.text and "shape" not in caplog.text
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name].to(value.dtype))
        assert value.dtype != torch.float16


def test_other_class_count_takes_what_fits_and_says_so(weights, description, caplog):
    model = Model(description, nc=5)
    head = {name: value.clone() for name, value in model.state_dict().items() if name.startswith("model.77.m.")}
    with caplog.at_level(logging.INFO):
        taken, total = transfer_weights(model, weights, origin="w.pt")
    assert (taken, total) == (344 - 9, 344)  # weight, bias and implicit product of three levels have other shapes
    assert "Transferred 335/344 items from w.pt" in caplog.text
    assert "9 items keep their initial values" in caplog.text
    assert "model.77.m.0.weight: [24, 16, 1, 1] in the file, [30, 16, 1, 1] here" in caplog.text
    assert all(torch.equal(model.state_dict()[name], value) for name, value in head.items())
    assert torch.equal(model.model[0].conv.weight, weights["model.0.conv.weight"].float())


def test_excluded_words_are_left_alone(weights, description):
    model = Model(description)
    before = model.model[-1].anchors.clone()
    weights["model.77.anchors"] = weights["model.77.anchors"] * 2
    assert transfer_weights(model, weights, exclude=["anchor"]) == (342, 344)
    assert torch.equal(model.model[-1].anchors, before)


def test_foreign_weights_are_refused_and_change_nothing(description):
    model = Model(description)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"nothing in foreign\.pt fits this network"):
        transfer_weights(model, {"backbone.0.weight": torch.zeros(3)}, origin="foreign.pt")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_of_which_little_fits_are_taken_with_a_warning(description, caplog):
    model = Model(description)
    name, value = next(iter(model.state_dict().items()))
    assert transfer_weights(model, {name: value + 1}, origin="other.pt") == (1, 344)
    assert "other.pt seems to be from another network" in caplog.text
