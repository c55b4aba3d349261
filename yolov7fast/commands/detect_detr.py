"""Find objects with a DETR checkpoint: `python tools/detect_detr.py --weights best.pth --source folder`."""

import logging

from yolov7fast.cli.detect_flags import check_options
from yolov7fast.cli.detr_flags import detect_parser
from yolov7fast.commands.detect import detect_with
from yolov7fast.core.device import select_device
from yolov7fast.core.files import check_img_size
from yolov7fast.evaluation.detr import GRID, DetrPredict, load_detector
from yolov7fast.inference.predict import Summary


def detect(opt) -> Summary:
    """Run detection with the options of the command; the size is by default the one it was trained for."""
    model, checkpoint = load_detector(opt.weights, select_device(opt.device))
    opt.img_size = opt.img_size or checkpoint["img_size"]
    check_options(opt)
    predict = DetrPredict(model, opt.conf_thres, opt.classes).on_pictures
    return detect_with(opt, predict, model.names, check_img_size(opt.img_size, GRID), GRID)


def main() -> int:
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    return 130 if detect(detect_parser().parse_args()).stopped else 0
