"""Learning rates, momentum and accumulation against recorded runs of upstream (WongKinYiu/yolov7)."""

import numpy as np
import pytest

from yolov7fast.training.optimizer import YoloSchedule, scaled_weight_decay

CASES = [
    "cos_b8_nb300_e6", "cos_b64_nb100_e12", "cos_b128_nb100_e11", "linear_b16_nb250_e6",
    "adam_b16_nb250_e5", "cos_b24_nb401_e4", "short_b40_nb50_e3", "warm4_b16_nb300_e6",
]  # fmt: skip


def replay(case: dict) -> dict:
    """Run the loop's bookkeeping without a network."""
    schedule = YoloSchedule(case["hyp"], case["nb"], case["epochs"], case["batch_size"], "--linear-lr" in case["flags"])
    rates, steps, summed, pending = [], [], [], 0
    for epoch in range(case["epochs"]):
        pending = 0  # gradients are cleared when an epoch begins
        for position in range(case["nb"]):
            number = epoch * case["nb"] + position
            rate = schedule.rates(number, epoch, position)
            rates.append(rate)
            pending += 1
            if number % rate.accumulate == 0:
                steps.append(number)
                summed.append(pending)
                pending = 0
    return {"rates": rates, "steps": steps, "summed": summed}


@pytest.mark.parametrize("name", CASES)
def test_rates_follow_the_recorded_loop(golden, name):
    case = golden("train_schedule.json")[name]
    ours = replay(case)
    assert ours["steps"] == case["optimizer_step_at_ni"]
    assert ours["summed"] == case["accumulated_batches_in_step"]
    assert scaled_weight_decay(case["hyp"], case["batch_size"]) == case["weight_decay_group1"]
    lrs = np.array([rate.lrs for rate in ours["rates"]])
    momentum = np.array([rate.momentum for rate in ours["rates"]])
    for sample in case["samples"]:
        np.testing.assert_allclose(lrs[sample["ni"]], sample["lr"], rtol=1e-12, atol=1e-15)
        if "--adam" not in case["flags"]:
            np.testing.assert_allclose(momentum[sample["ni"]], sample["momentum"], rtol=1e-12)


def test_linear_decay_of_one_epoch_is_defined():
    hyp = {"lr0": 0.01, "lrf": 0.1, "warmup_epochs": 0}
    assert YoloSchedule(hyp, 10, 1, 16, linear=True).decay(0) == 1.0


def test_warmup_has_its_floor_unless_the_file_lowers_it():
    hyp = {"warmup_epochs": 3}
    assert YoloSchedule(hyp, 13, 10, 16).warmup == 1000
    assert YoloSchedule({**hyp, "warmup_min_iters": 20}, 13, 10, 16).warmup == 39
