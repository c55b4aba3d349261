"""The training step makes the host wait for nothing, and planted faults are found with their source line.

The step runs on a simulated device, where every operator and every copy is seen.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.host_sync_finder import Wait, WaitFinder
from tests.machine import planted_faults
from tests.simulated_device import SIMULATED, simulated_device
from yolov7fast.core import device
from yolov7fast.losses.yolo_loss import YoloLoss
from yolov7fast.machine.gpu_check import RATES, narrow_cfg, step_on_random_batch
from yolov7fast.training.step import TrainStep

PLANTS = planted_faults.__file__.split("/tests/")[1]


def waits_of_step(cfg: str, size: int, assigner: str, folder: Path) -> list[Wait]:
    """What one step waits for; a step before it has sent what is sent once."""
    with simulated_device() as pages:
        family, step = step_on_random_batch(SIMULATED, cfg, size, 2, folder)
        family.assigner = assigner
        step(family.loader[0], 0, RATES)
        with WaitFinder(pages.holds) as finder:
            step(family.loader[0], 1, RATES)
    return list(finder.found)


class Fault(NamedTuple):
    """What is planted where, and what the line says of it."""

    owner: type
    method: str
    plant: Callable
    says: str

    @property
    def place(self) -> str:
        """The line of the plant that is marked."""
        first = self.plant.__code__.co_firstlineno
        lines = Path(planted_faults.__file__).read_text().splitlines()[first - 1 :]
        return f"tests/{PLANTS}:{first + next(n for n, line in enumerate(lines) if '# the fault' in line)}"


IN_THE_STEP = {
    "item in the loss": Fault(YoloLoss, "terms", planted_faults.reads_item, "_local_scalar_dense reads a value"),
    "index from the host": Fault(
        YoloLoss, "positives", planted_faults.takes_host_index, "takes its index from the host"
    ),
    "unpinned copy": Fault(YoloLoss, "terms", planted_faults.copies_pageable, "copies pageable memory"),
    "copy to the host": Fault(TrainStep, "_note_items", planted_faults.copies_back, "copies to the host and waits"),
}


@pytest.mark.parametrize("assigner", ["plain", "ota"])
def test_a_step_waits_for_nothing(assigner, small_cfg, tmp_path):
    assert waits_of_step(small_cfg, 64, assigner, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("cfg", "size"), [("yolov7-w6", 128), ("yolov7-tiny-1b4h", 64)])
def test_a_step_with_auxiliary_or_several_heads_waits_for_nothing(cfg, size, tmp_path):
    assert waits_of_step(narrow_cfg(cfg, 0.125, tmp_path), size, "ota", tmp_path) == []


@pytest.mark.parametrize("name", IN_THE_STEP)
def test_a_wait_in_the_step_is_found_with_its_source_line(name, small_cfg, tmp_path, monkeypatch):
    fault = IN_THE_STEP[name]
    monkeypatch.setattr(fault.owner, fault.method, fault.plant(getattr(fault.owner, fault.method)))
    places = list(map(str, waits_of_step(small_cfg, 64, "ota", tmp_path)))
    assert any(fault.says in place and fault.place in place for place in places), (fault.place, places)


def test_memory_that_is_not_locked_before_it_is_sent_is_found(small_cfg, tmp_path, monkeypatch):
    """As if `send` had forgotten to lock its buffer."""
    monkeypatch.setattr(device, "is_accelerator", lambda device: False)
    places = list(map(str, waits_of_step(small_cfg, 64, "plain", tmp_path)))
    assert places and all("core/device.py" in p and "(send)" in p and "pageable" in p for p in places)
