"""Training through CUDA graphs gives the weights of eager training. Graphs are played on the CPU: what was captured is
recorded operator by operator, undone, and run again at each replay. tests/cuda_host captures with torch's own code."""

from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.small_network import small_network
from yolov7fast.nn.cuda_graphs import CAPTURED_AFTER, GraphedNet
from yolov7fast.training.optimizer import ModelEMA, Rates
from yolov7fast.training.step import TrainStep


def tensors_in(values) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


class RecordedGraph(TorchDispatchMode):
    """In the place of torch.cuda.CUDAGraph."""

    def __init__(self):
        super().__init__()
        self.calls, self.before = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable or "batch_norm" in str(func):  # whose schema does not mention the statistics
            self.before += [(tensor, tensor.clone()) for tensor in tensors_in((args, kwargs))]
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tensors_in(result)))
        return result

    @torch.no_grad()
    def undo(self) -> None:
        """As after a capture, which executes nothing."""
        for tensor, value in reversed(self.before):
            tensor.data.copy_(value)  # autograd does not see it

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, results in self.calls:
            for old, new in zip(results, tensors_in(func(*args, **kwargs))):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextmanager
def recorded(graph: RecordedGraph, **_):
    with graph:
        yield
    graph.undo()


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", recorded)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


class SquaredOutputs:
    """A family whose loss is the mean square of all outputs."""

    loss_names = ("total",)

    def to_device(self, batch, device):
        return batch

    def forward_loss(self, net, batch, mark):
        loss = sum(output.square().mean() for output in tensors_in(net(batch)))
        return loss, loss.detach().reshape(1)


def trained(graphed: bool, sizes: list[int]) -> tuple[TrainStep, GraphedNet]:
    """Two batches for each update; one layer is frozen. sizes: of the batches' images."""
    torch.manual_seed(0)
    model = small_network(4, list("abcd")).train()
    for parameter in model.model[0].parameters():
        parameter.requires_grad_(False)
    net = GraphedNet(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    device = torch.device("cpu")
    step = TrainStep(SquaredOutputs(), model, net if graphed else model, optimizer, ModelEMA(model), device)
    for number, size in enumerate(sizes):
        step(torch.rand(2, 3, size, size), number, Rates((0.05,), 0.9, 2))
    return step, net


@pytest.mark.parametrize("sizes", [[64] * 8, [64] * 5 + [96, 64, 64], [64] * 5 + [96] * 5], ids=["one", "odd", "other"])
def test_graphs_train_as_the_eager_network(graphs, sizes):
    (eager, _), (step, net) = trained(False, sizes), trained(True, sizes)
    assert net.passes is not None and net.passes.shape[2] == sizes[-1]
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(step.model.state_dict()[name], value, rtol=1e-6, atol=1e-7, msg=name)
    assert step.sync_metrics().means == pytest.approx(eager.sync_metrics().means)
    assert len(net.gradients) == len(net.trained)


def test_a_network_that_cannot_be_captured_runs_eagerly(graphs, monkeypatch, caplog):
    @contextmanager
    def refused(graph, **_):
        raise RuntimeError("operation not permitted when stream is capturing\nlong explanation")
        yield

    monkeypatch.setattr(torch.cuda, "graph", refused)
    step, net = trained(True, [64] * 8)
    assert net.passes is None and caplog.text.count("CUDA graphs cannot be captured, continuing without them") == 1
    reference, _ = trained(False, [64] * 8)
    assert all(torch.equal(a, b) for a, b in zip(step.model.parameters(), reference.model.parameters()))


def test_varying_shapes_are_never_captured(graphs):
    _, net = trained(True, [64, 96] * (CAPTURED_AFTER + 1))
    assert net.passes is None
