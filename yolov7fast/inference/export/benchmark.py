"""What every format is worth on this machine: size of file, accuracy, time, largest difference; one table."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.run_evaluation import check_classes
from yolov7fast.inference.export.accuracy import BATCH, CPU, IOU, measure
from yolov7fast.inference.export.network import Source
from yolov7fast.inference.export.plan import Plan
from yolov7fast.inference.export.proof import Difference
from yolov7fast.inference.export.run import export_files
from yolov7fast.inference.export.samples import Case, make_batch, sample_images
from yolov7fast.predictors.base import PredictOptions, Predictor
from yolov7fast.predictors.exported.forms import Form
from yolov7fast.predictors.exported.metadata import AXES
from yolov7fast.predictors.registry import load_predictor

BATCHES = (1, 8)
IN_A_ROW = 3  # timed calls of a predictor before the next one's turn


@dataclass(frozen=True)
class Row:
    """A format and its figures."""

    name: str
    megabytes: float
    accuracy: float  # mAP@.5:.95
    milliseconds: tuple[float, ...]  # of an image, for each of BATCHES: network and suppression
    difference: Difference | None  # None: the .pt file itself


def variants(source: Source) -> Iterator[tuple[str, str, Form, bool]]:
    """Name, format, form and half precision of what is compared."""
    dense = Form.GRID if source.is_yolo else Form.NMS
    yield "ONNX", "onnx", dense, False
    if source.is_yolo:
        yield "ONNX --nms", "onnx", Form.NMS, False
        yield "ONNX --half", "onnx", Form.GRID, True
    yield "TorchScript", "torchscript", Form.GRID if source.is_yolo else Form.RAW, False
    yield "OpenVINO", "openvino", dense, False
    if source.is_yolo:
        yield "OpenVINO --nms", "openvino", Form.NMS, False


def run_benchmark(source: Source, data: DataYaml, size: int, folder: Path, runs: int) -> list[Row]:
    """Export to every format into a folder, measure each. Times are taken in turn, one format after the other."""
    names, files = ["PyTorch"], [source.weights]
    differences: list[Difference | None] = [None]
    megabytes = [source.weights.stat().st_size / 1e6]
    for name, file_format, form, half in tqdm(list(variants(source)), desc="export"):
        target = folder / name.replace(" ", "_")
        target.mkdir()
        plan = Plan(form, (size, size), free=AXES, half=half)
        (file,) = export_files(source, plan, [file_format], folder=target)
        names.append(name)
        files.append(file.path)
        megabytes.append(file.size / 1e6)
        differences.append(file.report.difference)
    predictors = [load_predictor(file, CPU, PredictOptions(half=False)) for file in files]
    times = time_in_turn(predictors, size, runs, data)
    config = EvalConfig(img_size=size, batch_size=BATCH, iou_thres=IOU)
    rows = []
    for number, predictor in enumerate(predictors):
        check_classes(predictor, data, [str(source.weights)])
        predictor.options = replace(config.predict_options(), half=False)
        accuracy = measure(predictor, data, config)
        rows.append(Row(names[number], megabytes[number], accuracy, times[number], differences[number]))
    return rows


def time_in_turn(
    predictors: Sequence[Predictor], size: int, runs: int, data: DataYaml | None, batches: Sequence[int] = BATCHES
) -> list[tuple[float, ...]]:
    """Median milliseconds of an image for each predictor, by batch size; every round runs all of them in turn.

    A turn is calls in a row, as a program runs its one network, whose weights stay in the processor's cache. The first
    is not timed: caches are another network's, and the threads of the runtime before may still spin.
    """
    images = sample_images(data)
    found: list[list[float]] = [[] for _ in predictors]
    for count in batches:
        batch = make_batch(images, Case(count, size, size))
        planes = torch.from_numpy(np.ascontiguousarray(batch.images[..., ::-1].transpose(0, 3, 1, 2)))
        rounds: list[list[float]] = [[] for _ in predictors]
        for number in tqdm(range(runs + 1), desc=f"batch {count}"):
            for times, predictor in zip(rounds, predictors):
                predictor(planes, batch.shapes)
                for _ in range(IN_A_ROW):
                    start = time.perf_counter()
                    predictor(planes, batch.shapes)
                    if number:  # the first round is for warming up
                        times.append((time.perf_counter() - start) * 1e3 / count)
        for times, all_times in zip(rounds, found):
            all_times.append(statistics.median(times))
    return [tuple(times) for times in found]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    heads = ["format", "MB", "mAP@.5:.95", *(f"ms, batch {count}" for count in BATCHES), "largest difference"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for row in rows:
        times = [f"{ms:.1f}" for ms in row.milliseconds]
        cells = [row.name, f"{row.megabytes:.1f}", f"{row.accuracy:.4f}", *times, str(row.difference or "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def best_gain(rows: Sequence[Row]) -> tuple[str, float]:
    """The fastest exported format at batch 1, and how many times as fast as PyTorch it is."""
    fastest = min(rows[1:], key=lambda row: row.milliseconds[0])
    return fastest.name, rows[0].milliseconds[0] / fastest.milliseconds[0]
