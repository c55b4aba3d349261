"""YOLO networks and ensembles as predictors: one forward pass, then NMS."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn

from yolov7fast.checkpoint.ensemble import ensemble_of, inference_network
from yolov7fast.core.device import HostMark
from yolov7fast.losses.yolo_loss import LOSS_NAMES
from yolov7fast.nn.model import Model
from yolov7fast.predictors.nms import non_max_suppression
from yolov7fast.predictors.predictor import (
    DEFAULT,
    Finish,
    NetworkPredictor,
    Prediction,
    PredictOptions,
    WeightsFile,
    on_host,
    stored_size,
)


class YoloPredictor(NetworkPredictor):
    """A YOLO network in eval mode with NMS.

    Args:
        model: network with `names` and `stride`.
        options: thresholds and other options.
        loss: called with the raw outputs and the targets; its second result starts with box, obj and cls.
    """

    border = 0.5  # as in upstream's evaluation

    def __init__(self, model: nn.Module, options: PredictOptions = DEFAULT, loss: Callable | None = None):
        parameter = next(model.parameters())
        super().__init__(parameter.device)
        self.model, self.options, self.loss, self.dtype = model.eval(), options, loss, parameter.dtype
        network: Any = model
        self.names = network.names
        self.stride = int(network.stride.max())
        self.precision = str(self.dtype).removeprefix("torch.")

    @torch.no_grad()
    def launch(self, images: torch.Tensor, shapes: Sequence[Any] = (), targets: torch.Tensor | None = None) -> Finish:
        images = images.to(self.device, non_blocking=True).to(self.dtype) / 255.0
        start = self.queue.mark()
        output, raw_outputs = self.model(images, augment=self.options.augment)[:2]
        end = self.queue.mark()
        losses: dict[str, torch.Tensor] = {}
        if self.loss is not None and raw_outputs is not None:
            losses.update(zip(LOSS_NAMES, self.loss(_as_float32(raw_outputs), targets)[1].detach()))
        # only the output of the batch is kept, not its images
        return partial(self._finish, output, images.shape, targets, losses, (start, end))

    @torch.no_grad()
    def _finish(self, output: torch.Tensor, shape: torch.Size, targets, losses, marks) -> Prediction:
        """Run NMS. shape: (B, 3, H, W) of the images. marks: queue marks before and after the network."""
        start, end = marks
        options = self.options
        with self.queue.beside(end):
            clock = HostMark()
            labels = []
            if options.hybrid and targets is not None:  # of each image (m, 5): class, xywh in pixels of the batch
                (b, _, h, w), rows = shape, targets.to(self.device, self.dtype)
                pixels = rows[:, 1:] * torch.tensor([1, w, h, w, h]).to(rows)
                labels = [pixels[targets[:, 0].to(self.device) == i] for i in range(b)]
            detections = non_max_suppression(
                output,
                options.conf_thres,
                options.iou_thres,
                options.classes,
                agnostic=options.agnostic or options.single_cls,
                multi_label=options.multi_label,
                labels=labels,
            )
            detections = on_host(detections)
        return Prediction(detections, start.elapsed_time(end), clock.elapsed_time(HostMark()), losses)

    def warm_up(self, img_size: int) -> None:
        if self.device.type == "cuda":
            with torch.no_grad():
                self.model(torch.zeros(1, 3, img_size, img_size, device=self.device, dtype=self.dtype))


def load_predictor(files: Sequence[WeightsFile], device: torch.device, options: PredictOptions) -> YoloPredictor:
    """The fused EMA network of a checkpoint, or an ensemble of several."""
    networks = [inference_network(file.content, file.path) for file in files]
    model = ensemble_of(networks, [file.path for file in files]).to(device)
    dtype = half_dtype(model, options)
    predictor = YoloPredictor(model if dtype is None else model.to(dtype), options)
    sizes = {stored_size(file.content) for file in files}
    predictor.img_size = sizes.pop() if len(sizes) == 1 else None
    return predictor


def network_predictor(model: nn.Module, options: PredictOptions, loss: Callable | None = None) -> YoloPredictor:
    """The predictor of a network in memory, as in training. In half precision it runs a fused, channels-last copy."""
    dtype = half_dtype(model, options)
    if dtype is not None:
        model = deepcopy(model)
        if isinstance(model, Model):
            model.fuse(verbose=False)
        model.to(dtype=dtype, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return YoloPredictor(model, options, loss)


def half_dtype(model: nn.Module, options: PredictOptions) -> torch.dtype | None:
    """The type of half precision in which to run, on CUDA only; None: that of the network."""
    parameter = next(model.parameters())
    if not options.half or parameter.device.type != "cuda" or parameter.dtype != torch.float32:
        return None
    return torch.bfloat16 if options.bf16 else torch.float16


def _as_float32(outputs):
    """Raw outputs in any nesting of lists and tuples, with half-precision tensors converted to float32."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
    return type(outputs)(map(_as_float32, outputs)) if isinstance(outputs, list | tuple) else outputs
