"""Find objects in images, videos and streams: `python detect.py --weights best.pt --source folder`."""

import logging
from pathlib import Path

from tqdm import tqdm

from yolov7fast.checkpoint.api import strip_checkpoint
from yolov7fast.checkpoint.ensemble import attempt_load
from yolov7fast.cli.detect_flags import check_options, detect_parser
from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.files import check_img_size, increment_path
from yolov7fast.inference.output import PredictionOutput, open_window
from yolov7fast.inference.predict import Predict, Summary, YoloDetect, predict_source
from yolov7fast.inference.sources import open_source
from yolov7fast.plots.draw import Names


def detect(opt) -> Summary:
    """Run detection with the options of the command; returns what came of it."""
    check_options(opt)
    device = select_device(opt.device)
    model = attempt_load(opt.weights, map_location=device)
    stride = int(model.stride.max())
    img_size = check_img_size(opt.img_size, s=stride)
    predict = YoloDetect(model, device, opt.conf_thres, opt.iou_thres, opt.classes, opt.agnostic_nms, opt.augment)
    predict.warm_up(img_size)
    summary = detect_with(opt, predict, model.names, img_size, stride)
    if opt.update:
        for path in opt.weights:
            strip_checkpoint(path)
    return summary


def detect_with(opt, predict: Predict, names: Names, img_size: int, stride: int) -> Summary:
    """Run a detector of whatever kind over the source of the command."""
    unknown = [c for c in opt.classes or [] if not 0 <= c < len(names)]
    if unknown:
        known = ", ".join(f"{i} {name}" for i, name in enumerate(names))
        raise UserError(f"--classes {unknown}: the weights know {known[:300]}")
    source = open_source(opt.source, img_size, stride)
    is_stream_list = source.mode == "stream" and opt.source.lower().endswith(".txt")
    save_dir = increment_path(Path(opt.project) / opt.name, exist_ok=opt.exist_ok)
    save_img = not opt.nosave and not is_stream_list  # a list of streams is watched, not recorded
    output = PredictionOutput(save_dir, names, save_img, opt.save_txt, opt.save_conf)
    window = open_window() if opt.view_img else None
    summary = predict_source(source, predict, names, output, opt.batch_size, window)
    _report(summary, save_dir, output, source.skipped)
    return summary


def _report(summary: Summary, save_dir: Path, output: PredictionOutput, skipped: list[str]) -> None:
    rate = summary.pictures / max(summary.seconds, 1e-9)
    tqdm.write(f"{summary.pictures} pictures, {summary.detections} detections, {rate:.1f} pictures/s")
    if output.save_img or output.save_txt:
        labels = f", {output.label_count} text files in {save_dir / 'labels'}" if output.save_txt else ""
        tqdm.write(f"Results saved to {save_dir}{labels}")
    if skipped:
        tqdm.write(f"{len(skipped)} sources skipped: {'; '.join(skipped[:5])}{'; ...' if len(skipped) > 5 else ''}")
    tqdm.write(f"{'Stopped' if summary.stopped else 'Done'}. ({summary.seconds:.3f}s)")


def main() -> int:
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    return 130 if detect(detect_parser().parse_args()).stopped else 0
