"""Profiles in numbers and words."""

import pytest

from yolov7fast.profiling import report
from yolov7fast.profiling.op_counter import OpCounter


def test_a_profile_has_means_fractions_and_the_rate_of_images():
    counter = OpCounter()
    times = {"data": [1.0, 3.0], "forward": [10.0, 10.0], "backward": [8.0, 8.0]}
    profile = report.summarise(times, [4, 4], counter)
    assert profile["stages"]["data"] == {"mean_ms": 2.0, "std_ms": 1.0, "fraction": pytest.approx(0.1)}
    assert profile["total_ms"] == 20.0 and profile["iterations"] == 2
    assert profile["images_per_s"] == pytest.approx(200.0) and profile["gpu_busy"] == pytest.approx(0.9)


def test_the_ratio_of_the_losses_takes_loss_and_assignment_together():
    def profile(total, loss, assignment):
        stages = {"forward": total - loss - assignment, "loss": loss, "assignment": assignment}
        return {"total_ms": total, "stages": {name: {"mean_ms": value} for name, value in stages.items()}}

    text = report.comparison(plain=profile(100.0, 8.0, 2.0), ota=profile(105.0, 9.0, 6.0))
    assert "1.050 times one with the plain loss" in text
    assert "loss + assignment alone 1.500 times (15.00 against 10.00 ms)" in text


def test_advice_follows_the_largest_avoidable_fraction():
    def profile(**fractions):
        return {"stages": {name: {"fraction": value} for name, value in fractions.items()}}

    assert "--cache-images disk" in report.advice(profile(data=0.5, forward=0.4, loss=0.1))
    assert "the loss" in report.advice(profile(data=0.1, forward=0.4, loss=0.2, assignment=0.3))
    assert "USE_COMPILE" in report.advice(profile(data=0.1, forward=0.8, loss=0.1))
