"""Targets that a script sends to the device: the losses get them without asking the device for a number."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.op_counter import OpCounter
from yolov7fast.overlay.replacements import (
    ComputeLoss,
    ComputeLossAuxOTA,
    ComputeLossOTA,
    HostTargets,
    host_copy,
    known_host_copy,
)

ROWS = torch.tensor([[0, 1, 0.5, 0.5, 0.2, 0.3], [1, 0, 0.25, 0.75, 0.4, 0.1], [1, 2, 0.1, 0.2, 0.3, 0.3]])
GAINS = {"box": 0.05, "obj": 1.0, "cls": 0.5, "cls_pw": 1.0, "obj_pw": 1.0, "fl_gamma": 0.0, "anchor_t": 4.0}
ANCHORS = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326))


def kept() -> HostTargets:
    return HostTargets.of(ROWS.clone())


@pytest.mark.parametrize(
    "send",
    [
        lambda t: t.to("meta"),
        lambda t: t.to(torch.device("meta"), non_blocking=True),
        lambda t: t.detach().clone().contiguous().to("meta", torch.float16),
    ],
)
def test_sending_hands_the_host_copy_on(send):
    sent = send(kept())
    assert sent.device.type == "meta"
    assert type(host_copy(sent)) is torch.Tensor
    assert torch.equal(host_copy(sent), ROWS)


def test_it_behaves_as_the_tensor_it_is():
    targets = kept()
    assert len(targets) == 3 and targets.shape == (3, 6) and bool((targets == ROWS).all())
    for made in (
        targets[:, 1:],
        targets[targets[:, 0] == 1],
        targets * 2,
        torch.cat((targets, ROWS)),
        targets.cpu() + 1,
    ):
        assert type(made) is torch.Tensor
    assert torch.equal(targets[1], ROWS[1]) and targets.numpy().tolist() == ROWS.tolist()
    assert [row.tolist() for row in targets] == ROWS.tolist()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(host_copy(targets.to("meta")), ROWS)
        assert (targets @ torch.ones(6, 2)).dtype == torch.bfloat16


def test_writing_into_targets_makes_the_copy_void():
    targets = kept()
    targets[:, 2:] *= 64
    assert known_host_copy(targets) is None
    assert torch.equal(host_copy(targets)[:, 2:], ROWS[:, 2:] * 64)
    rows = ROWS.clone()
    on_device, on_host = kept().to("meta"), HostTargets.of(rows).to("meta")
    on_device[:, 2:] *= 64
    rows[0, 0] = 1
    assert known_host_copy(on_device) is known_host_copy(on_host) is None


def head(levels: int = 3) -> SimpleNamespace:
    stride = torch.tensor([8.0, 16.0, 32.0])[:levels]
    anchors = torch.tensor(ANCHORS[:levels]).view(levels, 3, 2) / stride.view(levels, 1, 1)
    last = SimpleNamespace(nl=levels, na=3, nc=3, anchors=anchors, stride=stride)
    return SimpleNamespace(model=[last], hyp=GAINS, gr=1.0)


def predictions(device: str, heads: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    maps = [torch.randn(2, 3, 64 // s, 64 // s, 8) for _ in range(heads) for s in (8, 16, 32)]
    return [m.to(device).requires_grad_() for m in maps]


LOSSES = [(ComputeLoss, 1, False), (ComputeLossOTA, 1, True), (ComputeLossAuxOTA, 2, True)]


@pytest.mark.parametrize("loss, heads, wants_images", LOSSES, ids=lambda x: getattr(x, "__name__", ""))
def test_no_loss_reads_back_what_was_sent_to_a_device(loss, heads, wants_images):
    """On `meta` there are no numbers: whatever asks for one raises."""
    criterion, images = loss(head()), torch.zeros(2, 3, 64, 64, device="meta")
    with OpCounter() as counter:
        targets = kept().to("meta")
        total, items = criterion(predictions("meta", heads), targets, *([images] if wants_images else []))
        total.backward()
    assert items.shape == (4,)
    assert counter.host_reads == 0
    with pytest.raises(NotImplementedError):
        criterion(predictions("meta", heads), ROWS.to("meta"), *([images] if wants_images else []))
