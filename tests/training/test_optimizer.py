"""The optimizer on other machines: fused or not, whatever the file says that a run is resumed from."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from yolov7fast.core.errors import UserError
from yolov7fast.training.optimizer import build_optimizer, load_optimizer

HYP = {"lr0": 0.1, "momentum": 0.9}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))


def with_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def built(fused: bool | None = None, adam: bool = False):
    model = network()
    return model, build_optimizer(model, HYP, adam=adam, weight_decay=0.01, fused=fused)


def test_a_fused_first_step_that_overflows_leaves_no_momentum(monkeypatch):
    """Memory that torch does not fill is made visible: whatever it leaves uninitialised here is not a number."""
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(float("nan")))
    (model, skipping), (expected, plain) = built(fused=True), built()
    with_gradients(model, 1)
    skipping.found_inf = torch.ones(())
    skipping.grad_scale = None
    skipping.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), network().parameters()))
    skipping.found_inf = torch.zeros(())
    for seed in (2, 3):
        for trained, optimizer in ((model, skipping), (expected, plain)):
            with_gradients(trained, seed)
            optimizer.step()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_only_a_fused_optimizer_begins_with_buffers():
    assert not built()[1].state
    assert not built(fused=True, adam=True)[1].state
    assert len(built(fused=True)[1].state) == 6


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("said", [None, False, "nothing"])
def test_a_loaded_state_does_not_decide_how_a_step_is_computed(adam, said):
    model, saving = built(adam=adam)
    with_gradients(model, 1)
    saving.step()
    state = deepcopy(saving.state_dict())
    for group in state["param_groups"]:
        for name in ("fused", "foreach", "capturable", "differentiable"):
            group.pop(name, None) if said == "nothing" else group.update({name: said})
    copied, fused = built(fused=True, adam=adam)
    copied.load_state_dict(model.state_dict())
    load_optimizer(fused, state)
    assert [group["fused"] for group in fused.param_groups] == [True] * 3
    assert fused._step_supports_amp_scaling
    for trained, optimizer in ((model, saving), (copied, fused)):
        with_gradients(trained, 2)
        optimizer.step()
    for one, other in zip(model.parameters(), copied.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_state_without_momentum_is_filled_up_and_a_foreign_one_is_refused():
    _, saving = built()
    state = deepcopy(saving.state_dict())
    for group in state["param_groups"]:
        del group["momentum"], group["nesterov"]
    model, fused = built(fused=True)
    load_optimizer(fused, state)
    assert all(torch.equal(values["momentum_buffer"], torch.zeros_like(p)) for p, values in fused.state.items())
    with_gradients(model, 1)
    fused.step()
    with pytest.raises(UserError, match="optimizer does not fit this network"):
        load_optimizer(fused, {**state, "param_groups": state["param_groups"][:1]})
