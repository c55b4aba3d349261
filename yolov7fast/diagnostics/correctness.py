"""Does the device compute what it should? Losses as recorded, steps and precisions against a reference, suppression."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from yolov7fast.core.text import counted
from yolov7fast.diagnostics.recorded_losses import CHOSEN_BY_DEVICE, Case, names
from yolov7fast.diagnostics.results import LEFT_OUT, Line, judged
from yolov7fast.diagnostics.setting import Setting
from yolov7fast.diagnostics.stand_in import STAND_IN, stand_in_device
from yolov7fast.diagnostics.steps import KINDS, Trained, narrow_cfg, trained, yolo_family, yolo_options
from yolov7fast.evaluation.nms import greedy_nms, nms_operator
from yolov7fast.families.yolo.optimization import build_optimizer
from yolov7fast.training.optimizer import Rates

REPORT = "report this line with the JSON file: results of this device cannot be trusted"
LOSS_TOLERANCE = 1e-4  # relative, of recorded cases
# by precision: largest relative error of a step's loss, and of the change of the detection layer's weights. Deeper
# layers are judged in single precision alone (2e-5 on a CPU): in a fresh network rounding grows on the way back.
STEP_TOLERANCE = {"fp32": (1e-4, 1e-3), "fp16": (2e-2, 0.3), "bf16": (5e-2, 0.8)}
AMP_STEPS, AMP_BAND = 20, 0.15  # steps; mean relative distance of the losses from those of fp32
RATES = Rates((0.01, 0.01, 0.01), 0.9, 1)


# --- recorded losses --------------------------------------------------------------------------------------------------


def check_recorded_losses(setting: Setting) -> Line:
    """Items and gradients of every recorded case. A case that is decided by the kind of device (see
    `CHOSEN_BY_DEVICE`) is compared, on other devices than a CPU, with the same choice computed on the CPU."""
    cases, wrong, worst = names("plain", "ota", "aux"), [], 0.0
    for name in cases:
        expected = Case(name).recorded_outcome()
        if name in CHOSEN_BY_DEVICE and setting.device.type != "cpu":
            with stand_in_device():
                expected = Case(name, device=STAND_IN).outcome()
        error = distance(Case(name, device=setting.device).outcome(), expected)
        worst = max(worst, error)
        if not error <= LOSS_TOLERANCE:
            wrong.append(f"{name}: {error:.1e}")
    text = f"{len(cases) - len(wrong)} of {len(cases)} cases within {LOSS_TOLERANCE:g}; largest error {worst:.1e}"
    return judged("recorded losses and gradients", not wrong, text, REPORT, tuple(wrong), error=worst)


def distance(found: tuple[np.ndarray, list[np.ndarray]], expected: tuple[np.ndarray, list[np.ndarray]]) -> float:
    """The largest relative error: of the items each, of the gradients against the largest of their map."""
    pairs = [(found[0], expected[0], np.abs(expected[0]))]
    pairs += [(a, b, np.abs(b).max(initial=0.0)) for a, b in zip(found[1], expected[1], strict=True)]
    errors = [np.max(np.abs(a - b) / np.maximum(scale, 1e-12), initial=0.0) for a, b, scale in pairs]
    return float("inf") if any(np.isnan(errors)) else float(max(errors))


# --- steps ------------------------------------------------------------------------------------------------------------


@contextmanager
def full_precision() -> Iterator[None]:
    """Single precision as it is written: no TF32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def small_step(setting: Setting, device: torch.device, amp: str, **options: Any) -> Trained:
    """A narrow yolov7-tiny; equal weights and images wherever it is built."""
    size, batch = setting.trained_images
    opt = yolo_options(narrow_cfg(KINDS[0].config, 0.25, setting.folder), size, batch, setting.folder)
    return trained(yolo_family(opt, device), amp, **options)._replace(rates=RATES)


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().double().cpu().flatten() for p in module.parameters()])


def one_step(made: Trained, loss: str) -> tuple[float, torch.Tensor]:
    """The loss of a step, and what it does to the weights, those of the detection layer last. Gradients are scaled by
    little, so that none overflows."""
    made.step.scaler = torch.amp.GradScaler(
        made.step.device.type, init_scale=128.0, enabled=made.step.scaler.is_enabled()
    )
    before = weights(made.family.model)
    made.run(0, loss)
    return made.step.sync_metrics().means[-1], weights(made.family.model) - before


def exact_step(setting: Setting, loss: str) -> tuple[float, torch.Tensor, int]:
    """The same on the CPU in double precision, and how many weights the detection layer has."""
    made = small_step(setting, torch.device("cpu"), "off")
    made.family.model.double().register_forward_pre_hook(lambda module, images: (images[0].double(),))
    made.step.ema = None  # it is single
    head = weights(made.family.model.model[-1])  # pyright: ignore[reportIndexIssue, reportArgumentType, reportAttributeAccessIssue]
    return *one_step(made, loss), len(head)


def check_step_against_cpu(setting: Setting) -> list[Line]:
    """One step of each loss in each precision against the CPU in double precision."""
    exact, lines = {loss: exact_step(setting, loss) for loss in KINDS[0].losses}, []
    for precision, (most_loss, most_change) in STEP_TOLERANCE.items():
        errors, whole = [], precision == "fp32"
        for loss, (value, change, head) in exact.items():
            with full_precision():
                found, moved = one_step(small_step(setting, setting.device, "off" if whole else precision), loss)
            part = slice(None) if whole else slice(-head, None)
            errors.append((abs(found / value - 1), float((moved - change)[part].norm() / change[part].norm())))
        of_loss, of_change = (max(column) for column in zip(*errors))
        what = "all weights" if whole else "the detection layer"
        text = (
            f"loss off by {of_loss:.1e} (at most {most_loss:g}), change of {what} by {of_change:.1e} ({most_change:g})"
        )
        ok = of_loss <= most_loss and of_change <= most_change
        name = f"one step in {precision} against the CPU in fp64"
        lines.append(judged(name, ok, text, REPORT, loss_error=of_loss, change_error=of_change))
    return lines


def losses_of(setting: Setting, amp: str) -> list[float]:
    """Of the first steps of a training with OTA."""
    made, found = small_step(setting, setting.device, amp), []
    for number in range(AMP_STEPS):
        made.step.begin_epoch()
        made.run(number, "OTA")
        found.append(made.step.sync_metrics().means[-1])
    return found


def check_amp(setting: Setting) -> list[Line]:
    """Trainings in half precisions against one in single precision: finite, and near it."""
    single = np.array(losses_of(setting, "off"))
    lines = []
    for amp in ("fp16", "bf16"):
        found = np.array(losses_of(setting, amp))
        bad = np.flatnonzero(~np.isfinite(found) | (found == 0))  # a batch that was skipped leaves a mean of 0
        band = float(np.mean(np.abs(found / single - 1))) if not len(bad) else float("nan")
        text = f"{AMP_STEPS} steps, loss {single[0]:.3f} -> {single[-1]:.3f}, here -> {found[-1]:.3f}; "
        if len(bad):
            text += f"{counted(len(bad), 'step')} without a finite loss, the first is step {bad[0] + 1}"
        else:
            text += f"{band:.1%} from fp32 on average (at most {AMP_BAND:.0%})"
        ok = not len(bad) and band <= AMP_BAND
        remedy = "train with --amp bf16 or --amp off on this device, and report this line" if amp == "fp16" else REPORT
        lines.append(judged(f"{amp} against fp32", ok, text, remedy, band=band, nonfinite=len(bad)))
    return lines


def check_bad_batch(setting: Setting) -> Line:
    """A loss that is not a number must leave the weights alone, in every precision, without the host being asked."""
    moved = []
    for amp in ("off", "fp16", "bf16"):
        made = small_step(setting, setting.device, amp, loss_factor=float("nan"))
        before = weights(made.family.model)
        made.run(0, "OTA")
        if not torch.equal(weights(made.family.model), before) or made.step.sync_metrics().nonfinite != 1:
            moved.append(f"--amp {amp}: the weights changed, or the batch was not counted")
    text = "weights unchanged and the batch counted in fp32, fp16 and bf16" if not moved else "it did not"
    return judged("a batch whose loss is NaN leaves the weights alone", not moved, text, REPORT, tuple(moved))


# --- optimizer --------------------------------------------------------------------------------------------------------


def check_fused_optimizer(setting: Setting) -> Line:
    """The fused optimizer unscales by itself and skips an overflow; against one on the CPU that is handed unscaled
    gradients and is not fused."""
    name, hyp = "fused optimizer with the gradient scaler", {"lr0": 0.1, "momentum": 0.9}
    models, optimizers = [], []
    for device, fused in ((setting.device, True), (torch.device("cpu"), None)):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)).to(device))
        optimizers.append(build_optimizer(models[-1], hyp, adam=False, weight_decay=0.01, fused=fused))
    scaler = torch.amp.GradScaler(setting.device.type, init_scale=1024.0)
    scaler.scale(torch.zeros((), device=setting.device))  # makes the scale, which a loss would
    for number in range(5):
        overflows = number in (0, 2)
        for index, parameters in enumerate(zip(*(model.parameters() for model in models), strict=True)):
            generator = torch.Generator().manual_seed(10 * number + index)
            gradient = torch.randn(parameters[0].shape, generator=generator)
            scaled = gradient * scaler.get_scale() * (float("inf") if overflows else 1.0)
            parameters[0].grad, parameters[1].grad = scaled.to(setting.device), gradient
        scaler.step(optimizers[0])
        scaler.update()
        if not overflows:
            optimizers[1].step()
    error = float((weights(models[0]) - weights(models[1])).norm() / weights(models[1]).norm())
    ok = error < 1e-5 and scaler.get_scale() == 256.0
    text = f"5 steps, 2 of them overflows: weights off by {error:.1e}, scale {scaler.get_scale():g} (256 expected)"
    return judged(name, ok, text, "train with --amp bf16, which needs no scaler, and report this line", error=error)


# --- suppression ------------------------------------------------------------------------------------------------------


def drawn_boxes(count: int = 3000) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes on whole pixels, whose overlaps are the same numbers on every device, and scores with ties."""
    random = np.random.RandomState(0)
    corner, size = random.randint(0, 400, (count, 2)), random.randint(4, 120, (count, 2))
    boxes = np.concatenate([corner, corner + size], 1).astype(np.float32)
    scores = (random.randint(1, 1000, count) / 1000).astype(np.float32)
    return torch.from_numpy(boxes), torch.from_numpy(scores)


def check_nms(setting: Setting, operator: Callable | None = None) -> Line:
    """torchvision's operator on this device against our own suppression on the host."""
    name = "torchvision's NMS against ours"
    operator = operator or nms_operator(setting.device.type, on_cpu=True)
    install = "install the torchvision that belongs to this torch: pip install --force-reinstall torchvision"
    if operator is None:
        text = "torchvision's operator does not work here; ours, on the host, serves"
        return judged(name, False, text, install) if setting.on_gpu else Line(name, LEFT_OUT, text)
    boxes, scores = drawn_boxes()
    different = []
    for threshold in (0.3, 0.45, 0.65):
        ours = greedy_nms(boxes.numpy(), scores.numpy(), threshold, most=len(boxes))
        theirs = operator(boxes.to(setting.device), scores.to(setting.device), threshold).cpu().numpy()
        if not np.array_equal(ours, theirs):
            different.append(f"IoU {threshold}: ours keeps {len(ours)} boxes, torchvision {len(theirs)}")
    text = f"{len(boxes)} boxes, 3 thresholds: " + ("the same boxes kept" if not different else "different boxes kept")
    return judged(name, not different, text, install, tuple(different))


CHECKS: Sequence[Callable[[Setting], Line | list[Line]]] = (
    check_recorded_losses,
    check_step_against_cpu,
    check_amp,
    check_bad_batch,
    check_fused_optimizer,
    check_nms,
)
