"""Hyper-parameters: one table of keys with their limits; read once, validated, and never changed in place."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.files.settings_files import read_yaml
from yolov7fast.core.text import nearest, printable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Key:
    """Limits, the value a missing key gets (None: the file must have it), and evolution's gain and range."""

    low: float
    high: float
    default: float | None = None
    gain: float | None = None
    evolve_low: float = 0.0
    evolve_high: float = 1.0


INF = math.inf
KEYS: dict[str, Key] = {
    "lr0": Key(0, 10, None, 1, 1e-5, 0.1),
    "lrf": Key(0, 10, None, 1, 0.01, 1.0),
    "momentum": Key(0, 1, None, 0.3, 0.6, 0.98),
    "weight_decay": Key(0, 1, None, 1, 0, 0.001),
    "warmup_epochs": Key(0, 10_000, None, 1, 0, 5),
    "warmup_momentum": Key(0, 1, None, 1, 0, 0.95),
    "warmup_bias_lr": Key(0, 10, None, 1, 0, 0.2),
    "box": Key(0, INF, None, 1, 0.02, 0.2),
    "cls": Key(0, INF, None, 1, 0.2, 4.0),
    "cls_pw": Key(0, INF, None, 1, 0.5, 2.0),
    "obj": Key(0, INF, None, 1, 0.2, 4.0),
    "obj_pw": Key(0, INF, None, 1, 0.5, 2.0),
    "iou_t": Key(0, 1, 0.2, 0, 0.1, 0.7),
    "anchor_t": Key(1, INF, None, 1, 2.0, 8.0),
    "fl_gamma": Key(0, INF, 0.0, 0, 0.0, 2.0),
    "hsv_h": Key(0, 1, None, 1, 0, 0.1),
    "hsv_s": Key(0, 1, None, 1, 0, 0.9),
    "hsv_v": Key(0, 1, None, 1, 0, 0.9),
    "degrees": Key(0, 360, None, 1, 0, 45.0),
    "translate": Key(0, 1, None, 1, 0, 0.9),
    "scale": Key(0, 1, None, 1, 0, 0.9),
    "shear": Key(0, 90, None, 1, 0, 10.0),
    "perspective": Key(0, 0.01, None, 0, 0, 0.001),
    "flipud": Key(0, 1, None, 1, 0, 1),
    "fliplr": Key(0, 1, None, 0, 0, 1),
    "mosaic": Key(0, 1, None, 1, 0, 1),
    "mixup": Key(0, 1, None, 1, 0, 1),
    "copy_paste": Key(0, 1, 0.0, 1, 0, 1),
    "paste_in": Key(0, 1, 0.0, 1, 0, 1),
    "loss_ota": Key(0, 1, 1),
    # beyond upstream's files; absent: upstream's behaviour
    "anchors": Key(1, 20, 0, 2, 2, 10),
    "loss_ota_from": Key(0, INF, 0),
    "warmup_min_iters": Key(0, INF, 1000),
    "nominal_batch": Key(1, INF, 64),
    "per_head_loss": Key(0, 1, 0),
}
# an assigner of losses.assigners, such as plain or ota; absent: the one that loss_ota selects
ASSIGNER = "assigner"
# [start, name] of one assigner after another, such as [[0, plain], [0.5, ota]]; absent: one for the whole run
ASSIGNER_SCHEDULE = "assigner_schedule"
MOST_STAGES = 100  # of a schedule
# never written into a user's file
OPTIONAL_ABSENT = ("anchors", "loss_ota_from", "warmup_min_iters", "nominal_batch", "per_head_loss")


def load_hyp(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Read and check a hyper-parameter file (or a mapping, optionally with `base: file`)."""
    if isinstance(source, Mapping):
        values, where = dict(source), "the hyp mapping of the run file"
        base = values.pop("base", None)
        return check_hyp((load_hyp(base) if base else {}) | values, where)
    path = Path(check_file(str(source), "hyp"))
    values = read_yaml(path, "hyp file")
    if not isinstance(values, dict):
        raise UserError(f"hyp file {path} must hold a mapping of hyper-parameters, such as 'lr0: 0.01'")
    return check_hyp(values, f"hyp file {path}")


def check_hyp(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A checked copy; missing keys with a default are filled in, other missing keys are errors."""
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name == ASSIGNER:
            checked[name] = check_assigner(value, where)
            continue
        if name == ASSIGNER_SCHEDULE:
            checked[name] = _check_schedule(value, where)
            continue
        if name not in KEYS:
            raise UserError(f"{where}: unknown hyper-parameter '{printable(name, 60)}'{nearest(name, KEYS)}")
        checked[name] = _check_value(name, value, where)
    for name, key in KEYS.items():
        if name not in checked and key.default is None:
            raise UserError(f"{where} has no key '{name}'; see data/hyp.scratch.p5.yaml for a complete file")
        if name not in checked and name not in OPTIONAL_ABSENT:
            checked[name] = key.default
    if checked["loss_ota"] not in (0, 1):
        raise UserError(f"{where}: loss_ota must be 0 (plain) or 1 (OTA), not {checked['loss_ota']}")
    for other in (ASSIGNER, "loss_ota_from"):
        if ASSIGNER_SCHEDULE in checked and other in checked:
            raise UserError(f"{where}: {ASSIGNER_SCHEDULE} and {other} both select the assigner: remove one")
    return checked


def check_assigner(value: Any, where: str) -> str:
    from yolov7fast.losses.assigners import find_assigner  # loads torch, which takes seconds

    try:
        find_assigner(value)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return value


def _check_schedule(value: Any, where: str) -> list[list]:
    """[start, name] rows: the first start is 0, one below 1 is a fraction of the epochs."""
    example = f"{ASSIGNER_SCHEDULE} must be [start, assigner] rows that begin at 0, such as [[0, plain], [0.5, ota]]"
    if not isinstance(value, list) or not 0 < len(value) <= MOST_STAGES:
        raise UserError(f"{where}: {example}, not {shown(value)}")
    rows = []
    for row in value:
        if (
            not isinstance(row, list)
            or len(row) != 2
            or isinstance(row[0], bool)
            or not isinstance(row[0], int | float)
        ):
            raise UserError(f"{where}: {example}, not {shown(row)}")
        start, name = row
        if not 0 <= start < 1e9 or (start > 1 and start != int(start)) or (start > 0) != bool(rows):
            raise UserError(f"{where}: {example}; {shown(start)} is not a valid start (a fraction, or a whole epoch)")
        rows.append([start, check_assigner(name, where)])
    return rows


def with_assigner(hyp: Mapping[str, Any], loss_ota: int | None, assigner: str) -> dict[str, Any]:
    """A set with --loss-ota and --assigner applied: a flag overrides the file, including its schedule."""
    values = dict(hyp)
    if loss_ota is not None:
        values["loss_ota"] = loss_ota
    if assigner:
        values[ASSIGNER] = check_assigner(assigner, "--assigner")
        values.pop("loss_ota_from", None)
    elif loss_ota is not None:
        values.pop(ASSIGNER, None)
    if loss_ota is not None or assigner:
        values.pop(ASSIGNER_SCHEDULE, None)
    return values


def effective_hyp(hyp: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """The values of a hyp file with the changes of the flags; the file itself is stored as it was read."""
    values = with_assigner(hyp, config.loss_ota, config.assigner)
    if config.auto_lr:
        values = auto_lr(values, config.batch_size)
        log.info("--auto-lr: lr0 %g, warmup_epochs %g", values["lr0"], values["warmup_epochs"])
    return values


def _check_value(name: str, value: Any, where: str) -> float:
    if isinstance(value, str):  # YAML 1.1 reads '1e-3' as text
        try:
            value = float(value)
        except ValueError:
            raise UserError(f"{where}: {name} must be a number, not {shown(value)}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where}: {name} must be a number, not {shown(value)}")
    key = KEYS[name]
    if not key.low <= value <= key.high or not math.isfinite(value):
        raise UserError(f"{where}: {name} is {shown(value)}, outside {key.low:g} to {key.high:g}")
    return value


def get(hyp: Mapping[str, float], name: str) -> float:
    """The value of an optional key, or upstream's behaviour."""
    default = KEYS[name].default
    assert default is not None, f"{name} is not optional"
    return hyp.get(name, default)


def scale_gains(hyp: Mapping[str, float], *, levels: int, classes: int, img_size: int, smoothing: float) -> dict:
    """A new mapping with the loss gains scaled to the network, as model, loss and checkpoint carry it."""
    return {
        **hyp,
        "box": hyp["box"] * 3.0 / levels,
        "cls": hyp["cls"] * classes / 80.0 * 3.0 / levels,
        "obj": hyp["obj"] * (img_size / 640) ** 2 * 3.0 / levels,
        "label_smoothing": smoothing,
    }


def auto_lr(hyp: Mapping[str, float], total_batch: int) -> dict:
    """The square-root rule for large batches: lr0 grows with sqrt(batch/64), warm-up is at least 5 epochs from 128."""
    if total_batch <= 64:
        return dict(hyp)
    warmup = max(hyp["warmup_epochs"], 5) if total_batch >= 128 else hyp["warmup_epochs"]
    return {**hyp, "lr0": hyp["lr0"] * math.sqrt(total_batch / 64), "warmup_epochs": warmup}
