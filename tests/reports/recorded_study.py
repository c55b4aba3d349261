"""The recorded OTA study as run folders, and how its reports are read.

Recorded by the user on a rented RTX 5090 with upstream's code: yolov7-tiny, COCO at 320, batch 64, 100 epochs.
"""

import json
from typing import Any

import numpy as np
import yaml

from yolov7fast.reports.html_page import ComparisonReport, ReportTable

RECORDED: dict[str, dict[str, Any]] = {
    "plain": {
        "map50": {10: 0.216, 25: 0.310, 50: 0.365, 75: 0.377, 99: 0.385},  # by epoch
        "final": (0.568, 0.355, 0.385, 0.226),  # precision, recall, mAP@.5, mAP@.5:.95
        "losses": ((0.0963, 0.0602), (0.0460, 0.0398), (0.0830, 0.0295), (0.2254, 0.1295)),  # box, obj, cls, total
        "hours": 1.81, "minutes_an_epoch": 1.09, "dollars": 2.72,
        "stages": (50.2, 11.2, 103.6), "total_ms": 170.9, "busy": 0.900,  # forward, loss, backward of an iteration
    },
    "ota": {
        "map50": {10: 0.247, 25: 0.304, 50: 0.360, 75: 0.395, 99: 0.414},
        "final": (0.558, 0.400, 0.414, 0.251),
        "losses": ((0.0609, 0.0357), (0.0251, 0.0232), (0.0766, 0.0192), (0.1626, 0.0781)),
        "hours": 10.65, "minutes_an_epoch": 6.39, "dollars": 15.98,
        "stages": (50.2, 1016.0, 103.4), "total_ms": 1174.1, "busy": 0.131,
    },
}  # fmt: skip
CSV_HEADER = (
    "epoch,train/box,train/obj,train/cls,train/total,labels,img_size,metrics/precision,metrics/recall,"
    "metrics/mAP_0.5,metrics/mAP_0.5:0.95,val/box,val/obj,val/cls,lr0,lr1,lr2,seconds,train_seconds,val_seconds,"
    "iterations,data_wait_share,memory_gb"
)
# as run folders: the values of epoch 0 are made up, the study has none
STUDY = {
    name: {**RECORDED[kind], "map50": ([0, *RECORDED[kind]["map50"]], [start, *RECORDED[kind]["map50"].values()])}
    | {"loss_ota": loss_ota}
    for name, kind, start, loss_ota in (("noota", "plain", 0.02, 0), ("ota", "ota", 0.03, 1))
}


def write_run(folder, study, epochs: int = 100, csv: bool = True):
    """A run folder whose curves go through the recorded values."""
    (folder / "weights").mkdir(parents=True)
    epoch = np.arange(epochs)
    map50 = np.interp(epoch, *study["map50"])
    growth = map50 / study["final"][2]
    fade = np.linspace(1, 0, 100)[:epochs]
    losses = [a * fade + b * (1 - fade) for a, b in study["losses"]]
    text, table = [], [CSV_HEADER]
    seconds = study["hours"] * 36
    for e in epoch:
        values = [loss[e] for loss in losses] + [512, 320] + [final * growth[e] for final in study["final"]]
        values += [0.06, 0.04, 0.02]
        text.append(("%10s%10s" + "%10.4g" * 13) % (f"{e}/99", "3.2G", *values))
        further = [0.01, 0.01, 0.01, seconds, seconds * 0.95, seconds * 0.05, 1849, 0.02, 3.2]
        table.append(",".join(f"{v:.6g}" for v in [e, *values, *further]))
    (folder / "results.txt").write_text("\n".join(text) + "\n")
    if csv:
        (folder / "results.csv").write_text("\n".join(table) + "\n")
    options = {"epochs": 100, "batch_size": 64, "cfg": "yolov7-tiny.yaml", "name": folder.name, "save_dir": str(folder)}
    (folder / "opt.yaml").write_text(yaml.safe_dump(options))
    (folder / "hyp.yaml").write_text(yaml.safe_dump({"lr0": 0.01, "loss_ota": study["loss_ota"]}))
    (folder / "weights" / "best.pt").write_bytes(bytes(12_600_000 // 1000))
    stages = dict(zip(("forward", "loss", "backward"), study["stages"]))
    profile = {
        "stages": {k: {"mean_ms": v, "std_ms": 1.0, "fraction": v / study["total_ms"]} for k, v in stages.items()},
        "total_ms": study["total_ms"], "images_per_s": 64000 / study["total_ms"], "gpu_busy": study["busy"],
    }  # fmt: skip
    (folder / "profile.json").write_text(json.dumps(profile))
    return folder


def rows_of(report: ComparisonReport, title: str) -> dict[str, list[str]]:
    """Label -> cells of every table of a section; the winner carries a star."""
    section = next(s for s in report.sections if s.title == title)
    tables = [block for block in section.blocks if isinstance(block, ReportTable)]
    return {row[0]: [mark(cell) for cell in row[1:]] for table in tables for row in table.rows}


def mark(cell) -> str:
    return cell if isinstance(cell, str) else cell.text + "*" * cell.best
