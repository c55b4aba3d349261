"""`--compile`: the network in training runs compiled; validation, copies and files see it as it is."""

import copy
import pickle
from importlib import import_module

import pytest
import torch


@pytest.fixture
def compiled(monkeypatch):
    """What `torch.compile` was asked for, with a compiler that only remembers."""
    asked = []

    def remember(call):
        asked.append(call)
        return lambda *args: ("compiled", call(*args))

    monkeypatch.setattr(torch, "compile", remember)
    return asked


IMAGE = torch.zeros(1, 3, 64, 64)


def test_only_training_runs_compiled(known_repo, inside, compiled):
    inside(known_repo, compile=True)
    network = import_module("models.yolo").Model(nc=3)
    assert network(IMAGE)[0] == network(IMAGE)[0] == "compiled"
    assert len(compiled) == 1
    assert torch.is_tensor(network.eval()(IMAGE)[0])
    assert type(pickle.loads(pickle.dumps(network))) is type(network)
    copied = copy.deepcopy(network).train()
    assert copied(IMAGE)[0] == "compiled" and len(compiled) == 2  # another network, compiled separately


def test_a_compiler_that_fails_is_done_without(known_repo, inside, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda call: fail)
    inside(known_repo, compile=True)
    network = import_module("models.yolo").Model(nc=3)
    assert all(torch.is_tensor(m) for m in network(IMAGE))
    assert "no compiler here" in caplog.text
