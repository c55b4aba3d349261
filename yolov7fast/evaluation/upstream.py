"""`test` with the arguments and the return value of WongKinYiu/yolov7, for scripts that call it."""

from pathlib import Path

import numpy as np

from yolov7fast.core.device import select_device
from yolov7fast.core.files.paths import increment_path
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.evaluation.config import EvalConfig, OutputConfig
from yolov7fast.evaluation.result import SUMMARY
from yolov7fast.evaluation.run import LoaderConfig, evaluate_weights, evaluation_loader, run_evaluation
from yolov7fast.predictors.predictor import listed
from yolov7fast.predictors.yolo_predictor import network_predictor

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
    outputs = OutputConfig(
        save_txt=save_txt,
        save_conf=save_conf,
        save_hybrid=save_hybrid,
        save_json=save_json,
        is_coco=is_coco,
        plots=plots,
        verbose=verbose,
        standalone=model is None,
    )
    config = EvalConfig(
        img_size=imgsz,
        batch_size=batch_size,
        conf_thres=conf_thres,
        iou_thres=iou_thres,
        single_cls=single_cls,
        augment=augment,
        v5_metric=v5_metric,
        half=half_precision,
        outputs=outputs,
    )
    data, loading = load_data_yaml(data), LoaderConfig(workers=workers)
    if model is None:
        save_dir = save_dir if Path(save_dir).name else increment_path("runs/test/exp", exist_ok=False)
        chosen = select_device(device, batch_size)
        result = evaluate_weights(listed(weights), data, Path(save_dir), config, loading, chosen, dataloader)
    else:
        was_training = model.training
        predictor = network_predictor(model, config.predict_options(), compute_loss)
        loader = evaluation_loader(predictor, data, config, loading) if dataloader is None else dataloader
        try:
            result = run_evaluation(predictor, loader, data, Path(save_dir), config, weights=listed(weights))
        finally:
            if dataloader is None:
                loader.close()
            model.train(was_training)
    if wandb_logger is not None:
        tags = [name.removeprefix("metrics/") for name in SUMMARY] + ["box_loss", "obj_loss", "cls_loss"]
        wandb_logger.log({f"test/{tag}": value for tag, value in zip(tags, result.as_upstream()[0])})
    return result.as_upstream()
