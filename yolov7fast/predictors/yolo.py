"""YOLO networks and ensembles of them as predictors: one forward pass, then non-maximum suppression."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn

from yolov7fast.checkpoint.ensemble import ensemble_of, inference_network
from yolov7fast.core.device import HostMark
from yolov7fast.losses.yolo_loss import LOSS_NAMES
from yolov7fast.predictors.base import (
    DEFAULT,
    Finish,
    NetworkPredictor,
    Prediction,
    PredictOptions,
    Source,
    on_host,
    stored_size,
)
from yolov7fast.predictors.nms import non_max_suppression


class YoloPredictor(NetworkPredictor):
    """A network in eval mode with its suppression (`base.Predictor`).

    model: has `names` and `stride`. loss: called with the raw outputs and the targets; its second value begins with
    box, obj and cls.
    """

    img_size: int | None = None
    fixed_size = False
    border = 0.5  # as upstream evaluates
    uses_nms = True

    def __init__(self, model: nn.Module, options: PredictOptions = DEFAULT, loss: Callable | None = None):
        parameter = next(model.parameters())
        super().__init__(parameter.device)
        self.model, self.options, self.loss, self.dtype = model.eval(), options, loss, parameter.dtype
        self.thread_safe = self.device.type == "cpu"
        network: Any = model
        self.names: Sequence[str] = network.names
        self.stride = int(network.stride.max())
        self.precision = str(self.dtype).removeprefix("torch.")

    @torch.no_grad()
    def launch(self, images: torch.Tensor, shapes: Sequence[Any] = (), targets: torch.Tensor | None = None) -> Finish:
        images = images.to(self.device, non_blocking=True).to(self.dtype) / 255.0
        begun = self.queue.mark()
        output, raw_outputs = self.model(images, augment=self.options.augment)[:2]
        ended = self.queue.mark()
        losses: dict[str, torch.Tensor] = {}
        if self.loss is not None and raw_outputs is not None:
            losses.update(zip(LOSS_NAMES, self.loss(_as_float32(raw_outputs), targets)[1].detach()))
        # of the batch nothing but the output is kept
        return partial(self._finish, output, images.shape, targets, losses, (begun, ended))

    @torch.no_grad()
    def _finish(self, output: torch.Tensor, shape: torch.Size, targets, losses, marks) -> Prediction:
        """Suppress. shape: (B, 3, H, W) of the images. marks: before and after the network."""
        begun, ended = marks
        options = self.options
        with self.queue.beside(ended):
            clock = HostMark()
            labels = self._label_rows(targets, shape) if options.hybrid and targets is not None else ()
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
        return Prediction(detections, begun.elapsed_time(ended), clock.elapsed_time(HostMark()), losses)

    def _label_rows(self, targets: torch.Tensor, shape: torch.Size) -> list[torch.Tensor]:
        """Each image's labels (m, 5): class, xywh in pixels of the batch."""
        b, _, h, w = shape
        rows = targets[:, 1:].to(self.device, self.dtype) * torch.tensor([1, w, h, w, h]).to(self.device, self.dtype)
        return [rows[targets[:, 0].to(self.device) == i] for i in range(b)]

    def warm_up(self, img_size: int) -> None:
        if self.device.type == "cuda":
            with torch.no_grad():
                self.model(torch.zeros(1, 3, img_size, img_size, device=self.device, dtype=self.dtype))


def load_predictor(sources: Sequence[Source], device: torch.device, options: PredictOptions) -> YoloPredictor:
    """The averaged network of a checkpoint, fused; several make an ensemble."""
    networks = [inference_network(source.content, source.path) for source in sources]
    model = ensemble_of(networks, [source.path for source in sources]).to(device)
    predictor = YoloPredictor(model.half() if wants_half(model, options) else model, options)
    sizes = {stored_size(source.content) for source in sources}
    predictor.img_size = sizes.pop() if len(sizes) == 1 else None
    return predictor


def network_predictor(model: nn.Module, options: PredictOptions, loss: Callable | None = None) -> YoloPredictor:
    """A network in memory, as training has it. In half precision a copy is run, so that it keeps its weights."""
    return YoloPredictor(half_copy(model) if wants_half(model, options) else model, options, loss)


def wants_half(model: nn.Module, options: PredictOptions) -> bool:
    """Half precision pays on CUDA alone."""
    parameter = next(model.parameters())
    return options.half and parameter.device.type == "cuda" and parameter.dtype == torch.float32


def half_copy(model: nn.Module) -> nn.Module:
    """A half-precision copy: the model itself, which may be in training, keeps its full precision."""
    return deepcopy(model).half()


def _as_float32(outputs):
    """Raw outputs for the loss, half precision made float32; however they are nested, as heads differ in that."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.dtype == torch.float16 else outputs
    return type(outputs)(map(_as_float32, outputs)) if isinstance(outputs, list | tuple) else outputs
