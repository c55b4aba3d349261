"""One evaluation from a predictor and a configuration to figures and files; what test.py and every family run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import torch

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.loading.create_dataloader import create_dataloader
from yolov7fast.evaluation.config import EvalConfig
from yolov7fast.evaluation.loop import Sink, evaluate, never
from yolov7fast.evaluation.outputs import Outputs
from yolov7fast.evaluation.result import EvalResult
from yolov7fast.predictors.predictor import Predictor, input_size, load_predictor

LEAST_STRIDE = 32  # upstream evaluates on a grid of at least 32 pixels


@dataclass(frozen=True)
class LoaderConfig:
    """How images are read for an evaluation."""

    workers: int = 8
    cache_images: str | bool = False
    cache_dir: str = ""
    fast_dataloader: bool = False
    keep_partial_labels: bool = False


def run_evaluation(
    predictor: Predictor,
    loader,
    data: DataYaml,
    save_dir: Path,
    config: EvalConfig,
    *,
    weights: Sequence[str] = (),
    sinks: Sequence[Sink] = (),
    should_stop: Callable[[], bool] = never,
) -> EvalResult:
    """Measure a predictor on a loader; print and write what the configuration asks for.

    weights: files the predictor came from, for the report. sinks: see every batch besides. should_stop: asked after
    every batch; then `loop.EvaluationStopped` is raised.
    """
    outputs = Outputs(Path(save_dir), data, config, loader.dataset, list(weights))
    try:
        if config.v5_metric:
            print("Testing with YOLOv5 AP metric...")
        predictor.warm_up(config.img_size)
        result = evaluate(predictor, loader, len(outputs.names), config, [*outputs.sinks, *sinks], should_stop)
        return outputs.finish(result, predictor)
    finally:
        outputs.close()


def check_classes(predictor: Predictor, data: DataYaml, weights: Sequence[str]) -> None:
    """Refuse a detector of other classes than the data set's."""
    if len(predictor.names) != data.nc:
        known = counted(len(predictor.names), "class", "classes")
        raise UserError(
            f"{' '.join(weights)} knows {known} ({', '.join(map(str, predictor.names))[:80]}), but "
            f"{data.path} has nc: {data.nc}; take weights trained on this data set, or the data yaml of these weights"
        )


def evaluation_loader(predictor: Predictor, data: DataYaml, config: EvalConfig, loading: LoaderConfig):
    """Rectangular batches, as upstream evaluates; squares for a static export."""
    loader, _ = create_dataloader(
        data.split(config.split),
        config.img_size,
        config.batch_size,
        max(LEAST_STRIDE, predictor.stride),
        SimpleNamespace(single_cls=config.single_cls),
        pad=predictor.border,
        rect=not predictor.fixed_size,
        prefix="test: ",
        workers=loading.workers,
        cache=loading.cache_images,
        cache_dir=loading.cache_dir,
        worker_tensor=loading.fast_dataloader,
        keep_partial_labels=loading.keep_partial_labels,
    )
    return loader


def evaluate_weights(
    weights: Sequence[str],
    data: DataYaml,
    save_dir: Path,
    config: EvalConfig,
    loading: LoaderConfig,
    device: torch.device,
    loader=None,
) -> EvalResult:
    """Measure the detector of weights files, of whatever family, on a split of a data set.

    loader: one to be used instead of a loader for the split. A size of 0 means the one that it was trained for.
    """
    predictor = load_predictor(weights, device, config.predict_options())
    if not config.single_cls:
        check_classes(predictor, data, weights)
    config = replace(config, img_size=input_size(predictor, config.img_size, LEAST_STRIDE))
    used = evaluation_loader(predictor, data, config, loading) if loader is None else loader
    try:
        return run_evaluation(predictor, used, data, save_dir, config, weights=weights)
    finally:
        if loader is None:
            used.close()
