"""Evaluation of YOLO networks: `test` is what test.py runs and what training calls after an epoch."""

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from yolov7fast.checkpoint.ensemble import attempt_load
from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.files import check_img_size, increment_path
from yolov7fast.data.data_yaml import SPLITS, DataYaml, Source, load_data_yaml
from yolov7fast.evaluation.loop import EvalResult, Prediction, Stopwatch, evaluate
from yolov7fast.evaluation.outputs import Outputs
from yolov7fast.loading.dataloader import create_dataloader
from yolov7fast.metrics.coco import find_annotations
from yolov7fast.metrics.nms import check_thresholds, non_max_suppression


class ValidationPredict:
    """A YOLO network with its suppression, as the evaluation asks for it (`evaluation.loop.Predict`).

    agnostic: classes suppress one another. hybrid: the labels are put among the
    candidates (auto-labelling), which makes the figures meaningless. loss: called with the raw maps and the targets.
    """

    def __init__(self, model: nn.Module, conf_thres, iou_thres, augment=False, agnostic=False, hybrid=False, loss=None):
        self.model, self.conf_thres, self.iou_thres = model, conf_thres, iou_thres
        self.augment, self.agnostic, self.hybrid, self.loss = augment, agnostic, hybrid, loss
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype

    @torch.no_grad()
    def __call__(self, images: torch.Tensor, targets: torch.Tensor, shapes=()) -> Prediction:
        images = images.to(self.device, non_blocking=True).to(self.dtype) / 255.0
        clock = Stopwatch()
        output, maps = self.model(images, augment=self.augment)[:2]
        inference_ms = clock.lap()
        loss = None
        if self.loss is not None and maps is not None:
            loss = self.loss(_widened(maps), targets)[1][:3].detach()
            clock.lap()
        labels = _label_rows(targets, images) if self.hybrid else ()
        detections = non_max_suppression(
            output, self.conf_thres, self.iou_thres, agnostic=self.agnostic, multi_label=True, labels=labels
        )
        return Prediction(detections, inference_ms, clock.lap(), loss)

    def warm_up(self, img_size: int) -> None:
        """One pass over an empty picture, so that the first batch is not charged for the GPU's start."""
        if self.device.type == "cuda":
            with torch.no_grad():
                self.model(torch.zeros(1, 3, img_size, img_size, device=self.device, dtype=self.dtype))


def _widened(maps):
    """Raw maps for the loss, half precision made float32; however they are nested, as heads differ in that."""
    if isinstance(maps, torch.Tensor):
        return maps.float() if maps.dtype == torch.float16 else maps
    return type(maps)(map(_widened, maps)) if isinstance(maps, list | tuple) else maps


def _label_rows(targets: torch.Tensor, images: torch.Tensor) -> list[torch.Tensor]:
    """Each image's labels (m, 5): class, xywh in pixels of the batch."""
    b, _, h, w = images.shape
    rows = targets[:, 1:].to(images) * torch.tensor([1, w, h, w, h]).to(images)
    return [rows[targets[:, 0].to(images.device) == i] for i in range(b)]


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
    task="val",
    device="",
    workers=8,
    cache_images=False,
    cache_dir="",
    fast_dataloader=False,
    annotations=None,
    agnostic_nms=False,
) -> EvalResult:
    """Evaluate a network: a given `model` on a given `dataloader` (inside training), or `weights` on a split of `data`.

    Returns ((P, R, mAP@.5, mAP@.5:.95, box, obj, cls), per-class mAP, times), with more as attributes. In half
    precision (on CUDA only) a copy is run, so a given model keeps its weights. `wandb_logger`, if given, gets the
    summary by its `log`. `trace` has no effect: networks always run untraced. With `single_cls` or `agnostic_nms`
    classes suppress one another.
    """
    data = load_data_yaml(data)
    check_thresholds(conf_thres, iou_thres)
    alone = model is None
    split = task if task in SPLITS else "val"
    if alone:
        save_dir = save_dir if Path(save_dir).name else increment_path("runs/test/exp", exist_ok=False)
        model, imgsz = _load(weights, data, single_cls, imgsz, select_device(device, batch_size))
    was_training = model.training
    network = _runnable(model, half_precision)
    loader = dataloader
    if loader is None:
        speed = {"workers": workers, "cache": cache_images, "cache_dir": cache_dir, "worker_tensor": fast_dataloader}
        loader = _loader(data.split(split), imgsz, batch_size, network.stride, single_cls, speed)
    try:
        outputs = Outputs(Path(save_dir), data, single_cls, loader.dataset, alone)
        outputs.check_labels(needed=alone and not (save_json or save_txt))
        if save_txt or save_hybrid:
            outputs.add_text(save_conf)
        if save_json:
            stem = Path(_listed(weights)[0]).stem if weights else ""
            outputs.add_json(find_annotations(data, split, annotations), is_coco, f"{stem}_predictions.json")
        if plots:
            outputs.add_pictures()
        if v5_metric:
            print("Testing with YOLOv5 AP metric...")
        agnostic = single_cls or agnostic_nms
        predict = ValidationPredict(network, conf_thres, iou_thres, augment, agnostic, save_hybrid, compute_loss)
        predict.warm_up(imgsz)
        options = {"imgsz": imgsz, "batch_size": batch_size, "single_cls": single_cls, "v5_metric": v5_metric}
        result = evaluate(predict, loader, len(outputs.names), **options, sinks=outputs.sinks)
    finally:
        if dataloader is None:
            loader.close()
        model.train(was_training)
    settings = {
        "weights": _listed(weights),
        "data": data.path,
        "task": task,
        "precision": str(predict.dtype).removeprefix("torch."),
    }
    settings |= {"conf_thres": conf_thres, "iou_thres": iou_thres, "agnostic": agnostic, "augment": augment, **options}
    result = outputs.finish(result, settings, verbose)
    if wandb_logger is not None:
        tags = ("precision", "recall", "mAP_0.5", "mAP_0.5:0.95", "box_loss", "obj_loss", "cls_loss")
        wandb_logger.log({f"test/{tag}": value for tag, value in zip(tags, result.results)})
    return result


# --- set-up -----------------------------------------------------------------------------------------------------------


def _listed(weights) -> list[str]:
    return [str(w) for w in ([weights] if isinstance(weights, str | Path) else weights or [])]


def _load(weights, data: DataYaml, single_cls: bool, imgsz: int, device: torch.device) -> tuple[nn.Module, int]:
    """The network of the weights on the device, and the image size its stride allows."""
    if not _listed(weights):
        raise UserError("no weights to evaluate: give --weights FILE")
    model = attempt_load(_listed(weights), map_location=device)
    known = len(model.names)
    if known != data.nc and not single_cls:
        raise UserError(
            f"{' '.join(_listed(weights))} knows {known} classes ({', '.join(map(str, model.names))[:80]}), but "
            f"{data.path} has nc: {data.nc}; take weights trained on this data set, or the data yaml of these weights"
        )
    return model.to(device), check_img_size(imgsz, s=max(32, int(model.stride.max())))


def _runnable(model: nn.Module, half_precision: bool) -> nn.Module:
    """The network in eval mode, on CUDA in half precision if wanted."""
    parameter = next(model.parameters())
    if half_precision and parameter.device.type == "cuda" and parameter.dtype == torch.float32:
        return half_copy(model)
    return model.eval()


def half_copy(model: nn.Module) -> nn.Module:
    """A half-precision copy in eval mode: the model itself, which may be in training, keeps its full precision."""
    return deepcopy(model).half().eval()


def _loader(source: Source, imgsz: int, batch_size: int, strides: torch.Tensor, single_cls: bool, speed: dict):
    """Rectangular batches with half a stride of border, as the reference evaluates."""
    stride = max(32, int(strides.max()))
    opt = SimpleNamespace(single_cls=single_cls)
    return create_dataloader(source, imgsz, batch_size, stride, opt, pad=0.5, rect=True, prefix="test: ", **speed)[0]
