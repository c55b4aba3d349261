"""The training step: it asks the device for nothing, keeps running means, and survives a loss that is no number."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.op_counter import OpCounter
from yolov7fast.losses.loss_builder import build_loss
from yolov7fast.nn.model import Model
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training import step as step_module
from yolov7fast.training.optimizer import ModelEMA, Rates, build_optimizer
from yolov7fast.training.step import Amp, TrainStep, average_gradients, choose_amp

RATES = Rates((0.01, 0.01, 0.01), 0.9, 1)


class NetworkRecipe:
    """A network with one of the losses, without any data pipeline."""

    loss_names = ("box", "obj", "cls", "total")

    def __init__(self, loss):
        self.loss = loss

    def to_device(self, batch, device):
        return batch[0].to(device, non_blocking=True).float() / 255, batch[1]

    def forward_loss(self, net, batch, mark):
        outputs = net(batch[0])
        mark("forward")
        return self.loss(outputs, batch[1], batch[0])


def on_the_host(make):
    """torch.tensor, refusing other devices: it waits until its copy is there, which the dispatcher may not see."""

    def made(*args, device=None, **kwargs):
        assert device is None or torch.device(device).type == "cpu", f"Python numbers sent to {device}, with a wait"
        return make(*args, **kwargs)

    return made


@pytest.mark.parametrize(
    ("cfg", "assigner", "size"),
    [
        ("yolov7-tiny", "plain", 64),
        ("yolov7-tiny", "ota", 64),
        ("yolov7-w6", "ota", 128),
        ("yolov7-w6", "tal", 128),
        ("yolov7-tiny", "tal", 64),
        ("yolov7-tiny-1b4h", "tal", 64),
        ("yolov7-tiny-1b4h", "plain", 64),
        ("yolov7-tiny-1b4h-attn", "ota", 64),
    ],
)
def test_the_whole_step_runs_on_a_device_without_data(cfg, assigner, size, monkeypatch):
    """On `meta` any read of device data raises: forward, loss, backward, optimizer, EMA and the means never read.

    Nor is the device ever sent anything that the host would wait for.
    """
    model = Model(f"cfg/training/{cfg}.yaml", nc=3)
    hyp = hyper.load_hyp("data/hyp.scratch.p5.yaml")
    model.hyp = hyper.scale_gains(hyp, levels=model.model[-1].nl, classes=3, img_size=size, smoothing=0.0)
    model.gr = 1.0
    criterion = build_loss(model, assigner)  # built as training does, where the anchors can be read
    model = model.to("meta")
    optimizer = build_optimizer(model, hyp, adam=False, weight_decay=0.0005)
    device = torch.device("meta")
    step = TrainStep(NetworkRecipe(criterion), model, model, optimizer, ModelEMA(model), device, keep_buffers=True)
    images = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    targets = torch.tensor([[0, 1, 0.5, 0.5, 0.3, 0.3], [1, 2, 0.2, 0.7, 0.1, 0.4]])
    step((images, targets), 0, RATES)  # what is sent once, such as weights of heads, is there from now on
    for name in ("tensor", "as_tensor"):
        monkeypatch.setattr(torch, name, on_the_host(getattr(torch, name)))
    with OpCounter() as counter:
        step((images, targets), 1, RATES)
    assert counter.host_reads == counter.host_sends == 0
    assert step.means.device.type == "meta" and step.means.shape == (4,)
    with pytest.raises(NotImplementedError):
        step.sync_metrics()  # reading is the one thing that cannot work there


class Scalar(nn.Module):
    """One weight; the loss of a batch is weight * batch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0]))
        self.norm = nn.BatchNorm1d(1)


class ScalarRecipe:
    loss_names = ("total",)

    def to_device(self, batch, device):
        return torch.tensor(batch)

    def forward_loss(self, net, batch, mark):
        net.norm.running_mean += batch
        loss = net.weight * batch
        return loss, loss.detach()


def scalar_step(**options) -> TrainStep:
    model = Scalar().train()
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    return TrainStep(ScalarRecipe(), model, model, optimizer, ModelEMA(model), torch.device("cpu"), **options)


def test_running_means_are_those_of_the_epoch():
    step = scalar_step()
    for number, value in enumerate([1.0, 3.0]):
        step(value, number, Rates((0.0,) * 3, 0.0, 1))
    assert step.sync_metrics().means == [2.0]
    step.begin_epoch()
    assert step.sync_metrics().means == [0.0]


def test_gradients_are_summed_until_the_batch_number_says_step():
    step = scalar_step()
    rates = Rates((1.0,) * 3, 0.0, 3)
    step(1.0, 1, rates)
    step(1.0, 2, rates)
    assert step.model.weight.item() == 1.0
    step(1.0, 3, rates)
    assert step.model.weight.item() == pytest.approx(-2.0)


@pytest.mark.parametrize(
    ("values", "has_wrapper", "unsynced", "averaged"),
    [
        ([1.0, 1.0, 1.0, 1.0], True, 2, 0),  # the wrapper averages in the backward pass before an update
        ([1.0, 1.0, 1.0, float("nan")], True, 2, 1),  # that pass was skipped
        ([1.0, 1.0, 1.0, 1.0], False, 0, 2),
    ],
)
def test_gradients_are_averaged_once_for_an_update(values, has_wrapper, unsynced, averaged, monkeypatch):
    seen = Counter()

    @contextmanager
    def no_sync():
        seen["unsynced"] += 1
        yield

    monkeypatch.setattr(step_module, "average_gradients", lambda parameters: seen.update(averaged=1))
    step = scalar_step(world_size=2, no_sync=no_sync if has_wrapper else None)
    updates = [step(value, number, Rates((0.1,) * 3, 0.0, 2)) for number, value in enumerate(values, 1)]
    assert updates == [False, True, False, True]
    assert (seen["unsynced"], seen["averaged"]) == (unsynced, averaged)


def test_averaged_gradients_keep_their_layout(monkeypatch):
    parameters = [
        nn.Parameter(torch.rand(4, 2, 3, 3).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.rand(5)),
    ]
    (parameters[0].square().sum() + parameters[1].square().sum()).backward()
    monkeypatch.setattr(dist, "all_reduce", lambda flat: flat.mul_(3))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    buffers = [parameter.grad for parameter in parameters]
    average_gradients([*parameters, nn.Parameter(torch.ones(1))])
    for parameter, buffer in zip(parameters, buffers):
        assert parameter.grad is buffer and buffer.stride() == parameter.stride()
        torch.testing.assert_close(buffer, 3 * parameter.detach())


def test_a_bad_batch_is_counted_and_leaves_no_trace():
    step = scalar_step(keep_buffers=True)
    step(float("nan"), 4, RATES)
    reading = step.sync_metrics()
    assert (reading.nonfinite, reading.first_nonfinite) == (1, 4)
    assert step.model.weight.item() == 1.0
    assert step.model.norm.running_mean.item() == 0.0
    step(float("inf"), 9, RATES)
    assert (step.sync_metrics().nonfinite, step.sync_metrics().first_nonfinite) == (2, 4)
    step(1.0, 10, RATES)
    assert step.sync_metrics().means == [1.0]


def test_a_bad_first_batch_is_skipped_under_the_gradient_scaler_too():
    """The scaler has seen no gradient then, and refuses to step an optimizer."""
    step = scalar_step(amp=Amp(True, torch.float16))
    for number, value in enumerate([float("nan"), 1.0, float("inf")]):
        step(value, number, Rates((0.5,) * 3, 0.0, 1))
    assert step.scaler.is_enabled() and step.sync_metrics().nonfinite == 2
    assert step.model.weight.item() == pytest.approx(0.5)


def test_a_device_keeps_bad_batches_out_of_the_means_by_itself():
    """As on a device, which is not asked: what was found stays there, and the host learns it when it reads."""
    step = scalar_step(keep_buffers=True)
    step.device = torch.device("meta")  # anything but a CPU
    still = Rates((0.0,) * 3, 0.0, 100)  # no update but at number 0
    for number, value in enumerate([1.0, float("nan"), 3.0, float("inf")]):
        step(value, number, still)
    reading = step.sync_metrics()
    assert isinstance(step.count, torch.Tensor)
    assert (reading.means, int(step.count), reading.nonfinite, reading.first_nonfinite) == ([2.0], 2, 2, 1)


def test_weights_are_asked_for_being_finite():
    step = scalar_step()
    assert step.weights_finite()
    with torch.no_grad():
        step.model.norm.bias.fill_(float("inf"))
    assert not step.weights_finite()


def test_amp_auto_is_off_on_a_cpu_and_half_on_a_gpu():
    assert choose_amp("auto", torch.device("cpu")) == Amp(False)
    assert choose_amp("auto", torch.device("cuda")) == Amp(True, torch.float16)
    assert choose_amp("bf16", torch.device("cpu")) == Amp(True, torch.bfloat16)
    assert choose_amp("fp16", torch.device("cuda")).scaled
    assert not choose_amp("bf16", torch.device("cuda")).scaled
