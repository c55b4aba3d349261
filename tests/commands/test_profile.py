"""The profiler: stages, ratio, files and a last line of advice; checked on one random batch."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from yolov7fast.commands import profile as profiler
from yolov7fast.core.errors import UserError
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.profiling.op_counter import OpCounter

SMALL = ["--synthetic", "--img", "64", "--batch-size", "2", "--targets", "3", "--iters", "2", "--warm-iters", "1"]
CPU = [*SMALL, "--device", "cpu"]


def test_it_measures_both_losses_and_says_what_bounds_the_run(tmp_path, capsys):
    trace = tmp_path / "traces" / "step.json"
    arguments = [*CPU, "--compare-loss", "--output", str(tmp_path / "out"), "--trace", str(trace)]
    assert profiler.main(arguments) == 0
    text = capsys.readouterr().out
    profile = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert set(profile["by_loss"]) == {"plain", "ota"}
    for kind in profile["by_loss"].values():
        assert set(kind["stages"]) == set(profiler.STAGES)
        assert sum(stage["share"] for stage in kind["stages"].values()) == pytest.approx(1.0)
        assert kind["total_ms"] > 0 and kind["images_per_s"] > 0 and 0 < kind["gpu_busy"] < 1
        assert kind["total_ms"] <= kind["wall_ms"] * 1.001  # the counting step lies outside both
        assert kind["operators"] > 1000
        assert kind["host_reads"] == 1  # a CPU may look at its loss at once; a GPU's step has none (test_step.py)
    assert "times one with the plain loss; loss + assignment alone" in text
    assert text.strip().splitlines()[-1].startswith("This run is bound by")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["profile.json", "profile.png"]
    assert (tmp_path / "out" / "profile.png").stat().st_size > 5000
    assert sorted(p.name for p in trace.parent.iterdir()) == ["step_ota.json", "step_plain.json"]
    assert all(json.loads(path.read_text())["traceEvents"] for path in trace.parent.iterdir())


def test_the_ratio_of_the_losses_takes_loss_and_assignment_together():
    def profile(total, loss, assignment):
        stages = {"forward": total - loss - assignment, "loss": loss, "assignment": assignment}
        return {"total_ms": total, "stages": {name: {"mean_ms": value} for name, value in stages.items()}}

    text = profiler.comparison(plain=profile(100.0, 8.0, 2.0), ota=profile(105.0, 9.0, 6.0))
    assert "1.050 times one with the plain loss" in text
    assert "loss + assignment alone 1.500 times (15.00 against 10.00 ms)" in text


def test_the_losses_are_as_they_were_after_the_measurement():
    class Loss:
        def plan(self):
            return "planned"

        match = plan

    marks = []
    family = SimpleNamespace(plain_loss=Loss(), ota_loss=Loss())
    with profiler.split_loss(family, SimpleNamespace(mark=marks.append)):
        assert family.ota_loss.match() == "planned"
    assert marks == ["loss", "assignment"]
    assert family.ota_loss.plan() == "planned" and len(marks) == 2
    assert not vars(family.plain_loss) and not vars(family.ota_loss)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--synthetic", "--iters", "0"], "--iters is 0; it must be at least 1"),
        (["--synthetic", "--warm-iters", "-1"], "--warm-iters is -1; it must be at least 0"),
        (["--img", "64"], "--data .* or --synthetic"),
        (["--synthetic", "--output", "FILE"], "--output: folder .* cannot be made"),
        (["--synthetic", "--output", "FILE/below"], "--output: folder .* cannot be made"),
        (["--synthetic", "--trace", "FILE/trace.json"], "--trace: folder .* cannot be made"),
        (["--synthetic", "--trace", "."], "--trace . is a folder"),
    ],
)
def test_mistakes_are_told_before_anything_is_built(options, message, tmp_path, monkeypatch):
    monkeypatch.setattr(profiler, "load_data_yaml", lambda *_: pytest.fail("a data set was asked for"))
    monkeypatch.setattr(profiler, "build_model", lambda *_: pytest.fail("a network was built"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=message):
        profiler.main([option.replace("FILE", str(tmp_path / "file")) for option in options])


def test_a_network_without_a_plain_loss_cannot_be_compared(tmp_path, monkeypatch):
    network = SimpleNamespace(model=[IAuxDetect.__new__(IAuxDetect)])
    monkeypatch.setattr(profiler, "build_model", lambda *_: network)
    with pytest.raises(UserError, match=r"--compare-loss: w6\.yaml has auxiliary heads"):
        profiler.main([*CPU, "--cfg", "w6.yaml", "--compare-loss", "--output", str(tmp_path)])


def test_advice_follows_the_largest_avoidable_share():
    def profile(**share):
        return {"stages": {name: {"share": value} for name, value in share.items()}}

    assert "--cache-images disk" in profiler.advice(profile(data=0.5, forward=0.4, loss=0.1))
    assert "the loss" in profiler.advice(profile(data=0.1, forward=0.4, loss=0.2, assignment=0.3))
    assert "USE_COMPILE" in profiler.advice(profile(data=0.1, forward=0.8, loss=0.1))


# --- what counts as a host read: fake tensors stand in for a GPU's ----------------------------------------------------


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
