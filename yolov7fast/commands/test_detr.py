"""Measure a DETR checkpoint on a labelled data set: `python tools/test_detr.py --weights best.pth --data my.yaml`."""

import logging
from pathlib import Path

from yolov7fast.cli.detr_flags import test_parser
from yolov7fast.cli.test_flags import check_options
from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.files import check_img_size, increment_path
from yolov7fast.data.data_yaml import SPLITS, load_data_yaml
from yolov7fast.evaluation.detr import GRID, evaluate_detr, load_detector
from yolov7fast.evaluation.loop import EvalResult
from yolov7fast.evaluation.report import write_per_class_ap
from yolov7fast.loading.dataloader import create_dataloader


def test(opt) -> EvalResult:
    """Run an evaluation with the options of the command; the size is by default the one it was trained for."""
    data, weights = load_data_yaml(opt.data), opt.weights
    model, checkpoint = load_detector(weights, select_device(opt.device, opt.batch_size))
    opt.img_size = opt.img_size or checkpoint["img_size"]
    check_options(opt)
    if opt.task not in SPLITS:
        raise UserError(f"--task {opt.task} is not for DETR: it is one of {', '.join(SPLITS)}")
    if len(model.names) != data.nc and not opt.single_cls:
        raise UserError(f"{weights} knows {len(model.names)} classes, but {data.path} has nc: {data.nc}")
    size = check_img_size(opt.img_size, GRID)
    options = {"workers": opt.workers, "cache": opt.cache_images, "worker_tensor": opt.fast_dataloader}
    source = data.split(opt.task)
    loader, _ = create_dataloader(source, size, opt.batch_size, GRID, opt, rect=True, prefix="test: ", **options)
    save_dir = increment_path(Path(opt.project) / opt.name, exist_ok=opt.exist_ok)
    names = ("conf_thres", "batch_size", "single_cls", "verbose", "v5_metric", "save_txt", "save_conf", "save_json")
    settings = {name: getattr(opt, name) for name in (*names, "annotations", "task")}
    try:
        result = evaluate_detr(model, loader, data, save_dir, imgsz=size, alone=True, weights=weights, **settings)
    finally:
        loader.close()
    if opt.save_per_class_ap:
        write_per_class_ap(result, model.names, opt.save_per_class_ap)
    print(f"Results saved to {save_dir}")
    return result


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    test(test_parser().parse_args())
    return 0
