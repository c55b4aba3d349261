"""Throughput of detect.py on a folder: one image at a time against batches that overlap with reading and writing.

    python -m benchmarks.inference.detect --weights best.pt [--images 500] [--img-size 640] [--batch-size 8]
        [--json FILE]

The images are drawn (seed 0). Both sides detect, draw boxes and write every image, in turn, in this process; medians of
wall-clock seconds. The first side reads, runs the network and writes one after the other, as detect.py did.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

import cv2
import torch
from tqdm import tqdm

from benchmarks.measure import in_turn, machine, wall_seconds, write_json
from yolov7fast.data.shapes import draw_scene
from yolov7fast.inference.detection_loop import predict_source
from yolov7fast.inference.detection_output import PredictionOutput
from yolov7fast.inference.sources import LoadImages
from yolov7fast.predictors.predictor import PredictOptions, load_predictor

WANTED = 1.5


def draw_folder(folder: Path, count: int, size: int = 640) -> Path:
    """Photograph-like images of one shape."""
    folder.mkdir()
    for index in tqdm(range(count), desc="images"):
        image = draw_scene(0, index, size)[0]
        cv2.imwrite(str(folder / f"{index:04}.jpg"), cv2.resize(image, (640, 480)))
    return folder


def detect(predictor, images: Path, out: Path, size: int, batch: int, overlapped: bool) -> None:
    output = PredictionOutput(out, predictor.names)
    with contextlib.redirect_stdout(io.StringIO()):
        predict_source(LoadImages(str(images), size), predictor, output, batch, overlapped=overlapped)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.inference.detect", description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--img-size", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    opt = parser.parse_args(argv)
    predictor = load_predictor(opt.weights, torch.device("cpu"), PredictOptions())
    with tempfile.TemporaryDirectory() as folder:
        images, out = draw_folder(Path(folder) / "images", opt.images), Path(folder) / "out"
        settings = {
            "one at a time": (1, False),
            "one at a time, overlapped": (1, True),
            f"batches of {opt.batch_size}, overlapped": (opt.batch_size, True),
        }
        sides = {
            name: lambda chosen=chosen: wall_seconds(lambda: detect(predictor, images, out, opt.img_size, *chosen))
            for name, chosen in settings.items()
        }
        seconds = in_turn(sides, opt.runs)
    rates = {name: opt.images / value for name, value in seconds.items()}
    first = next(iter(rates.values()))
    print(" ".join(f"{key} {value}" for key, value in machine().items()), f"threads {torch.get_num_threads()}")
    for name, rate in rates.items():
        print(f"{name:<40}{rate:8.1f} images/s  {rate / first:5.2f}x")
    gain = max(rates.values()) / first
    ratios = [
        {"what": "throughput, overlapped / one at a time", "value": gain, "must": f">= {WANTED}", "runs": opt.runs}
    ]
    write_json(opt.json, {"machine": machine(), "rates": rates, "ratios": ratios})
    return 0


if __name__ == "__main__":
    sys.exit(main())
