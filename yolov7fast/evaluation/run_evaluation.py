"""One evaluation from a predictor and a configuration to metrics and files, and upstream's `test` function.

test.py and the validation of every family call `run_evaluation`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from yolov7fast.core.device import select_device, untuned_convolutions
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import increment_path
from yolov7fast.core.text import counted
from yolov7fast.data.data_yaml import DataYaml, load_data_yaml
from yolov7fast.data.loading.create_dataloader import create_dataloader
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_loop import Sink, evaluate, never
from yolov7fast.evaluation.eval_outputs import Outputs
from yolov7fast.evaluation.eval_result import SUMMARY, EvalResult
from yolov7fast.predictors.predictor import Predictor, input_size, listed, load_predictor
from yolov7fast.predictors.yolo_predictor import network_predictor

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
    """Evaluate a predictor on a loader; print and write the configured outputs.

    weights: files of the predictor, for the report. sinks: further sinks. should_stop: called after every batch; if it
    returns True, `EvaluationStopped` is raised.
    """
    outputs = Outputs(Path(save_dir), data, config, loader.dataset, list(weights))
    if config.v5_metric:
        print("Testing with YOLOv5 AP metric...")
    with untuned_convolutions():
        predictor.warm_up(config.img_size)
        result = evaluate(predictor, loader, len(outputs.names), config, [*outputs.sinks, *sinks], should_stop)
    return outputs.finish(result, predictor)


def check_classes(predictor: Predictor, data: DataYaml, weights: Sequence[str]) -> None:
    """Refuse a detector of other classes than the data set's."""
    if len(predictor.names) != data.nc:
        known = counted(len(predictor.names), "class", "classes")
        raise UserError(
            f"{' '.join(weights)} has {known} ({', '.join(map(str, predictor.names))[:80]}), but "
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


def used_loader(given, *arguments) -> AbstractContextManager:
    """The given loader, which stays open, or that of `evaluation_loader` with these arguments, which is closed."""
    return closing(evaluation_loader(*arguments)) if given is None else nullcontext(given)


def evaluate_weights(
    weights: Sequence[str],
    data: DataYaml,
    save_dir: Path,
    config: EvalConfig,
    loading: LoaderConfig,
    device: torch.device,
    loader=None,
) -> EvalResult:
    """Evaluate the detector of weights files, of any family, on a split of a data set.

    loader: one to be used instead of a loader for the split. A size of 0 means the one that it was trained for.
    """
    predictor = load_predictor(weights, device, config.predict_options())
    if not config.single_cls:
        check_classes(predictor, data, weights)
    config = replace(config, img_size=input_size(predictor, config.img_size, LEAST_STRIDE))
    with used_loader(loader, predictor, data, config, loading) as used:
        return run_evaluation(predictor, used, data, save_dir, config, weights=weights)


UpstreamResult = tuple[tuple[float, ...], np.ndarray, tuple[float, ...]]


def test(
    data,
    weights=None,
    batch_size=32,
    imgsz=640,
    conf_thres=0.001,
    iou_thres=0.6,
    save_json=False,
    single_cls=False,
    augment=False,
    verbose=False,
    model=None,
    dataloader=None,
    save_dir=Path(""),
    save_txt=False,
    save_hybrid=False,
    save_conf=False,
    plots=True,
    wandb_logger=None,
    compute_loss=None,
    half_precision=True,
    trace=False,
    is_coco=False,
    v5_metric=False,
    *,
    device="",
    workers=8,
) -> UpstreamResult:
    """Evaluate a given `model`, on a given `dataloader` or on the validation split of `data`; or evaluate `weights`.

    Returns ((P, R, mAP@.5, mAP@.5:.95, box, obj, cls), per-class AP, times). In half precision (on CUDA only) a copy
    is run, so a given model keeps its weights. `wandb_logger`, if given, gets the summary by its `log`. `trace` has no
    effect: networks always run untraced.
    """
    config = EvalConfig(
        img_size=imgsz,
        batch_size=batch_size,
        conf_thres=conf_thres,
        iou_thres=iou_thres,
        single_cls=single_cls,
        augment=augment,
        v5_metric=v5_metric,
        half=half_precision,
        save_txt=save_txt,
        save_conf=save_conf,
        save_hybrid=save_hybrid,
        save_json=save_json,
        is_coco=is_coco,
        plots=plots,
        verbose=verbose,
        standalone=model is None,
    )
    data, loading = load_data_yaml(data), LoaderConfig(workers=workers)
    if model is None:
        save_dir = save_dir if Path(save_dir).name else increment_path("runs/test/exp", exist_ok=False)
        chosen = select_device(device, batch_size)
        result = evaluate_weights(listed(weights), data, Path(save_dir), config, loading, chosen, dataloader)
    else:
        was_training = model.training
        predictor = network_predictor(model, config.predict_options(), compute_loss)
        try:
            with used_loader(dataloader, predictor, data, config, loading) as loader:
                result = run_evaluation(predictor, loader, data, Path(save_dir), config, weights=listed(weights))
        finally:
            model.train(was_training)
    if wandb_logger is not None:
        tags = [name.removeprefix("metrics/") for name in SUMMARY] + ["box_loss", "obj_loss", "cls_loss"]
        wandb_logger.log({f"test/{tag}": value for tag, value in zip(tags, result.as_upstream()[0])})
    return result.as_upstream()
