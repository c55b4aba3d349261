"""The operator counter: what counts as a host read or send. Fake tensors stand in for those of a GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.op_counter import OpCounter


@pytest.mark.parametrize(
    "work, reads, sends",
    [
        (lambda device, host: device.cpu(), 1, 0),
        (lambda device, host: device.to("cpu", non_blocking=True), 0, 0),
        (lambda device, host: host.to(device.device), 0, 1),
        (lambda device, host: host.to(device.device, non_blocking=True), 0, 0),
        (lambda device, host: device.half(), 0, 0),
        (lambda device, host: host.copy_(device), 1, 0),
        (lambda device, host: host.copy_(device, True), 0, 0),
        (lambda device, host: device.sum() + 1, 0, 0),
    ],
)
def test_copies_between_a_device_and_the_host_count_where_they_wait(work, reads, sends):
    with FakeTensorMode():
        device, host = torch.empty(4, device="cuda"), torch.empty(4)
        with OpCounter() as counter:
            work(device, host)
    assert (counter.host_reads, counter.host_sends) == (reads, sends)


@pytest.mark.parametrize(
    "work",
    [torch.Tensor.nonzero, lambda x: x[x > 0], lambda x: x.__setitem__(x > 0, 1), lambda x: x.sum().item()],
    ids=["nonzero", "mask", "assignment by mask", "item"],
)
def test_numbers_that_decide_a_shape_count_as_one_read(work):
    with OpCounter() as counter:
        work(torch.ones(3))
    assert counter.host_reads == 1
