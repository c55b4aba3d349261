"""The machine's lines: each thing that can be wrong is found and comes with its remedy. Readings are played."""

import os
import shutil
from collections import namedtuple

import pytest
import torch

from yolov7fast.diagnostics import environment
from yolov7fast.diagnostics.results import FAILED, LEFT_OUT, PASSED

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def gpu(setting, monkeypatch):
    """A healthy machine with an RTX 5090, whose readings a test may change."""
    monkeypatch.setattr(type(setting), "on_gpu", property(lambda self: True))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90", "sm_120"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX 5090")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (31_000_000_000, 32_000_000_000))
    monkeypatch.setattr(environment, "nvidia_smi", lambda: ["575.51, RTX 5090"])
    monkeypatch.setattr(environment, "cpu_quota", lambda: None)
    monkeypatch.setattr(environment, "free_memory", lambda: 60e9)
    monkeypatch.setattr(environment, "disk_speed", lambda folder, size: (900e6, 1200e6))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(200e9, 100e9, 100e9))
    return monkeypatch


def lines(setting) -> dict:
    found = [check(setting) for check in environment.CHECKS]
    return {line.name: line for entry in found for line in (entry if isinstance(entry, list) else [entry])}


def test_a_healthy_machine_is_green(setting, gpu):
    found = lines(setting)
    assert {name for name, line in found.items() if line.status != PASSED} == set()
    assert len(found) == 8 and "driver 575.51" in found["driver"].text


SICK = {
    "a build without the card's code": (
        lambda m: m.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"]),
        *("torch's CUDA build against the card", "sm_120", "whl/cu128"),
    ),
    "a GPU in use": (
        lambda m: m.setattr(torch.cuda, "mem_get_info", lambda device: (1_500_000_000, 32_000_000_000)),
        *("GPU memory", "1.5 of 32.0 GB", "nvidia-smi"),
    ),
    "little RAM": (
        lambda m: m.setattr(environment, "free_memory", lambda: 2e9),
        *("RAM", "2.0 GB free", "--cache-images ram"),
    ),
    "a container's small /dev/shm": (
        lambda m: m.setattr(shutil, "disk_usage", lambda path: Usage(2e11, 1e11, 64e6 if path == "/dev/shm" else 1e11)),
        *("/dev/shm", "0.06 GB free", "--shm-size 8g"),
    ),
    "cores that may not be used": (
        lambda m: m.setattr(environment, "cpu_quota", lambda: 6.0),
        *("cores", "16 cores are seen, but the container may use 6", "--workers 6 and OMP_NUM_THREADS=6"),
    ),
    "too few cores": (
        lambda m: m.setattr(os, "sched_getaffinity", lambda process: range(2)),
        *("cores", "2 cores", "--fast-dataloader"),
    ),
    "a slow disk": (
        lambda m: m.setattr(environment, "disk_speed", lambda folder, size: (300e6, 40e6)),
        *("disk speed", "reads 40 MB/s", "--cache-images ram"),
    ),
    "a full disk": (
        lambda m: m.setattr(shutil, "disk_usage", lambda path: Usage(2e11, 2e11, 1e9)),
        *("free disk", "1 GB", "free some space"),
    ),
}


@pytest.mark.parametrize("name", SICK)
def test_what_is_wrong_is_red_with_its_remedy(name, setting, gpu):
    plant, line, says, remedy = SICK[name]
    plant(gpu)
    found = lines(setting)[line]
    assert found.status == FAILED and says in found.text and remedy in found.remedy


@pytest.mark.parametrize(
    ("cuda", "visible", "says", "remedy"),
    [(None, "", "built without CUDA", "whl/cu128"), ("13.0", "", "does not serve torch's CUDA 13.0", "whl/cu126")],
)
def test_a_gpu_that_torch_does_not_reach_is_red(cuda, visible, says, remedy, setting, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(environment, "nvidia_smi", lambda: ["535.10, RTX 4090"])
    line = environment.check_driver(setting)
    assert line.status == FAILED and says in line.text and "RTX 4090" in line.text and remedy in line.remedy


def test_a_machine_without_a_gpu_leaves_its_lines_out(setting, monkeypatch):
    monkeypatch.setattr(environment, "nvidia_smi", lambda: None)
    found = lines(setting)
    assert [name for name, line in found.items() if line.status == LEFT_OUT] == [
        "driver",
        "torch's CUDA build against the card",
        "GPU memory",
    ]
    assert found["disk speed"].figures["read"] > 0  # really measured
    assert not list(setting.place.glob(".yolov7fast*"))


@pytest.mark.parametrize(
    ("capability", "built", "served"),
    [
        ((8, 6), ["sm_80"], True),  # code of the same major version
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # PTX is compiled for later cards
        ((12, 0), ["sm_90"], False),
        ((9, 0), ["sm_90a"], True),
        ((7, 5), [], False),
    ],
)
def test_which_cards_a_build_serves(capability, built, served):
    assert environment.serves(capability, built) is served


def test_quota_and_memory_are_read_from_the_system():
    assert environment.cpu_quota() is None or environment.cpu_quota() > 0
    assert environment.free_memory() > 1e8


def test_nvidias_tool_is_asked_and_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.nvidia_smi() is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '575.51, RTX 5090'\n")
    tool.chmod(0o755)
    assert environment.nvidia_smi() == ["575.51, RTX 5090"]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert environment.nvidia_smi() is None
