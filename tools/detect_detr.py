"""Find objects with a DETR checkpoint: `python tools/detect_detr.py --weights best.pth --source folder`."""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from detect import detect_with
from engine.cli_detect import check_options
from engine.cli_detr import detect_parser
from engine.detr_eval import GRID, DetrPredict, load_detector
from engine.predict import Summary
from utils.device import select_device
from utils.errors import run_command
from utils.files import check_img_size


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


if __name__ == "__main__":
    run_command(main)
