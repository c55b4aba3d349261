"""Optimizer groups, freezing, EMA, hyper-parameters, evolution: the engine's small parts."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from yolov7fast.core.errors import UserError
from yolov7fast.core.resize_schedule import parse_resize_schedule
from yolov7fast.nn.model import Model
from yolov7fast.search.evolve import genes, mutate
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training.optimizer import ModelEMA, freeze_layers, parameter_groups


@pytest.fixture(scope="module")
def tiny():
    return Model("cfg/training/yolov7-tiny.yaml", nc=80)


def test_tiny_groups_are_the_recorded_ones(golden, tiny):
    names = {id(parameter): name for name, parameter in tiny.named_parameters()}
    ours = [[names[id(parameter)] for parameter in group] for group in parameter_groups(tiny)]
    recorded = golden("train_groups.json")["tiny_groups"]
    recorded = recorded if isinstance(recorded, list) else list(recorded.values())
    assert ours == recorded


def test_every_parameter_is_in_exactly_one_group():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.linear = nn.Linear(3, 3)

    groups = parameter_groups(nn.Sequential(Odd(), nn.BatchNorm2d(3)))
    assert [len(group) for group in groups] == [2, 1, 2]


def test_freeze_by_count_and_by_list(tiny):
    assert freeze_layers(tiny, [0]) == []
    assert {name.split(".")[1] for name in freeze_layers(tiny, [3])} == {"0", "1", "2"}
    assert {name.split(".")[1] for name in freeze_layers(tiny, [2, 77])} == {"2", "77"}
    with pytest.raises(UserError, match="--freeze 100 leaves nothing to train"):
        freeze_layers(tiny, [100])
    freeze_layers(tiny, [0])
    assert all(parameter.requires_grad for parameter in tiny.parameters())


def test_ema_follows_its_formula_and_leaves_counters_alone():
    model = nn.BatchNorm2d(2)
    ema = ModelEMA(model)
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.num_batches_tracked.fill_(7)
    ema.update(model)
    d = 0.9999 * (1 - math.exp(-1 / 2000))
    assert torch.allclose(ema.ema.weight, torch.full((2,), d * 1.0 + (1 - d) * 3.0))
    assert ema.ema.num_batches_tracked.item() == 0
    assert not ema.ema.weight.requires_grad


@pytest.mark.parametrize("name", ["p5", "p6", "tiny", "custom", "tiny.noota", "tiny.nomosaic"])
def test_shipped_hyper_parameters_are_valid(name):
    hyp = hyper.load_hyp(f"data/hyp.scratch.{name}.yaml")
    assert hyp["loss_ota"] == (0 if "noota" in name else 1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lr0": -1}, "lr0 is -1, outside"),
        ({"mosaik": 1.0}, "did you mean 'mosaic'"),
        ({"loss_ota": 0.5}, "loss_ota must be 0"),
        ({"mixup": "often"}, "mixup must be a number"),
    ],
)
def test_bad_hyper_parameters_are_named(change, complaint):
    values = hyper.load_hyp("data/hyp.scratch.tiny.yaml") | change
    with pytest.raises(UserError, match=complaint):
        hyper.check_hyp(values, "hyp file x.yaml")


def test_a_missing_key_is_an_error_and_text_numbers_are_read(tmp_path):
    values = hyper.load_hyp("data/hyp.scratch.tiny.yaml")
    assert hyper.check_hyp(values | {"lr0": "1e-3"}, "x")["lr0"] == 1e-3
    values.pop("momentum")
    with pytest.raises(UserError, match="has no key 'momentum'"):
        hyper.check_hyp(values, "x.yaml")
    with pytest.raises(UserError, match=r"nothere\.yaml does not exist"):
        hyper.load_hyp(tmp_path / "nothere.yaml")


def test_gains_are_scaled_into_a_new_mapping():
    hyp = hyper.load_hyp("data/hyp.scratch.p5.yaml")
    before = dict(hyp)
    scaled = hyper.scale_gains(hyp, levels=4, classes=20, img_size=320, smoothing=0.1)
    assert hyp == before
    assert scaled["box"] == pytest.approx(0.05 * 3 / 4)
    assert scaled["cls"] == pytest.approx(0.3 * 20 / 80 * 3 / 4)
    assert scaled["obj"] == pytest.approx(0.7 * 0.25 * 3 / 4)
    assert scaled["label_smoothing"] == 0.1


@pytest.mark.parametrize(("batch", "lr0", "warmup"), [(64, 0.01, 3), (96, 0.012247, 3), (384, 0.024495, 5)])
def test_auto_lr_is_the_square_root_rule(batch, lr0, warmup):
    values = hyper.auto_lr({"lr0": 0.01, "warmup_epochs": 3}, batch)
    assert values["lr0"] == pytest.approx(lr0, abs=1e-6)
    assert values["warmup_epochs"] == warmup


def test_resize_schedule_is_parsed_and_checked():
    stages = parse_resize_schedule("1:320,20:480:8")
    assert [(s.epoch, s.size, s.batch) for s in stages] == [(0, 320, None), (19, 480, 8)]
    for wrong in ("320", "2:320", "1:320,1:480", "1:x", "5:320,1:480"):
        with pytest.raises(UserError, match="--resize-schedule"):
            parse_resize_schedule(wrong)


def test_evolution_mutates_by_name_within_limits():
    hyp = hyper.load_hyp("data/hyp.scratch.tiny.yaml")
    names = genes(hyp)
    assert "loss_ota" not in names
    random = np.random.default_rng(0)
    first = mutate(hyp, np.zeros((0, 7 + len(names))), random)
    assert first["lr0"] == hyp["lr0"]
    rows = np.array([[0, 0, 0.1 * k, 0.1 * k, 0, 0, 0, *(first[n] for n in names)] for k in range(8)])
    for _ in range(20):
        child = mutate(hyp, rows, random)
        assert child["loss_ota"] == hyp["loss_ota"]
        assert any(child[n] != first[n] for n in names)
        for name in names:
            key = hyper.KEYS[name]
            assert key.evolve_low <= child[name] <= key.evolve_high
        hyper.check_hyp(child, "child")
    fixed = [n for n in names if hyper.KEYS[n].gain == 0]
    assert all(child[n] == first[n] for n in fixed)
