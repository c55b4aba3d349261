"""Which operators make the host wait, and a simulated device that computes as the CPU does."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.host_sync_finder import Wait, WaitFinder
from tests.simulated_device import SIMULATED, SimulatedTensor, simulated_device

FREE = {
    "arithmetic": lambda far, host, locked: far * 2 + far.sum(),
    "a scalar of the host": lambda far, host, locked: far * torch.tensor(2.0),
    "a copy of locked memory": lambda far, host, locked: locked.to(far.device, non_blocking=True),
    "a copy back without waiting": lambda far, host, locked: far.to("cpu", non_blocking=True),
    "a copy back into locked memory": lambda far, host, locked: locked.copy_(far, non_blocking=True),
    "host work": lambda far, host, locked: (host.nonzero(), host[host > 0], host.sum().item(), host[[0, 1]]),
    "an index of the device": lambda far, host, locked: far[(far > 0).long()],
    "a gather": lambda far, host, locked: far.gather(0, torch.zeros_like(far).long()),
    "a change of type": lambda far, host, locked: far.half().float(),
}
WAITING = {
    "item": (lambda far, host, locked: far.sum().item(), "reads a value"),
    "int": (lambda far, host, locked: int(far.sum()), "reads a value"),
    "bool": (lambda far, host, locked: bool(far.any()), "reads a value"),
    "nonzero": (lambda far, host, locked: far.nonzero(), "reads a value"),
    "a mask": (lambda far, host, locked: far[far > 0], "mask"),
    "assignment by mask": (lambda far, host, locked: far.__setitem__(far > 0, 1.0), "mask"),
    "an index of the host": (lambda far, host, locked: far[host.long()], "index from the host"),
    "a list as index": (lambda far, host, locked: far[[0, 1]], "index from the host"),
    "assignment by an index of the host": (
        lambda f, host, locked: f.__setitem__(host.long(), f * 2),
        "index from the host",
    ),
    "a copy": (lambda far, host, locked: host.to(far.device), "to the device and waits"),
    "a copy that waits for locked memory": (lambda far, host, locked: locked.to(far.device), "to the device and waits"),
    "a copy of pageable memory": (lambda far, host, locked: host.to(far.device, non_blocking=True), "pageable"),
    "a copy with gaps": (lambda far, host, locked: locked[::2].to(far.device, non_blocking=True), "gaps"),
    "a copy back": (lambda far, host, locked: far.cpu(), "to the host and waits"),
    "a copy into pageable memory": (lambda far, host, locked: host.copy_(far, non_blocking=True), "into pageable"),
    "tolist": (lambda far, host, locked: far.tolist(), "to the host and waits"),
    "numbers": (lambda far, host, locked: torch.tensor([1.0], device=far.device), "to the device and waits"),
}


def found_by(work) -> list[Wait]:
    with simulated_device() as pages:
        far, host, locked = torch.ones(4).to(SIMULATED), torch.ones(4), torch.ones(4).pin_memory()
        with WaitFinder(pages.holds) as finder:
            work(far, host, locked)
    return list(finder.found)


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait(name):
    assert found_by(FREE[name]) == []


@pytest.mark.parametrize("name", WAITING)
def test_what_waits(name):
    work, says = WAITING[name]
    (wait,) = found_by(work)
    assert says in str(wait) and wait.place.file == "tests/machine/test_host_sync_finder.py"
    assert wait.place.line == work.__code__.co_firstlineno


def test_tensors_of_a_gpu_are_judged_alike():
    """Fake tensors stand in for those of a GPU, whose type the simulated device does not have."""
    with FakeTensorMode():
        device, host = torch.empty(4, device="cuda"), torch.empty(4)
        with WaitFinder(lambda tensor: False) as finder:
            host.to(device.device, non_blocking=True)
            device.to("cpu")
            device * 2
    assert [wait.why.split(":")[0] for wait in finder.found] == [
        "copies pageable memory",
        "copies to the host and waits",
    ]


def test_the_simulated_device_computes_forward_and_backward_as_the_cpu_does():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.SiLU())
    images = torch.randn(2, 3, 8, 8)
    layers(images).square().mean().backward()
    expected = [p.grad.clone() for p in layers.parameters()]
    mean = layers[1].running_mean.clone()
    layers[1].reset_running_stats()
    layers.zero_grad()
    with simulated_device():
        far = layers.to(SIMULATED)
        out = far(images.to(SIMULATED))
        assert isinstance(out, SimulatedTensor) and out.device == SIMULATED
        out.square().mean().backward()
        found = [p.grad.cpu() for p in far.parameters()]
        assert torch.equal(far[1].running_mean.cpu(), mean)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_nothing_of_the_simulated_device_stays():
    before = torch.Tensor.pin_memory, torch.autocast, torch.accelerator.is_available()
    with simulated_device():
        assert torch.accelerator.is_available()
    assert (torch.Tensor.pin_memory, torch.autocast, torch.accelerator.is_available()) == before
    assert not isinstance(torch.ones(1, device="meta"), SimulatedTensor)
