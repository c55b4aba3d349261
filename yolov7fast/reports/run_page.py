"""The page of a training run as one HTML file, from its folder and its state (`page.json`).

The state holds plain values: command, warnings, results of the last validation, progress. The page can be rendered at
any time, during the run or after it. Images are embedded as data URLs within a size limit.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.data.image_io import decode_file
from yolov7fast.reports.charts import Chart, Line
from yolov7fast.reports.comparison import LABELS
from yolov7fast.reports.html_page import box_values, data_url, render
from yolov7fast.reports.run_results import Run, read_run
from yolov7fast.reports.run_statistics import best, duration, last

LIMIT = 1_500_000  # bytes of a page
IMAGE_BUDGETS = (900_000, 450_000, 150_000, 0)  # bytes: the next smaller one if the page gets too large
THUMBNAIL_SIDE, MOSAIC_SIDE = 320, 768  # pixels
MOSAICS = 3
MAX_TABLE_CLASSES = 24  # number of classes up to which the confusion matrix is a table
MAX_CONFUSIONS = 40
MAX_NAMED_BOXES = 12  # in an image; with more boxes no names are drawn
STALLED_SECONDS = 600  # without a new page, after which a run is shown as possibly dead
REFRESH_SECONDS = 20  # between loads of the page of a run that is training


def thumbnails(paths: Sequence[str], bytes_in_all: int, side: int = THUMBNAIL_SIDE) -> dict[str, str]:
    """Data URL by path; files that cannot be read are left out, and the last ones if the limit is reached."""
    found, used = {}, 0
    for path in dict.fromkeys(paths):
        url = thumbnail(path, os.stat(path).st_mtime_ns, side) if os.path.isfile(path) else ""
        used += len(url)
        if used > bytes_in_all:
            break
        if url:
            found[path] = url
    return found


@lru_cache(maxsize=64)  # cached, because a page is rendered many times with the same images
def thumbnail(path: str, modified: int, side: int) -> str:
    """The image with a longer side of at most `side` pixels as a data URL; empty if it cannot be decoded. modified:
    time of the file, so that a changed file is read again.
    """
    image = decode_file(path)
    if image is None:
        return ""
    scale = min(side / max(image.shape[:2]), 1.0)
    width, height = (max(round(n * scale), 1) for n in image.shape[1::-1])
    return data_url(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA))


def run_page(folder: Path, state: Mapping[str, Any]) -> str:
    """The page; the image budget is reduced until the page is within its limit."""
    values = page_values(folder, state)
    page = ""
    for budget in IMAGE_BUDGETS:
        page = render("run.html", **values, **_images(folder, state.get("validation") or {}, budget))
        if len(page.encode()) <= LIMIT:
            break
    return page


def page_values(folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the template without images."""
    found = state.get("validation") or {}
    curves = found.get("curves") or {}
    lines = [Line(f"{name[:40]}, AP {ap50:.3f}", curves["x"], values) for name, ap50, values in curves.get("lines", [])]
    pr_curves = Chart("Precision over recall, IoU 0.5", "recall", lines, low=0.0, high=1.0, ends=False)
    try:
        run = read_run(folder)
    except UserError:
        run = None  # no epoch is complete
    return {
        "title": f"{folder.name}: training",
        "name": folder.name,
        "state": state,
        "progress": progress_values(state.get("progress") or {}, run),
        "cards": _cards(run, state),
        "facts": state.get("facts") or {},
        "settings": state.get("settings") or {},
        "hyp": run.hyp if run else {},
        "charts": _charts(run) if run else [],
        "found": found,
        "curves": pr_curves,
        "matrix": _matrix(found),
        "times": _times(run, state) if run else {},
        "warnings": state.get("warnings") or [],
        "commands": state.get("commands") or [],
        "next": state.get("next") or [],
    }


# --- the head of the page ---------------------------------------------------------------------------------------------


def progress_values(progress: Mapping[str, Any], run: Run | None) -> dict[str, Any]:
    """The progress of the run: text, fraction, and the mean losses of the current epoch."""
    epoch, epochs = progress.get("epoch", 0), progress.get("epochs", 1)
    batch, batches = progress.get("batch", 0), progress.get("batches", 1) or 1
    total = epochs * batches
    if progress.get("max_iter"):
        total = min(total, progress["max_iter"])
    done = min(epoch * batches + batch, total)
    left = (total - done) / batches * _epoch_seconds(progress, run)
    return {
        **progress,
        "status": progress.get("status", ""),
        "running": progress.get("status") == "running",
        "text": f"epoch {min(epoch, epochs - 1)}/{epochs - 1}" + (f", batch {batch} of {batches}" if batch else ""),
        "left": duration(left / 3600) if math.isfinite(left) else "",
        "left_seconds": left,
        "fraction": done / total if total else 0.0,
        "refresh": REFRESH_SECONDS,
        "stalled": STALLED_SECONDS,
        "updated": progress.get("updated", 0),
        "updated_text": time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(progress.get("updated", 0))),
        "losses": progress.get("losses") or {},
    }


def _epoch_seconds(progress: Mapping[str, Any], run: Run | None) -> float:
    """Seconds of an epoch with its validation: of the last finished ones, or estimated during the first one."""
    if run is not None and run.seconds is not None and run.time_source == "results.csv":
        return float(np.median(run.seconds[-5:]))
    batch, batches = progress.get("batch", 0), progress.get("batches", 0)
    return progress.get("epoch_seconds", 0.0) / batch * batches if batch else math.nan


def _cards(run: Run | None, state: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value, note) of each tile."""
    if run is None:
        return []
    cards = []
    top = best(run, "map")
    if math.isfinite(top.value):
        cards.append(("best mAP@.5:.95", f"{top.value:.3f}", f"epoch {top.epoch}"))
        for name in ("map50", "precision", "recall"):
            cards.append((LABELS[name], f"{last(run.metrics[name]):.3f}", "last validation"))
    if run.seconds is not None:
        rate = state.get("rate")
        cost = f"${rate * run.total_hours:.2f} at ${rate:g} an hour" if rate is not None else ""
        cards.append(("time", duration(run.total_hours), f"{cost or f'{len(run.epoch)} epochs'}; start-up not counted"))
    if (speed := images_per_second(run, state)) is not None:
        cards.append(("images/s", f"{speed:.1f}" if speed < 100 else f"{speed:.0f}", "training, waiting included"))
    if memory := state.get("memory_gb"):
        cards.append(("memory", f"{memory:.1f} GB", state.get("memory_of", "")))
    if copied := state.get("mirror"):
        cards.append(("last copy", copied[0], copied[1]))
    return cards


def images_per_second(run: Run, state: Mapping[str, Any]) -> float | None:
    iterations, seconds = run.figures.get("iterations"), run.figures.get("train_seconds")
    images = state.get("images_per_epoch")
    if iterations is None or seconds is None or not images or not np.nansum(seconds) > 0:
        return None
    batches = state.get("batches_per_epoch") or float(np.nanmax(iterations)) or 1.0
    return float(images / batches * np.nansum(iterations) / np.nansum(seconds))


# --- curves -----------------------------------------------------------------------------------------------------------


def _charts(run: Run) -> list[tuple[str, list[Chart]]]:
    """(heading, charts) of the losses, the metrics and the learning rates."""
    epoch = run.epoch.tolist()
    losses = []
    for part, values in sorted(run.losses.items(), key=lambda entry: entry[0] != "total"):
        lines = [Line("training", epoch, values.tolist())]
        if part in run.val_losses:
            lines.append(Line("validation", epoch, run.val_losses[part].tolist()))
        losses.append(Chart("Total loss" if part == "total" else f"Loss: {part}", "epoch", lines))
    names = ("map", "map50", "precision", "recall")
    lines = [Line(LABELS[name], epoch, run.metrics[name].tolist()) for name in names]
    average = Chart("Average precision", "epoch", [lines[0], lines[1]], low=0.0)
    two = Chart("Precision and recall", "epoch", [lines[2], lines[3]], low=0.0)
    names = [name for name in ("lr0", "lr1", "lr2") if name in run.figures and np.nanmax(run.figures[name]) > 0]
    rates = Chart("Learning rates", "epoch", [Line(n, epoch, run.figures[n].tolist()) for n in names], low=0.0)
    groups = [("Metrics", [average, two]), ("Losses and learning rates", [*losses, rates])]
    return [(heading, shown) for heading, charts in groups if (shown := [c for c in charts if c])]


# --- confusion matrix -------------------------------------------------------------------------------------------------


def _matrix(found: Mapping[str, Any]) -> dict[str, Any]:
    """Fractions of each true class; a table if it is small, else an image and the most frequent confusions."""
    names, cells = found.get("names") or [], found.get("matrix") or []
    nothing: dict[str, Any] = {"rows": [], "true": [], "image": "", "wrong": [], "side": 0}
    if not cells:
        return nothing
    nc = len(names)
    counts = np.zeros((nc + 1, nc + 1))
    for row, column, value in cells:
        counts[row, column] = value
    fractions = counts / np.maximum(counts.sum(0, keepdims=True), 1)
    predicted, true = [*names, "missed"], [*names, "background"]
    if nc <= MAX_TABLE_CLASSES:
        rows = [
            (predicted[r], [(true[c], int(counts[r, c]), float(fractions[r, c])) for c in range(nc + 1)])
            for r in range(nc + 1)
        ]
        return nothing | {"true": true, "rows": rows}
    wrong = [(predicted[r], true[c], n, float(fractions[r, c])) for r, c, n in cells if r != c][:MAX_CONFUSIONS]
    light, dark = np.array([255, 255, 255]), np.array([120, 60, 0])  # BGR; an image of one pixel a cell
    pixels = light + fractions[..., None].clip(0, 1) ** 0.5 * (dark - light)
    return nothing | {"image": data_url(pixels.astype(np.uint8), "png"), "wrong": wrong, "side": nc + 1}


# --- images -----------------------------------------------------------------------------------------------------------


def _images(folder: Path, found: Mapping[str, Any], budget: int) -> dict[str, Any]:
    """First batches, first validation images and the worst ones, within `budget` bytes."""
    images = {kind: found.get(kind) or [] for kind in ("worst", "first")}
    batches = [str(folder / f"train_batch{i}.jpg") for i in range(MOSAICS)]
    mosaics = thumbnails(batches, budget // 3, MOSAIC_SIDE)
    small = thumbnails([image["path"] for listed in images.values() for image in listed], budget - budget // 3)
    shown: dict[str, Any] = {"mosaics": [(os.path.basename(path), url) for path, url in mosaics.items()]}
    for kind, listed in images.items():
        known = [image for image in listed if image["path"] in small]
        names = found.get("names") or []
        shown[kind] = [_tile(image, names, f"{kind}{i}", small[image["path"]]) for i, image in enumerate(known)]
    return shown


def _tile(image: Mapping[str, Any], names: Sequence[str], key: str, url: str) -> dict[str, Any]:
    """An image with its labels and its detections, for the macro `pair`."""
    scale = THUMBNAIL_SIDE / max(image["size"])
    width, height = (side * scale for side in image["size"])
    counted = [f"{image[kind]} {kind}" for kind in ("missed", "false", "wrong") if image[kind]]
    sides = []
    for side in ("labels", "detections"):
        boxes = image[side]
        is_named = len(boxes) <= MAX_NAMED_BOXES
        sides.append((side, [_box(box, names, width, height, is_named, side == "detections") for box in boxes]))
    return {
        "key": key,
        "src": url,
        "width": round(width, 1),
        "height": round(height, 1),
        "label": os.path.basename(image["path"]),
        "count": ", ".join(counted).replace("wrong", "of the wrong class") or "no missed or false detections",
        "sides": sides,
    }


def _box(box: Sequence[float], names: Sequence[str], width: float, height: float, is_named: bool, scored: bool) -> dict:
    cls, left, top, right, bottom, odd, score = box
    cls = int(cls)
    name = names[cls] if cls < len(names) else f"class {cls}"
    name = f"{name[:40]} {score:.2f}" if scored else name[:40]
    corners = (left * width, top * height, right * width, bottom * height)
    fault = "" if not odd else ", wrong" if scored else ", missed"
    return box_values(corners, height, cls, name=name + fault, odd=bool(odd), shown=name[:24] if is_named else "")


# --- time -------------------------------------------------------------------------------------------------------------


def _times(run: Run, state: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of the whole run by activity, and milliseconds of an iteration by stage."""
    train, val = run.figures.get("train_seconds"), run.figures.get("val_seconds")
    if train is None or val is None:
        return {}
    waited = float(np.nansum(train * np.nan_to_num(run.figures.get("data_wait_share", np.zeros(len(train))))))
    parts = {
        "training": float(np.nansum(train)) - waited,
        "waiting for data": waited,
        "validation": float(np.nansum(val)),
    }
    whole = float(run.seconds.sum()) if run.seconds is not None else sum(parts.values())
    parts["rest (checkpoints, plots)"] = max(whole - sum(parts.values()), 0.0)
    total = sum(parts.values()) or 1.0
    stages = state.get("stages") or {}
    longest = max(stages.values(), default=0.0) or 1.0
    return {
        "parts": [(name, duration(seconds / 3600), seconds / total) for name, seconds in parts.items()],
        "stages": [(name, value, value / longest) for name, value in stages.items()],
        "bottleneck": state.get("bottleneck", ""),
    }
