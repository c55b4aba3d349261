"""How fast is a step? Images a second, stages by the device's own clock, and how busy the device is."""

from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from yolov7fast.diagnostics.results import FIGURE, LEFT_OUT, Line, judged
from yolov7fast.diagnostics.setting import Setting
from yolov7fast.diagnostics.steps import Trained, trained, yolo_family, yolo_options
from yolov7fast.profiling.measure import measure
from yolov7fast.training.run import init_seeds

CFG, SIZE, CLASSES, TARGETS = "cfg/training/yolov7-tiny.yaml", 320, 80, 17
# milliseconds of an iteration of upstream on a rented RTX 5090, recorded by a user; not measured by this project
RECORDED_MS = {"plain": 170.9, "ota": 1174.1}
NAMES = {"plain": "plain", "ota": "OTA"}
MOST_OTA = 1.25  # times an iteration with the plain loss
TRACED = 5  # steps whose kernels are counted


def speed_options(setting: Setting) -> Namespace:
    counts = {"iters": setting.speed_iterations, "warm_iters": 5 if setting.on_gpu else 1}
    return yolo_options(CFG, SIZE, setting.speed_batch, setting.folder, targets=TARGETS, **counts)


def check_speed(setting: Setting) -> list[Line]:
    opt = speed_options(setting)
    init_seeds(1, deterministic=False)  # convolutions are tuned, as in training
    made = trained(yolo_family(opt, setting.device, CLASSES))
    profiles = measure(made.family, made.step, ("plain", "ota"), opt, setting.device)  # pyright: ignore[reportArgumentType]
    lines = [speed_line(kind, profile, setting) for kind, profile in profiles.items()]
    lines += [stages_line(kind, profile) for kind, profile in profiles.items()]
    lines.append(ratio_line(profiles))
    return [*lines, *(busy_line(made, loss, setting) for loss in ("plain", "OTA"))]


def speed_line(kind: str, profile: Mapping[str, Any], setting: Setting) -> Line:
    """With upstream's recorded figure beside it, where the batch is the same."""
    setup = f"tiny, {SIZE} pixels, batch {setting.speed_batch}"
    text = f"{profile['images_per_s']:.0f} images/s, {profile['total_ms']:.1f} ms an iteration ({setup})"
    figures = {name: profile[name] for name in ("images_per_s", "total_ms", "iterations")}
    if setting.on_gpu:
        recorded = RECORDED_MS[kind]
        figures |= {"recorded_rtx_5090_ms": recorded, "recorded_over_measured": recorded / profile["total_ms"]}
        text += (
            f"; recorded, not measured here: upstream on an RTX 5090 {recorded:.0f} ms, "
            f"{recorded / profile['total_ms']:.2f} times this"
        )
    return Line(f"speed, {NAMES[kind]} loss", FIGURE, text, figures=figures)


def loss_fraction(profile: Mapping[str, Any]) -> float:
    return sum(profile["stages"].get(name, {"fraction": 0.0})["fraction"] for name in ("loss", "assignment"))


def stages_line(kind: str, profile: Mapping[str, Any]) -> Line:
    stages = ", ".join(f"{name} {row['mean_ms']:.1f}" for name, row in profile["stages"].items())
    text = f"ms: {stages}; {loss_fraction(profile):.1%} of the step in the loss"
    figures = {"stages_ms": {name: row["mean_ms"] for name, row in profile["stages"].items()}}
    return Line(
        f"stages, {NAMES[kind]} loss", FIGURE, text, figures=figures | {"loss_fraction": loss_fraction(profile)}
    )


def ratio_line(profiles: Mapping[str, Mapping[str, Any]]) -> Line:
    ratio = profiles["ota"]["total_ms"] / profiles["plain"]["total_ms"]
    text = f"an iteration with OTA takes {ratio:.3f} times one with the plain loss (at most {MOST_OTA:g})"
    remedy = "run it again on an idle machine; if it stays, report this line with the stages above"
    return judged("OTA at the price of plain", ratio <= MOST_OTA, text, remedy, ratio=ratio)


# --- how busy the device is -------------------------------------------------------------------------------------------


def busy_fraction(spans: Iterable[tuple[float, float]]) -> float:
    """Fraction of the time from the first span's begin to the last one's end in which at least one is open."""
    ordered = sorted(spans)
    if not ordered:
        return 0.0
    busy, reached = 0.0, ordered[0][0]
    for begin, end in ordered:
        busy += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return busy / max(reached - ordered[0][0], 1e-9)


def kernel_spans(events: Iterable[Any]) -> list[tuple[float, float]]:
    """Begin and end, in microseconds, of what the device itself did."""
    on_device = (event for event in events if event.device_type.name != "CPU")
    return [(event.time_range.start, event.time_range.end) for event in on_device]


def busy_line(made: Trained, loss: str, setting: Setting) -> Line:
    name = f"GPU busy, {loss} loss"
    if not setting.on_gpu:
        return Line(name, LEFT_OUT, "no GPU")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for number in range(TRACED):
            made.run(number, loss)
        torch.cuda.synchronize()
    fraction = busy_fraction(kernel_spans(profiler.events() or ()))
    text = f"{fraction:.0%} of {TRACED} steps a kernel was running (while the profiler slows the host down)"
    return Line(name, FIGURE, text, figures={"busy_fraction": fraction})
