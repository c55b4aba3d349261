"""What the DETR commands promise: labels are checked, flags do what they say, the mask is used, processes agree."""

import copy
import logging
import shutil
from types import SimpleNamespace

import pytest
import torch
import yaml

import yolov7fast.losses.detr_loss
from tests.training.commands import torchrun
from tests.training.families.detr_commands import NETWORKS, needs_transformers, run_file
from yolov7fast.checkpoint.checkpoint_reader import save_checkpoint
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.losses.detr_loss import PARTS, SetLoss, attach_loss
from yolov7fast.nn.detr_model import ARCHITECTURES, DetrNetwork, build
from yolov7fast.training.config import DetrTrainConfig
from yolov7fast.training.detr_family import DetrFamily, DropSchedule
from yolov7fast.training.distributed import World
from yolov7fast.training.family import plan_sizes
from yolov7fast.training.step import TrainStep
from yolov7fast.training.train import one_device

pytestmark = needs_transformers
NAMES = ["ball", "box", "cone", "star"]


def start(*arguments: str) -> int:
    return run(parser_for("train", "detr").parse_args(arguments), "detr")


@pytest.fixture(params=ARCHITECTURES)
def detector(request) -> DetrNetwork:
    torch.manual_seed(0)
    return build(request.param, NAMES, copy.deepcopy(NETWORKS[request.param]) | {"dropout": 0.0})


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("architecture", "split", "number"), [("detr", "train", 4), ("rtdetr_v2", "val", 9)])
def test_a_class_beyond_the_last_is_refused_with_its_file_and_line(
    tmp_path, shapes_small, monkeypatch, architecture, split, number
):
    """Class 4 of 0..3 would be learnt as DETR's 'nothing here'; a larger one is an index out of range. Both are refused
    before the first step, for validation too."""
    monkeypatch.setattr(TrainStep, "__call__", lambda *_: pytest.fail("a step was made"))
    data = tmp_path / "shapes"
    shutil.copytree(shapes_small, data, ignore=shutil.ignore_patterns("*.cache"))
    splits = {name: str(data / "images" / name) for name in ("train", "val")}
    (data / "shapes.yaml").write_text(yaml.safe_dump({**splits, "nc": 4, "names": NAMES}))
    label = sorted((data / "labels" / split).glob("*.txt"))[2]
    label.write_text(f"0 0.5 0.5 0.2 0.2\n{number} 0.3 0.3 0.1 0.1\n")
    with pytest.raises(UserError, match=rf"{label.name}:2: class {number}, but .* has nc: 4"):
        start("--config", run_file(tmp_path, data, architecture))


# --- flags ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps(tmp_path_factory, shapes_small) -> tuple[list, int]:
    """What the network and the loss see in the training steps of a run with many flags, and its exit code."""
    seen, folder = [], tmp_path_factory.mktemp("steps")
    with pytest.MonkeyPatch.context() as patch:
        forward, compute = DetrNetwork.forward, SetLoss.__call__

        def watched(self, images, mask, labels=None):
            if self.training:
                seen.append({"batch": tuple(images.shape), "side": max(int(mask.sum(axis).max()) for axis in (1, 2))})
            return forward(self, images, mask, labels)

        def compared(self, logits, *args, **kwargs):
            found = compute(self, logits, *args, **kwargs)
            if len(seen) and "dtype" not in seen[-1]:
                seen[-1] |= {"dtype": logits.dtype, "loss": found[0].item()}
            return found

        def stepped(self, closure=None):
            every = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            seen[-1]["norm"] = float(torch.stack([g.norm() for g in every]).norm())
            return optimizer_step(self, closure)

        optimizer_step = torch.optim.AdamW.step
        patch.setattr(torch.optim.AdamW, "step", stepped)
        patch.setattr(DetrNetwork, "forward", watched)
        patch.setattr(SetLoss, "__call__", compared)
        flags = ["--subset-size", "8", "--resize-schedule", "1:64:4,2:96:2", "--max-iter", "5", "--amp", "bf16"]
        plain = ["--scale-min", "1", "--crop", "0", "--clip-norm", "0.05"]
        code = start("--config", run_file(folder, shapes_small), *flags, *plain)
    return seen, code


def test_a_subset_and_a_number_of_steps_are_kept(steps):
    """8 of 16 images are 2 batches of 4 in the first epoch; the second, with batches of 2, ends after the fifth."""
    seen, code = steps
    assert code == 0
    assert [step["batch"][0] for step in seen] == [4, 4, 2, 2, 2]


def test_a_resize_schedule_changes_the_size_in_the_midst_of_a_run(steps):
    assert [step["side"] for step in steps[0]] == [64, 64, 96, 96, 96]


def test_gradients_are_clipped_to_the_norm(steps):
    assert all(step["norm"] == pytest.approx(0.05, rel=1e-3) for step in steps[0])  # without, they are above 1


def test_half_precision_trains_on_a_cpu(steps):
    seen, _ = steps
    assert {step["dtype"] for step in seen} == {torch.bfloat16}
    assert all(step["loss"] > 0 and step["loss"] < float("inf") for step in seen)


def test_weights_of_a_checkpoint_are_taken_as_far_as_they_fit(detector, tmp_path):
    path = tmp_path / "a.pth"
    save_checkpoint({**detector.description(), "model": detector.state_dict(), "ema": detector.state_dict()}, path)
    kept = {"architecture": detector.architecture, "network": NETWORKS[detector.architecture], "pretrained": ""}
    torch.manual_seed(99)
    config = DetrTrainConfig(**kept, weights=str(path))
    data = SimpleNamespace(nc=2, names=["one", "two"])
    other = DetrFamily.build_network(config, data, None).state_dict()
    own = detector.state_dict()
    fitting = [name for name in own if own[name].shape == other[name].shape]
    assert not [name for name in fitting if not torch.equal(own[name], other[name])]
    unfit = [name for name in own if name not in fitting]
    assert unfit and all("class" in name or "score" in name or "denoising" in name for name in unfit)


# --- rates and GPUs ---------------------------------------------------------------------------------------------------


def unbuilt(config: DetrTrainConfig, world: World) -> DetrFamily:
    """A family of which nothing is built."""
    family = object.__new__(DetrFamily)
    family.config, family.world, family.grid, family.dataset = config, world, 32, range(16)
    return family


def test_a_cosine_ends_with_the_last_step_of_all_stages():
    """16 images: 2 epochs of 4 steps, then 2 of 8. With stage 0's 4 steps an epoch rates would end in the midst."""
    config = DetrTrainConfig(epochs=4, batch_size=4, resize_schedule="1:64:4,3:96:2", img_size=64)
    family = unbuilt(config, World())
    family.stages, _ = plan_sizes(config, 32, 1)
    batches = DetrFamily.mean_batches(family)
    assert batches * config.epochs == 2 * 4 + 2 * 8
    schedule = DropSchedule((1.0,), batches=batches, epochs=config.epochs, kind="cosine", final=0.1)
    assert schedule.rates(12, 2).lrs == pytest.approx((0.55,))  # half of the steps, half of the way
    assert schedule.rates(24, 4).lrs == pytest.approx((0.1,))


@pytest.mark.parametrize(("count", "rank", "mentioned"), [(4, -1, True), (1, -1, False), (4, 0, False)])
def test_idle_gpus_are_mentioned(monkeypatch, caplog, count, rank, mentioned):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr("yolov7fast.training.train.select_device", lambda _: torch.device("cuda", 0))
    with caplog.at_level(logging.INFO):
        one_device(DetrTrainConfig(), World(rank, rank, count if rank == 0 else 1), "python tools/train_detr.py")
    assert ("torchrun --nproc_per_node 4 tools/train_detr.py" in caplog.text) == mentioned


def test_several_gpus_need_a_process_each(monkeypatch):
    monkeypatch.setattr("yolov7fast.training.train.select_device", lambda _: torch.device("cuda", 0))
    config = DetrTrainConfig(device="0,1")
    line = r"\.venv/bin/torchrun --nproc_per_node 2 train\.py --device 0,1 \.\.\."
    with pytest.raises(UserError, match=line):
        one_device(config, World(), "python train.py")
    assert one_device(config, World(0, 0, 2), "python train.py").type == "cuda"


# --- the mask ---------------------------------------------------------------------------------------------------------


def padded_image() -> tuple[torch.Tensor, torch.Tensor]:
    """An image of 64 x 64 in a batch of 64 x 128, and its mask."""
    torch.manual_seed(5)
    mask = torch.zeros(1, 64, 128, dtype=torch.long)
    mask[:, :, :64] = 1
    return torch.rand(1, 3, 64, 128), mask


def test_what_lies_in_the_padding_is_never_seen(detector):
    images, mask = padded_image()
    other = torch.where(mask[:, None] == 1, images, torch.rand_like(images) * 50)
    with torch.no_grad():
        first, second = detector.eval()(images, mask), detector(other, mask)
    assert torch.equal(first.logits, second.logits) and torch.equal(first.pred_boxes, second.pred_boxes)


def test_detr_attends_to_the_image_alone():
    """The same input with a mask that calls its padding image gives another answer: attention uses it."""
    torch.manual_seed(0)
    detector = build("detr", NAMES, copy.deepcopy(NETWORKS["detr"])).eval()
    images, mask = padded_image()
    blank = torch.where(mask[:, None] == 1, images, detector.mean.expand_as(images))  # 0 once it is normalised
    with torch.no_grad():
        assert not torch.allclose(detector(blank, mask).logits, detector(blank, torch.ones_like(mask)).logits)


# --- several processes ------------------------------------------------------------------------------------------------


def labels_of(*counts: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(7)
    return [{"class_labels": torch.arange(n) % 4, "boxes": torch.rand(n, 4) * 0.3 + 0.2} for n in counts]


def test_boxes_are_counted_over_all_processes(detector, monkeypatch):
    """2 boxes here and 6 at the other process: both divide by 4. DETR's class loss has no such divisor."""
    loss, labels = attach_loss(detector), labels_of(2, 0)
    images, mask = torch.rand(2, 3, 64, 64), torch.ones(2, 64, 64, dtype=torch.long)
    layer = next(p for n, p in detector.named_parameters() if "bbox_embed" in n or "bbox_predictor" in n)

    def measured():
        torch.manual_seed(1)  # RT-DETR's denoising draws
        detector.zero_grad()
        output = detector.eval()(images, mask, labels)  # no batch statistics are moved
        output.loss.backward()
        return output.loss.item(), {k: v.item() for k, v in output.loss_dict.items()}, layer.grad.clone()

    _, alone, gradient = measured()
    monkeypatch.setattr(yolov7fast.losses.detr_loss.dist, "all_reduce", lambda count: count.add_(6))
    monkeypatch.setattr(yolov7fast.losses.detr_loss.dist, "get_world_size", lambda: 2)
    loss.shared = True
    total, shared, other_gradient = measured()
    factor = {name: 0.5 for name in PARTS} | ({"cls": 1.0} if detector.kind.has_background else {})
    assert shared == pytest.approx({name: alone[name] * factor[name] for name in PARTS}, rel=1e-4)
    assert total == pytest.approx(sum(shared.values()), rel=1e-4)
    torch.testing.assert_close(other_gradient, gradient / 2, rtol=1e-3, atol=1e-7)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_processes_train_the_same_network(tmp_path, shapes_small):
    config = run_file(tmp_path, shapes_small, "rtdetr_v2", max_epochs=1)
    done = torchrun("--config", config, script="tests/training/families/fatal_detr.py", AGREE="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "weights agree: True over 2 processes" in done.stdout
    assert done.stdout.count("threads of the group at the end: 0") == 2
    run = tmp_path / "runs" / "run"
    assert len((run / "results.txt").read_text().splitlines()) == 1 and (run / "last.pth").is_file()
