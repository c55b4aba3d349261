"""Branches that only run with CUDA, with `torch.cuda` simulated."""

import pytest
import torch

from tests.training.test_step import scalar_step
from yolov7fast.training import distributed
from yolov7fast.training.checkpoints import resume
from yolov7fast.training.distributed import World
from yolov7fast.training.optimizer import Rates

CUDA = torch.device("cuda", 0)


def test_the_step_hands_a_bad_batch_to_the_fused_optimizer():
    """As on CUDA without a scaler: the host is not asked, and the optimizer itself leaves the weights alone."""
    step = scalar_step()
    step.optimizer = torch.optim.SGD([{"params": [p]} for p in step.model.parameters()], lr=0.1, fused=True)
    step.device = CUDA
    step(float("nan"), 0, Rates((0.5,) * 3, 0.0, 1))
    assert step.model.weight.item() == 1.0 and float(step.optimizer.found_inf) == 1.0
    step(1.0, 1, Rates((0.5,) * 3, 0.0, 1))
    assert step.model.weight.item() == 0.5 and float(step.optimizer.found_inf) == 0.0


def test_random_states_of_all_gpus_are_kept_and_put_back(monkeypatch):
    put_back = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.tensor([7]), torch.tensor([8])])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", put_back.extend)
    states = resume.random_states()
    resume.restore_random_states(states)
    assert [int(state) for state in put_back] == [7, 8]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # another machine: its states stay
    resume.restore_random_states(states)
    assert len(put_back) == 2


def test_a_process_takes_the_gpu_of_its_rank(monkeypatch):
    calls = {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: calls.update(device=index))
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(distributed, "init_group", lambda backend, minutes: calls.update(backend=backend))
    monkeypatch.setattr(distributed.dist, "new_group", lambda **_: None)
    monkeypatch.setattr(distributed, "_patient", None)
    assert distributed.join(World(1, 1, 2), CUDA, 16) == torch.device("cuda", 1)
    assert calls == {"device": 1, "backend": "cuda:nccl,cpu:gloo"}
    with pytest.raises(distributed.UserError, match="process 2 has no GPU: 2 are visible"):
        distributed.join(World(2, 2, 4), CUDA, 16)
