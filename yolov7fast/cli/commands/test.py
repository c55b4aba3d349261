"""Evaluate a detector on a labelled data set: `python test.py --weights best.pt --data my.yaml`."""

import zipfile
from argparse import Namespace
from dataclasses import fields
from pathlib import Path

import numpy as np

from yolov7fast.cli.checks import check_test
from yolov7fast.cli.parser import parse_inference
from yolov7fast.core.device import select_device
from yolov7fast.core.files.atomic import atomic_file, atomic_path
from yolov7fast.core.files.paths import increment_path
from yolov7fast.core.process.output import log_to_stderr
from yolov7fast.data.data_yaml import DataYaml, load_data_yaml
from yolov7fast.evaluation.eval_config import from_options
from yolov7fast.evaluation.eval_outputs import write_per_class_ap
from yolov7fast.evaluation.eval_result import EvalResult
from yolov7fast.evaluation.run_evaluation import LoaderConfig, evaluate_weights, test
from yolov7fast.reports.run_plots import plot_study

__all__ = ["STUDY_SIZES", "main", "run", "study", "test"]  # `test` is what scripts import from test.py
STUDY_SIZES = range(256, 1536 + 128, 128)


def run(opt: Namespace) -> EvalResult | None:
    """Run the command with its checked options; returns the result of a single evaluation."""
    data = load_data_yaml(opt.data, val_fraction=opt.val_fraction, allow_download=opt.allow_download)
    save_dir = increment_path(Path(opt.project) / opt.name, exist_ok=opt.exist_ok)
    result = None
    no_files = {"save_txt": False, "save_hybrid": False, "plots": False}
    if opt.task == "speed":
        for weights in opt.weights:
            changes = {"conf_thres": 0.25, "iou_thres": 0.45, "save_json": False, **no_files}
            measure(opt, data, [weights], save_dir / Path(weights).stem, **changes)
    elif opt.task == "study":
        study(opt, data, save_dir, **no_files)
    else:
        result = measure(opt, data, opt.weights, save_dir)
        if opt.save_per_class_ap:
            write_per_class_ap(result, ["item"] if opt.single_cls else data.names, opt.save_per_class_ap)
            print(f"AP of each class: {opt.save_per_class_ap}")
    print(f"Results saved to {save_dir}")
    return result


def measure(opt: Namespace, data: DataYaml, weights: list[str], save_dir: Path, **changes) -> EvalResult:
    """One evaluation with the command's options, except where `changes` says otherwise."""
    config = from_options(opt, standalone=True, **changes)
    loading = LoaderConfig(**{f.name: getattr(opt, f.name) for f in fields(LoaderConfig) if hasattr(opt, f.name)})
    return evaluate_weights(weights, data, save_dir, config, loading, select_device(opt.device, opt.batch_size))


def study(opt: Namespace, data: DataYaml, save_dir: Path, **changes) -> None:
    """Accuracy and time over image sizes: a text file for each weights file, all zipped, and a plot of them."""
    files = []
    for weights in opt.weights:
        files.append(Path(f"study_{Path(data.path).stem}_{Path(weights).stem}.txt"))
        rows = []
        for size in STUDY_SIZES:
            print(f"\nstudy of {weights}: size {size}")
            folder = save_dir / f"{Path(weights).stem}_{size}"
            results, _, times = measure(opt, data, [weights], folder, img_size=size, **changes).as_upstream()
            rows.append((*results, *times))
            with atomic_file(files[-1]) as file:
                np.savetxt(file, np.array(rows), fmt="%10.4g")
    with atomic_path("study.zip") as path, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file)
    plot_study(files, "study.png")
    print(f"study: {', '.join(map(str, files))}, study.zip, study.png")


def main() -> int:
    log_to_stderr()
    opt = parse_inference("test")
    check_test(opt)
    run(opt)
    return 0
