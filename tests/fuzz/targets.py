"""Every kind of file that the project reads: a sound one of each kind, how it is damaged, and how it is used."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from optuna.trial import TrialState, create_trial

from tests.data.formats import drawn_sets
from tests.fuzz.data_files import (
    make_jpeg,
    make_pack,
    make_set,
    use_annotations,
    use_coco,
    use_csv,
    use_image,
    use_image_list,
    use_label_cache,
    use_labels,
    use_pack,
    use_voc,
)
from tests.fuzz.mutations import BYTES, JSON, TEXT, YAML
from tests.fuzz.run_files import (
    CHECKPOINT,
    make_run,
    use_detr,
    use_detr_run,
    use_report,
    use_results,
    use_run,
    use_weights,
)
from tests.fuzz.target import ROOT, Target, must, text
from tests.mini_network import write_mini_weights
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.drawing import class_name
from yolov7fast.data.caches.label_cache import SUFFIX
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.labels import find_images
from yolov7fast.nn.model import Model
from yolov7fast.nn.multihead import HeadConfig
from yolov7fast.reports.trial_ranking import STATUS_ORDER, rank, ranking, verdict
from yolov7fast.search.database import SettingTable
from yolov7fast.search.runner import VERSION, setting_columns, write_csv
from yolov7fast.search.trial_training import Budget, YoloTrialTraining, read_space, read_trials
from yolov7fast.training.hyperparameters import load_hyp

NETWORK = {
    "nc": 2,
    "depth_multiple": 1.0,
    "width_multiple": 1.0,
    "anchors": [[4, 5, 8, 9], [10, 11, 20, 21]],
    "backbone": [
        [-1, 1, "Conv", [8, 3, 2]],
        [-1, 2, "Conv", [8, 3, 1, "None", 1, "nn.LeakyReLU(0.1)"]],
        [-1, 1, "MP", []],
        [-1, 1, "SPPCSPC", [16]],
        [-1, 1, "nn.Upsample", ["None", 2, "nearest"]],
        [[-1, 1], 1, "Concat", [1]],
        [-1, 1, "RepConv", [16, 3, 1]],
    ],
    "head": [[[6, 3], 1, "IDetect", ["nc", "anchors"]]],
}


RUN_FILE = {
    "family": "yolo",
    "cfg": "cfg/training/yolov7-tiny.yaml",
    "data": "data/shapes.yaml",
    "hyp": {"base": "data/hyp.scratch.tiny.yaml", "mixup": 0.1},
    "training": {"epochs": 2, "batch_size": 8, "img_size": [320, 320], "resize_schedule": [[1, 224], [2, 320]]},
    "run": {"name": "mine", "project": "runs/train", "seed": 1, "workers": 2, "amp": False, "nosave": True},
}


# --- settings ---------------------------------------------------------------------------------------------------------


def use_data(folder: Path) -> None:
    data = load_data_yaml(folder / "data.yaml", fetch=False)
    must(len(data.names) == data.nc and all(isinstance(name, str) for name in data.names), "names")
    if data.train:
        find_images(data.train)
    must(all(class_name(data.names, i).isprintable() for i in range(data.nc)), "printable")


def use_hyp(folder: Path) -> None:
    must(all(isinstance(v, str) or np.isfinite(v) for v in load_hyp(folder / "hyp.yaml").values()), "finite")


def use_network(folder: Path) -> None:
    model = Model(folder / "network.yaml")
    must((model.stride > 0).all(), "strides")


def use_run_file(folder: Path) -> None:
    check_train(parser_for("train").parse_args(["--config", str(folder / "run.yaml")]))


def use_heads(folder: Path) -> None:
    heads = HeadConfig.load(folder / "heads.yaml")
    must(sorted(c for ids in heads.classes for c in ids) == list(range(heads.nc)), "classes")
    must(repr(heads).isprintable(), "printable")


@functools.cache
def trainer() -> YoloTrialTraining:
    return YoloTrialTraining("configs/tiny_smoke.yaml", Budget(epochs=2))


def use_trials(folder: Path) -> None:
    file = next(folder.glob("trials.*"))
    must(read_trials(file, trainer()), "trials")


def use_space(folder: Path) -> None:
    must(read_space(folder / "space.yaml", trainer()), "ranges")


def use_ledger(folder: Path) -> None:
    """trials.json, and beside the plan in it the runs that a study would hold."""
    from yolov7fast.search import runner
    from yolov7fast.search import trial_options as options

    plan = runner.read_plan(folder)
    records = plan["runs"] if isinstance(plan.get("runs"), list) else []
    attributes = {f"run {k}": run for k, run in enumerate(records)} | {"settings": plan.get("settings")}
    trials = SimpleNamespace(seeds=range(len(records)), url=str(folder / "trials.json"))
    runs = SettingTable.runs(trials, 1, create_trial(state=TrialState.WAITING, user_attrs=attributes))
    begun = [run for run in runs if run.status in STATUS_ORDER]
    opt = options.resumed(options.parser().parse_args(["--output-dir", str(folder), "--resume"]), plan["options"])
    options.check(opt)
    runner.check_unchanged(plan, json.loads(json.dumps(plan)), opt)
    places = rank(begun)
    write_csv(folder / "table.csv", begun, trainer())
    must(
        ranking(places, setting_columns([p.run for p in places], trainer())) and verdict(places) is not None, "ranking"
    )


OPTIONS = {
    **{"base_config": "configs/tiny_smoke.yaml", "trials_file": "experiments/lr_bs.json", "search": "", "trials": 20},
    **{"repeat": 1, "seed": None, "storage": "", "study": "trials", "budget_epochs": 2, "budget_subset": None},
    **{"budget_size": None, "early_stop_threshold": 0.0, "pruner": "asha", "time_budget": "", "first_rung": None},
}
LEDGER = {
    "version": VERSION,
    "timestamp": "20261117_101010",
    "options": OPTIONS,
    "base": {"epochs": 2},
    "trials": [{"lr0": 0.01}, {"lr0": 0.02}],
    "space": {},
    "files": {},
    "settings": {"lr0": 0.01},
    "runs": [
        {"status": status, "seconds": 3.5, "reason": "", "curve": [[e, 1.0, 0.1 * e, 0.2] for e in range(2)]}
        for status in ("completed", "completed", "failed", "running")
    ],
}


INSTANCES = "annotations/instances_train2017.json"
TRIALS = [{"lr0": 0.01}, {"batch_size": 8, "hyp.mixup": 0.1}]


def shipped(source: str, name: str) -> Callable[[Path], Path]:
    return lambda folder: shutil.copy(ROOT / source, folder / name)


def coco(folder: Path) -> None:
    drawn_sets.write_coco(folder, train=3, val=1)


def voc(folder: Path) -> None:
    drawn_sets.write_voc(folder, train=3, val=1)


TARGETS = (
    Target("data", "data.yaml", YAML, lambda f: drawn_sets.write_yolo(f, "roboflow", train=2, val=1), use_data, 3),
    Target("hyp", "hyp.yaml", YAML, shipped("data/hyp.small.yaml", "hyp.yaml"), use_hyp, 5),
    Target("network", "network.yaml", YAML, text("network.yaml", NETWORK), use_network, 8),
    Target("run file", "run.yaml", YAML, text("run.yaml", RUN_FILE), use_run_file, 5),
    Target("heads", "heads.yaml", YAML, text("heads.yaml", HeadConfig.consecutive(6, 3).to_dict()), use_heads, 5),
    Target("trials json", "trials.json", JSON, shipped("experiments/lr_bs.json", "trials.json"), use_trials, 3),
    Target("trials yaml", "trials.yaml", YAML, text("trials.yaml", TRIALS), use_trials, 3),
    Target("space", "space.yaml", YAML, shipped("experiments/space.yaml", "space.yaml"), use_space, 4),
    Target("ledger", "trials.json", JSON, text("trials.json", LEDGER), use_ledger, 6),
    Target("labels", "labels/train/000.txt", TEXT, make_set, use_labels, 6),
    Target("label cache", f"labels/*{SUFFIX}", BYTES, make_set, use_label_cache, 5),
    Target("pack", "images-*.pack", BYTES, make_pack, use_pack, 4),
    Target("png", "images/train/000.png", BYTES, make_set, use_image, 4),
    Target("jpeg", "images/train/000.jpg", BYTES, make_jpeg, use_image, 4),
    Target("image list", "train.txt", TEXT, text("train.txt", "images/a.png\nimages/b.png\n"), use_image_list, 2),
    Target("coco", INSTANCES, JSON, coco, use_coco, 8),
    Target("annotations", INSTANCES, JSON, coco, use_annotations, 4),
    Target("voc", "Annotations/000.xml", TEXT, voc, use_voc, 5),
    Target("voc list", "ImageSets/Main/train.txt", TEXT, voc, use_voc, 2),
    Target("csv", "boxes.csv", TEXT, lambda f: drawn_sets.write_csv(f, train=3, val=1), use_csv, 5),
    Target("weights", "mini.pt", CHECKPOINT, lambda f: write_mini_weights(f / "mini.pt"), use_weights, 6),
    Target("checkpoint", "run/weights/last.pt", CHECKPOINT, make_run("yolo"), use_run, 4),
    Target("detr checkpoint", "run/weights/last.pth", CHECKPOINT, make_run("detr"), use_detr_run, 4),
    Target("options", "run/opt.yaml", YAML, make_run("yolo"), use_run, 2),
    Target("options in a report", "run/opt.yaml", YAML, make_run("yolo"), use_results, 2),
    Target("results.txt", "run/results.txt", TEXT, make_run("yolo"), use_results, 2),
    Target("results.csv", "run/results.csv", TEXT, make_run("yolo"), use_results, 2),
    Target("report of results.csv", "run/results.csv", TEXT, make_run("yolo"), use_report, 1),
)

DETR = (Target("detr weights", "run/weights/last.pth", CHECKPOINT, make_run("detr"), use_detr),)
