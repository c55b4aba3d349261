"""File size, accuracy, time and largest difference of your own weights in every export format, as a table.

    python -m benchmarks.inference.own_formats --weights best.pt --data my.yaml [--img-size 640] [--runs 20]

Accuracy is measured on the val images. Times of all formats are taken in turn, in every round; medians.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.measure import machine
from yolov7fast.core.errors import run_command
from yolov7fast.data.data_yaml import DataYaml, load_data_yaml
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_loop import evaluate
from yolov7fast.evaluation.eval_result import MAP
from yolov7fast.evaluation.run_evaluation import LoaderConfig, check_classes, evaluation_loader
from yolov7fast.inference.export.export_files import export_files
from yolov7fast.inference.export.export_network import ExportSource, load_source
from yolov7fast.inference.export.export_plan import ExportPlan
from yolov7fast.inference.export.export_proof import Difference, ProofCase, make_batch, sample_images
from yolov7fast.predictors.export_metadata import AXES, ExportForm
from yolov7fast.predictors.predictor import PredictOptions, Predictor, load_predictor

BATCHES = (1, 8)
IN_A_ROW = 3  # timed calls of a predictor per round


@dataclass(frozen=True)
class FormatRow:
    """The measurements of a format."""

    name: str
    megabytes: float
    accuracy: float  # mAP@.5:.95
    milliseconds: tuple[float, ...]  # per image, for each of BATCHES: network and NMS
    difference: Difference | None  # None for the .pt file


def variants(source: ExportSource) -> list[tuple[str, str, ExportForm, bool]]:
    """Name, format, form and half precision of the compared files."""
    grid, nms, raw = ExportForm.GRID, ExportForm.NMS, ExportForm.RAW
    if not source.is_yolo:
        forms = (("ONNX", "onnx", nms), ("TorchScript", "torchscript", raw), ("OpenVINO", "openvino", nms))
        return [(*form, False) for form in forms]
    return [
        ("ONNX", "onnx", grid, False),
        ("ONNX --nms", "onnx", nms, False),
        ("ONNX --half", "onnx", grid, True),
        ("TorchScript", "torchscript", grid, False),
        ("OpenVINO", "openvino", grid, False),
        ("OpenVINO --nms", "openvino", nms, False),
    ]


def run_benchmark(source: ExportSource, data: DataYaml, size: int, folder: Path, runs: int) -> list[FormatRow]:
    """Export all formats to a folder and measure each. Times are measured in turn, one format after the other."""
    files: list[tuple[str, Path, int, Difference | None]] = []
    files.append(("PyTorch", source.weights, source.weights.stat().st_size, None))
    for name, file_format, form, half in tqdm(variants(source), desc="export"):
        target = folder / name.replace(" ", "_")
        target.mkdir()
        plan = ExportPlan(form, (size, size), free=AXES, half=half)
        (file,) = export_files(source, plan, [file_format], folder=target)
        files.append((name, file.path, file.size, file.report.difference))
    predictors = [load_predictor(path, torch.device("cpu"), PredictOptions(half=False)) for _, path, *_ in files]
    times = time_in_turn(predictors, size, runs, data)
    config = EvalConfig(img_size=size, batch_size=16, iou_thres=0.65)  # as test.py
    rows = []
    for (name, _, size_bytes, difference), predictor, milliseconds in zip(files, predictors, times):
        check_classes(predictor, data, [str(source.weights)])
        predictor.options = replace(config.predict_options(), half=False)
        rows.append(FormatRow(name, size_bytes / 1e6, measured_map(predictor, data, config), milliseconds, difference))
    return rows


def measured_map(predictor: Predictor, data: DataYaml, config: EvalConfig) -> float:
    """mAP@.5:.95 on the val images."""
    loader = evaluation_loader(predictor, data, config, LoaderConfig(workers=0))
    try:
        return evaluate(predictor, loader, data.nc, config).metrics[MAP]
    finally:
        loader.close()


def time_in_turn(
    predictors: Sequence[Predictor], size: int, runs: int, data: DataYaml | None, batches: Sequence[int] = BATCHES
) -> list[tuple[float, ...]]:
    """Median milliseconds per image of each predictor, by batch size.

    Every round runs all predictors in turn, several calls each. The first call of a turn is not timed, because the
    caches hold the weights of another network and the threads of the previous runtime may still spin.
    """
    images = sample_images(data)
    found: list[list[float]] = [[] for _ in predictors]
    for count in batches:
        batch = make_batch(images, ProofCase(count, size, size))
        planes = torch.from_numpy(batch.planes())
        rounds: list[list[float]] = [[] for _ in predictors]
        for number in tqdm(range(runs + 1), desc=f"batch {count}"):
            for times, predictor in zip(rounds, predictors):
                predictor(planes, batch.shapes)
                for _ in range(IN_A_ROW):
                    start = time.perf_counter()
                    predictor(planes, batch.shapes)
                    if number:  # the first round is a warm-up
                        times.append((time.perf_counter() - start) * 1e3 / count)
        for times, all_times in zip(rounds, found):
            all_times.append(statistics.median(times))
    return [tuple(times) for times in found]


def table(rows: Sequence[FormatRow]) -> str:
    """The rows as a Markdown table."""
    heads = ["format", "MB", "mAP@.5:.95", *(f"ms, batch {count}" for count in BATCHES), "largest difference"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for row in rows:
        times = [f"{ms:.1f}" for ms in row.milliseconds]
        cells = [row.name, f"{row.megabytes:.1f}", f"{row.accuracy:.4f}", *times, str(row.difference or "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.inference.own_formats", description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--img-size", type=int, default=640)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=20)
    opt = parser.parse_args(argv)
    torch.set_num_threads(opt.threads)
    source, data = load_source(opt.weights), load_data_yaml(opt.data)
    with tempfile.TemporaryDirectory() as folder:
        rows = run_benchmark(source, data, opt.img_size, Path(folder), opt.runs)
    print(" ".join(f"{key} {value}" for key, value in machine().items()), f"threads {opt.threads}\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
