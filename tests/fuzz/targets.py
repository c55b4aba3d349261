"""Every kind of file that the project reads: a sound one of each kind, how it is damaged, and how it is used."""

import contextlib
import functools
import io
import json
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import yaml

from tests.formats import drawn_sets
from tests.fuzz import mutations
from tests.fuzz.mutations import ARCHIVE, BYTES, JSON, TEXT, YAML, Mutation
from tests.mini_network import write_mini_weights
from yolov7fast.checkpoint.api import load_checkpoint, save_checkpoint, state_dict_of
from yolov7fast.checkpoint.ensemble import attempt_load
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import TrainCommand
from yolov7fast.commands.data_sets import coco_labels
from yolov7fast.commands.train import run as train
from yolov7fast.data.caches.labels import SUFFIX, load_labels
from yolov7fast.data.caches.packed import PackedImages
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.formats import coco, table, voc, yolo
from yolov7fast.data.formats.label_lines import label_lines
from yolov7fast.data.formats.recognise import recognise
from yolov7fast.data.images import load_resized
from yolov7fast.data.labels import check_pair, find_images
from yolov7fast.families.registry import family_class
from yolov7fast.inference.sources import open_source
from yolov7fast.metrics.coco import ImageList, coco_stats, detection_rows, ground_truth
from yolov7fast.nn.head_config import HeadConfig
from yolov7fast.nn.model import Model
from yolov7fast.plots import plot_results
from yolov7fast.plots.draw import class_name
from yolov7fast.predictors.base import DEFAULT
from yolov7fast.predictors.registry import load_predictor
from yolov7fast.predictors.yolo import YoloPredictor
from yolov7fast.reports.runs import read_runs
from yolov7fast.reports.sections import build_report
from yolov7fast.search.children import last_words, read_curve
from yolov7fast.search.keys import read_trials
from yolov7fast.search.ledger import Ledger
from yolov7fast.search.space import read_space
from yolov7fast.search.table import ORDER, rank, ranking_text, verdict, write_csv
from yolov7fast.search.trainer import Budget
from yolov7fast.search.yolo import YoloTrainer
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.options import resumed_options
from yolov7fast.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[2]
NAMES = drawn_sets.NAMES
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


@dataclass(frozen=True)
class Target:
    """make: puts sound files into a folder of its own; file: the one that is damaged; use: as the project uses it."""

    name: str
    file: str
    mutations: tuple[Mutation, ...]
    make: Callable[[Path], Any]
    use: Callable[[Path], Any]
    weight: int = 4

    def path(self, folder: Path) -> Path:
        """A star in the name of the file stands for what is known only once it is made."""
        return next((folder / self.name).glob(self.file)) if "*" in self.file else folder / self.name / self.file


def must(condition: Any, what: str) -> None:
    """Not an `assert`: cases run outside of what pytest rewrites."""
    if not condition:
        raise AssertionError(what)


def fresh(folder: Path) -> Path:
    """An empty folder for what a use writes."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    return out


def copied(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for name in names:
            shutil.copy(ROOT / name, folder)

    return make


def text(name: str, content: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        dump = json.dumps if name.endswith(".json") else lambda value: yaml.safe_dump(value, sort_keys=False)
        (folder / name).write_text(content if isinstance(content, str) else dump(content))

    return make


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
def trainer() -> YoloTrainer:
    return YoloTrainer("configs/tiny_smoke.yaml", Budget(epochs=2))


def use_trials(folder: Path) -> None:
    file = next(folder.glob("trials.*"))
    must(read_trials(file, trainer()), "trials")


def use_space(folder: Path) -> None:
    must(read_space(folder / "space.yaml", trainer()), "ranges")


def use_ledger(folder: Path) -> None:
    from yolov7fast.search import command, options

    ledger = Ledger.read(folder)
    begun = [run for run in ledger.ordered if run.status in ORDER]
    opt = options.resumed(
        options.parser().parse_args(["--output-dir", str(folder), "--resume"]), ledger.plan["options"]
    )
    options.check(opt)
    command.check_unchanged(ledger.plan, json.loads(json.dumps(ledger.plan)), opt)
    places = rank(begun)
    write_csv(folder / "table.csv", begun, trainer())
    must(ranking_text(places, trainer()) and verdict(places) is not None, "ranking")
    Ledger(folder, ledger.plan, ledger.runs).save()


LEDGER = {
    "version": 1,
    "plan": {
        "timestamp": "20261117_101010",
        "id": "ab",
        "options": {
            **{
                "base_config": "configs/tiny_smoke.yaml",
                "trials_file": "experiments/lr_bs.json",
                "search": "",
                "trials": 20,
            },
            **{"repeat": 1, "seed": None, "storage": "", "study": "trials", "budget_epochs": 2, "budget_subset": None},
            **{"budget_size": None, "early_stop_threshold": 0.0, "pruner": "asha", "time_budget": ""},
        },
        "base": {"epochs": 2},
        "trials": [{"lr0": 0.01}, {"lr0": 0.02}],
        "space": {},
        "files": {},
    },
    "runs": [
        {
            "id": i,
            "setting": i,
            "seed": 0,
            "params": {"lr0": 0.01 * (i + 1)},
            "status": status,
            "seconds": 3.5,
            "reason": "",
        }
        | {"curve": [{"epoch": e, "loss": 1.0, "map": 0.1 * e, "map50": 0.2} for e in range(2)], "stop": ""}
        for i, status in enumerate(("completed", "completed", "failed", "running"))
    ],
}


# --- labels and caches ------------------------------------------------------------------------------------------------


def make_set(folder: Path) -> None:
    drawn_sets.write_yolo(folder, "ultralytics", train=3, val=1)
    load_labels(images_of(folder), str(folder / "images/train"))


def images_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in (folder / "images/train").glob("*.png"))


def check_table(images: list[str], source: Path, rows: int | None = None) -> None:
    loaded = load_labels(images, str(source))
    for labels in loaded.labels:
        must(labels.dtype == np.float32 and np.isfinite(labels).all(), "finite labels")
        must((labels[:, 0] >= 0).all() and (labels[:, 1:] <= 1.01).all(), "labels in range")
    must(all(str(problem).count("\n") == 0 for problem in loaded.problems), "a problem is one line")


def use_labels(folder: Path) -> None:
    check_table(images_of(folder), folder / "images/train")
    for keep in (False, True):
        check_pair(str(folder / "images/train/000.png"), str(folder / "labels/train/000.txt"), keep)
    sample = yolo.read_sample(str(folder / "images/train/000.png"), folder)
    label_lines(sample, Counter())


def use_label_cache(folder: Path) -> None:
    """Whatever the cache holds, the labels are those of the files."""
    loaded = load_labels(images_of(folder), str(folder / "images/train"))
    must([os.path.basename(path) for path in loaded.img_files] == ["000.png", "001.png", "002.png"], "images")
    for path, labels in zip(loaded.img_files, loaded.labels):
        text = Path(path.replace("/images/", "/labels/")).with_suffix(".txt").read_text()
        rows = np.array([line.split() for line in text.splitlines()], np.float32).reshape(-1, 5)
        must(np.array_equal(rows, labels), f"labels of {path}")


def make_pack(folder: Path) -> None:
    drawn_sets.write_yolo(folder, "ultralytics", train=3, val=1)
    PackedImages.open_or_build(images_of(folder), 64, augment=True, cache_dir=folder)


def use_pack(folder: Path) -> None:
    """Whatever the pack holds, the pixels are those of the images."""
    images = images_of(folder)
    pack = PackedImages.open_or_build(images, 64, augment=True, cache_dir=folder)
    for i, path in enumerate(images):
        must(np.array_equal(pack.get(i).img, load_resized(path, 64, True).img), f"pixels of {path}")


def use_image(folder: Path) -> None:
    path = next((folder / "images/train").glob("000.*"))
    checked = check_pair(str(path), str(folder / "labels/train/000.txt"))
    if checked.labels is not None:
        load_resized(str(path), 64, True)
    with contextlib.closing(open_source(str(path), 64)) as source:
        for frame in source.frames():
            must(frame.image is not None, "pixels")
    recognise(folder)


def make_jpeg(folder: Path) -> None:
    import cv2

    make_set(folder)
    image = folder / "images/train/000.png"
    cv2.imwrite(str(image.with_suffix(".jpg")), cv2.imread(str(image)))
    image.unlink()


def use_image_list(folder: Path) -> None:
    find_images(str(folder / "train.txt"))


# --- data sets in other formats ---------------------------------------------------------------------------------------


def check_samples(annotated: Any) -> None:
    changes: Counter = Counter()
    for sample in annotated.samples:
        for line in label_lines(sample, changes):
            values = [float(word) for word in line.split()]
            must(np.isfinite(values).all() and 0 <= values[0] < len(annotated.names), f"line {line}")


def use_coco(folder: Path) -> None:
    file = folder / "annotations/instances_train2017.json"
    try:
        check_samples(coco.read(coco.of_file(file)))
    finally:
        coco_labels.convert(file, fresh(folder))


def use_annotations(folder: Path) -> None:
    files = [str(path) for path in sorted((folder / "train2017").glob("*.png"))]
    images = ImageList(files, np.array([drawn_sets.SIZES[i] for i in range(3)]), [np.zeros((0, 5))] * 3)
    truth = ground_truth(str(folder / "annotations/instances_train2017.json"), images, NAMES, False)
    coco_stats(truth, detection_rows(files[0], np.array([[1, 2, 30, 40, 0.9, 0]]), truth))


def use_voc(folder: Path) -> None:
    layout = voc.find(folder)
    must(layout is not None, "layout")
    check_samples(voc.read(layout))


def use_csv(folder: Path) -> None:
    check_samples(table.read(table.of_file(folder / "boxes.csv")))


# --- checkpoints and runs ---------------------------------------------------------------------------------------------


def loaded(content: bytes) -> Any:
    path = Path("/tmp") / f"fuzz_{os.getpid()}.pt"
    path.write_bytes(content)
    try:
        return load_checkpoint(path)
    finally:
        path.unlink()


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, pickle_protocol=2)
    return file.getvalue()


def saved_as_ours(value: Any) -> bytes:
    """Networks keep upstream's class paths."""
    path = Path("/tmp") / f"fuzz_{os.getpid()}.pt"
    try:
        save_checkpoint(value, path)
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


CHECKPOINT = mutations.checkpoint_mutation(loaded, saved_as_ours)


def use_weights(folder: Path) -> None:
    path = folder / "mini.pt"
    state_dict_of(load_checkpoint(path), origin=path)
    model = attempt_load(path)
    YoloPredictor(model, DEFAULT)(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))


class Reached(BaseException):
    """The run is ready to train."""


def ready(*_: Any) -> NoReturn:
    raise Reached


def make_run(family: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with tarfile.open(ROOT / f"tests/golden/old_run_{family}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        drawn_sets.write_yolo(folder / "set", "ultralytics", train=4, val=2)
        data = folder / "set/data.yaml"
        data.write_text(yaml.safe_dump(yaml.safe_load(data.read_text()) | {"names": ["a", "b", "c", "d"]}))
        path = folder / "run/opt.yaml"
        changed = {"data": str(data), "project": str(folder), "save_dir": str(folder / "run"), "cfg": ""}
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changed, sort_keys=False))

    return make


def use_run(folder: Path) -> None:
    """Resume, as far as the first step; what an earlier case left in the run folder goes."""
    for left in ("weights/previous.pt", "results.png"):
        (folder / "run" / left).unlink(missing_ok=True)
    fit, Trainer.fit = Trainer.fit, ready
    try:
        train(parser_for("train").parse_args(["--resume", str(folder / "run"), "--workers", "0"]))
    except Reached:
        pass
    finally:
        Trainer.fit = fit


def use_detr_run(folder: Path) -> None:
    """Resume a DETR run as far as its options and its progress."""
    opt = parser_for("train", "detr").parse_args(["--resume", str(folder / "run")])
    resumed_options(opt, family_class("detr"), TrainCommand("detr"))


def use_detr(folder: Path) -> None:
    """Open a DETR checkpoint for detection."""
    path = str(folder / "run/weights/last.pth")
    load_predictor([path], torch.device("cpu"), DEFAULT)(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))


def use_results(folder: Path) -> None:
    read_runs([folder / "run"])
    read_curve(folder / "run")
    last_words(folder / "run")


def use_report(folder: Path) -> None:
    build_report(read_runs([folder / "run"]), 1.5)
    plot_results(folder / "run")


TARGETS = (
    Target("data", "data.yaml", YAML, lambda f: drawn_sets.write_yolo(f, "roboflow", train=2, val=1), use_data, 3),
    Target("hyp", "hyp.yaml", YAML, lambda f: shutil.copy(ROOT / "data/hyp.small.yaml", f / "hyp.yaml"), use_hyp, 5),
    Target("network", "network.yaml", YAML, text("network.yaml", NETWORK), use_network, 8),
    Target("run file", "run.yaml", YAML, text("run.yaml", RUN_FILE), use_run_file, 5),
    Target("heads", "heads.yaml", YAML, text("heads.yaml", HeadConfig.consecutive(6, 3).to_dict()), use_heads, 5),
    Target(
        "trials json",
        "trials.json",
        JSON,
        lambda f: shutil.copy(ROOT / "experiments/lr_bs.json", f / "trials.json"),
        use_trials,
        3,
    ),
    Target(
        "trials yaml",
        "trials.yaml",
        YAML,
        text("trials.yaml", [{"lr0": 0.01}, {"batch_size": 8, "hyp": {"mixup": 0.1}}]),
        use_trials,
        3,
    ),
    Target(
        "space",
        "space.yaml",
        YAML,
        lambda f: shutil.copy(ROOT / "experiments/space.yaml", f / "space.yaml"),
        use_space,
        4,
    ),
    Target("ledger", "trials.json", JSON, text("trials.json", LEDGER), use_ledger, 6),
    Target("labels", "labels/train/000.txt", TEXT, make_set, use_labels, 6),
    Target("label cache", f"labels/*{SUFFIX}", ARCHIVE, make_set, use_label_cache, 5),
    Target("pack", "images-*.pack", BYTES, make_pack, use_pack, 4),
    Target("png", "images/train/000.png", BYTES, make_set, use_image, 4),
    Target("jpeg", "images/train/000.jpg", BYTES, make_jpeg, use_image, 4),
    Target("image list", "train.txt", TEXT, text("train.txt", "images/a.png\nimages/b.png\n"), use_image_list, 2),
    Target(
        "coco",
        "annotations/instances_train2017.json",
        JSON,
        lambda f: drawn_sets.write_coco(f, train=3, val=1),
        use_coco,
        8,
    ),
    Target(
        "annotations",
        "annotations/instances_train2017.json",
        JSON,
        lambda f: drawn_sets.write_coco(f, train=3, val=1),
        use_annotations,
        4,
    ),
    Target("voc", "Annotations/000.xml", TEXT, lambda f: drawn_sets.write_voc(f, train=3, val=1), use_voc, 5),
    Target("voc list", "ImageSets/Main/train.txt", TEXT, lambda f: drawn_sets.write_voc(f, train=3, val=1), use_voc, 2),
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
