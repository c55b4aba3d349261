"""The training step makes the host wait for nothing, and planted faults are found with their source line.

The step runs on a simulated device, where every operator and every copy is seen.
"""

from functools import wraps
from pathlib import Path

import pytest
import torch

from tests.host_sync_finder import WaitFinder
from tests.simulated_device import SIMULATED, simulated_device
from yolov7fast.core import device
from yolov7fast.losses.yolo_loss import YoloLoss
from yolov7fast.machine.gpu_check import RATES, step_on_random_batch


def waits_of_step(cfg: str, assigner: str, folder: Path) -> list[str]:
    """What one step waits for; a step before it has sent what is sent once."""
    with simulated_device() as pages:
        family, step = step_on_random_batch(SIMULATED, cfg, 64, 2, folder)
        family.assigner = assigner
        step(family.loader[0], 0, RATES)
        with WaitFinder(pages.holds) as finder:
            step(family.loader[0], 1, RATES)
    return list(map(str, finder.found))


@pytest.mark.parametrize("assigner", ["plain", "ota"])
def test_a_step_waits_for_nothing(assigner, small_cfg, tmp_path):
    assert waits_of_step(small_cfg, assigner, tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda box: box.sum().item(), "_local_scalar_dense reads a value"),
        (lambda box: box[torch.arange(2)], "takes its index from the host"),
        (lambda box: torch.ones(3).to(box.device, non_blocking=True), "copies pageable memory"),
        (lambda box: box.cpu(), "copies to the host and waits"),
    ],
    ids=["item", "index", "unpinned copy", "copy to the host"],
)
def test_a_wait_in_the_step_is_found_with_its_source_line(fault, says, small_cfg, tmp_path, monkeypatch):
    terms = YoloLoss.terms

    @wraps(terms)
    def planted(self, predicted, *rest):
        fault(predicted.box)
        return terms(self, predicted, *rest)

    monkeypatch.setattr(YoloLoss, "terms", planted)
    place = f"{Path(__file__).name}:{fault.__code__.co_firstlineno}"
    places = waits_of_step(small_cfg, "ota", tmp_path)
    assert any(says in found and place in found for found in places), (place, places)


def test_memory_that_is_not_locked_before_it_is_sent_is_found(small_cfg, tmp_path, monkeypatch):
    """As if `send` had forgotten to lock its buffer."""
    monkeypatch.setattr(device, "is_accelerator", lambda device: False)
    places = waits_of_step(small_cfg, "plain", tmp_path)
    assert places and all("core/device.py" in p and "(send)" in p and "pageable" in p for p in places)
