"""The speed section: which options are measured and recommended, and how close the step is to the peak."""

import pytest
import torch

from yolov7fast.machine import speed_check
from yolov7fast.machine.gpu_check import INFO
from yolov7fast.machine.speed_check import Peak, fastest, known, light_text, loader_rate, measured_peak
from yolov7fast.training.memory_plan import StepCost

CPU = torch.device("cpu")
FAST, DISK = ("--fast-dataloader",), ("--fast-dataloader", "--cache-images", "disk")


def test_options_that_train_py_lacks_are_left_out():
    assert known(speed_check.STEP_OPTIONS) == list(speed_check.STEP_OPTIONS)
    assert known([(), DISK, ("--not-a-flag",)]) == [(), DISK]


def test_further_options_must_gain_more_than_the_scatter():
    assert fastest({(): 100.0, FAST: 102.0, DISK: 101.0}) == ()
    assert fastest({(): 100.0, FAST: 110.0, DISK: 112.0}) == FAST
    assert fastest({(): 100.0, FAST: 90.0, DISK: 120.0}) == DISK


def test_every_option_is_measured_and_the_last_line_is_the_fastest_command(small_cfg, tmp_path, monkeypatch):
    for name, value in {"TINY": small_cfg, "SIZE": 64, "ROUNDS": 1}.items():
        monkeypatch.setattr(speed_check, name, value)

    def rate(folder, options, workers):
        if not options:
            raise RuntimeError("DataLoader worker is killed by signal: Bus error")
        return 1e6

    monkeypatch.setattr(speed_check, "loader_rate", rate)
    monkeypatch.setattr(speed_check, "usable_cores", lambda: 16)
    lines = list(speed_check.check_speed(CPU, tmp_path))
    assert {line.status for line in lines} == {INFO}
    names = [line.name.removeprefix("yolov7-tiny, 64, ") for line in lines]
    steps = ["batch 4, plain, no option", "batch 4, ota, no option", "OTA / plain", "batch 4, ota, --channels-last"]
    loaders = ["loader, 64, no option", "loader, 64, --fast-dataloader --cache-images disk"]
    assert names == [*steps, "fraction of the peak", *loaders, "fastest command line"]
    assert "forward " in lines[0].text and "optimizer " in lines[0].text and "utilisation" not in lines[0].text
    assert "failed: DataLoader worker is killed" in lines[5].text
    assert "1000000 images/s with 14 workers, more than" in lines[6].text
    assert "train.py --data YOUR.yaml --batch-size 4 --workers 14 --fast-dataloader --cache" in lines[-1].text


def test_the_text_of_a_gpu_shows_host_and_gpu_time():
    profile = {"stages": {}, "images_per_s": 100.0, "total_ms": 20.0, "host_ms": 8.0, "kernel_ms": 15.0}
    assert speed_check.step_text(profile).endswith("host time 8.0, GPU time 15.0 (utilisation 75%)")


def test_a_warning_of_the_compiler_is_part_of_the_line():
    with speed_check.logged_warnings() as found:
        speed_check.logging.getLogger("yolov7fast.nn").warning("torch.compile failed after %d s", 3)
    assert found == ["torch.compile failed after 3 s"]


@pytest.mark.parametrize(
    ("peak", "says"), [(Peak(1e12, 1e15), "need 40.9 ms"), (Peak(1e15, 1e10), "at 10 GB/s (copy) 284.2 ms")]
)
def test_the_fraction_of_the_peak_is_that_of_the_resource_that_limits(peak, says, monkeypatch):
    monkeypatch.setattr(
        speed_check.Workload, "cost", lambda *_: StepCost(0, 0, flops=40_900_000_000, traffic=2_842_000_000)
    )
    monkeypatch.setattr(speed_check, "measured_peak", lambda *_: peak)
    text = light_text(CPU, 4, 0.5)
    assert "the fastest step takes 500.0 ms. 0.041 TFLOP" in text and says in text
    assert text.endswith("8% of the peak" if peak.flops < 1e13 else "% of the peak")


def test_the_peak_and_a_loader_are_measured(tmp_path, monkeypatch):
    for name, value in {"LOADER_BATCH": 2, "IMAGE_SIZE": 64, "SIZE": 64, "ROUNDS": 1}.items():
        monkeypatch.setattr(speed_check, name, value)
    assert all(value > 1e6 for value in measured_peak(CPU, torch.float32))
    assert loader_rate(tmp_path, DISK, 1) > 0
