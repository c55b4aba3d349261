"""Find objects in images, videos and streams: `python detect.py --weights best.pt --source folder`."""

from argparse import Namespace
from pathlib import Path

from tqdm import tqdm

from yolov7fast.checkpoint.checkpoint_reader import strip_checkpoint
from yolov7fast.cli.checks import check_detect
from yolov7fast.cli.parser import parse_inference
from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import increment_path
from yolov7fast.core.process.output import log_to_stderr
from yolov7fast.core.text import counted, printable
from yolov7fast.inference.detection_loop import DetectSummary, predict_source
from yolov7fast.inference.detection_output import PredictionOutput, open_window
from yolov7fast.inference.slicing import Slicing
from yolov7fast.inference.sources import open_source
from yolov7fast.predictors.predictor import PredictOptions, Predictor, input_size, load_predictor


def detect(opt: Namespace) -> DetectSummary:
    """Run detection with weights of any family."""
    check_detect(opt)
    options = PredictOptions(
        conf_thres=opt.conf_thres,
        iou_thres=opt.iou_thres,
        classes=opt.classes,
        agnostic=opt.agnostic_nms,
        augment=opt.augment,
        half=not opt.no_half,
        trust_torchscript=opt.trust_torchscript,
    )
    summary = detect_with(opt, load_predictor(opt.weights, select_device(opt.device), options))
    if opt.update:
        for path in opt.weights:
            strip_checkpoint(path)
    return summary


def detect_with(opt: Namespace, predictor: Predictor) -> DetectSummary:
    """Run a predictor on the source of the command. Size 0 is the training image size."""
    names = predictor.names
    unknown = [c for c in opt.classes or [] if not 0 <= c < len(names)]
    if unknown:
        known = ", ".join(f"{i} {name}" for i, name in enumerate(names))
        raise UserError(f"--classes {unknown}: the weights have {known[:300]}")
    img_size = input_size(predictor, opt.img_size)
    source = open_source(opt.source, img_size, predictor.stride, square=predictor.fixed_size)
    is_stream_list = source.mode == "stream" and opt.source.lower().endswith(".txt")
    save_dir = increment_path(Path(opt.project) / opt.name, exist_ok=opt.exist_ok)
    save_img = not opt.nosave and not is_stream_list  # a list of streams is watched, not recorded
    slicing = Slicing(opt.slice, opt.slice_overlap) if opt.slice else None
    records = (opt.save_txt, opt.save_conf, opt.save_crop, opt.save_csv)
    output = PredictionOutput(save_dir, names, save_img, *records)
    window = open_window() if opt.view_img else None
    predictor.warm_up(img_size)
    summary = predict_source(source, predictor, output, opt.batch_size, window, slicing)
    _report(summary, save_dir, output, source.skipped)
    return summary


def _report(summary: DetectSummary, save_dir: Path, output: PredictionOutput, skipped: list[str]) -> None:
    rate = summary.images / max(summary.seconds, 1e-9)
    found = counted(summary.detections, "detection")
    tqdm.write(f"{counted(summary.images, 'image')}, {found}, {rate:.1f} images/s")
    if output.writes_files:
        files = counted(output.label_count, "text file")
        labels = f", {files} in {save_dir / 'labels'}" if output.save_txt else ""
        tqdm.write(f"Results saved to {save_dir}{labels}")
    if skipped:
        more = "; ..." if len(skipped) > 5 else ""
        tqdm.write(f"{counted(len(skipped), 'source')} skipped: {'; '.join(map(printable, skipped[:5]))}{more}")
    tqdm.write(f"{'Stopped' if summary.stopped else 'Done'}. ({summary.seconds:.3f}s)")


def main() -> int:
    """The exit code: 0, 1 if a source was skipped, 130 if the user stopped it."""
    log_to_stderr()
    summary = detect(parse_inference("detect"))
    return 130 if summary.stopped else 1 if summary.skipped else 0
