"""Measure a detector on a labelled data set: `python test.py --weights best.pt --data my.yaml`."""

import logging
import zipfile
from pathlib import Path

import numpy as np

from yolov7fast.cli.test_flags import check_options, test_parser
from yolov7fast.core.files import increment_path
from yolov7fast.data.data_yaml import SPLITS, load_data_yaml
from yolov7fast.evaluation.loop import EvalResult
from yolov7fast.evaluation.report import write_per_class_ap
from yolov7fast.evaluation.yolo import test
from yolov7fast.plots import plot_study

STUDY_SIZES = range(256, 1536 + 128, 128)


def run(opt) -> EvalResult | None:
    """What the command does with its checked options; the result of a single evaluation."""
    data = load_data_yaml(opt.data)
    save_dir = increment_path(Path(opt.project) / opt.name, exist_ok=opt.exist_ok)
    result = None
    if opt.task == "speed":
        for weights in opt.weights:
            changes = {"conf_thres": 0.25, "iou_thres": 0.45, "save_json": False, "plots": False}
            measure(opt, data, [weights], save_dir / Path(weights).stem, **changes)
    elif opt.task == "study":
        study(opt, data, save_dir)
    else:
        text = {"save_txt": opt.save_txt, "save_hybrid": opt.save_hybrid, "save_conf": opt.save_conf}
        result = measure(opt, data, opt.weights, save_dir, **text)
        if opt.save_per_class_ap:
            write_per_class_ap(result, ["item"] if opt.single_cls else data.names, opt.save_per_class_ap)
            print(f"AP of each class: {opt.save_per_class_ap}")
    print(f"Results saved to {save_dir}")
    return result


def measure(opt, data, weights: list[str], save_dir: Path, **changes) -> EvalResult:
    """One evaluation with the command's options, except where `changes` says otherwise."""
    names = ("batch_size", "conf_thres", "iou_thres", "save_json", "single_cls", "augment", "verbose", "v5_metric")
    names += ("device", "workers", "cache_images", "cache_dir", "fast_dataloader", "annotations", "agnostic_nms")
    task = opt.task if opt.task in SPLITS else "val"
    arguments = {name: getattr(opt, name) for name in names} | {"imgsz": opt.img_size, "task": task}
    return test(data, weights, save_dir=save_dir, **{**arguments, **changes})


def study(opt, data, save_dir: Path) -> None:
    """Accuracy and time over image sizes: a text file for each weights file, all zipped, and a plot of them."""
    files = []
    for weights in opt.weights:
        files.append(Path(f"study_{Path(data.path).stem}_{Path(weights).stem}.txt"))
        rows = []
        for size in STUDY_SIZES:
            print(f"\nstudy of {weights}: size {size}")
            folder = save_dir / f"{Path(weights).stem}_{size}"
            result = measure(opt, data, [weights], folder, imgsz=size, plots=False)
            rows.append((*result.results, *result.times))
            np.savetxt(files[-1], np.array(rows), fmt="%10.4g")
    with zipfile.ZipFile("study.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file)
    plot_study(files, "study.png")
    print(f"study: {', '.join(map(str, files))}, study.zip, study.png")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = test_parser()
    opt = parser.parse_args()
    check_options(opt)
    run(opt)
    return 0
