"""What to export: the flags of export.py as a checked plan, and the metadata of its files."""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import nearest
from yolov7fast.inference.export.export_network import ExportSource
from yolov7fast.nn.detr_model import cells
from yolov7fast.nn.multihead import MultiHeadDetect
from yolov7fast.predictors.export_metadata import AXES, ExportForm, ExportMetadata, output_meanings
from yolov7fast.predictors.nms import CLASS_OFFSET, MAX_DETECTIONS, check_thresholds

FORMATS = ("onnx", "torchscript", "openvino")
UPSTREAM_TOPK = 100  # of --end2end


@dataclass(frozen=True)
class NmsSettings:
    """The settings of the NMS in an exported file."""

    conf_thres: float = 0.25
    iou_thres: float = 0.45
    topk: int = MAX_DETECTIONS
    class_offset: float = float(CLASS_OFFSET)  # pixels between classes; 0: class-agnostic


@dataclass(frozen=True)
class ExportPlan:
    """One export: a form at a size, for all formats."""

    form: ExportForm = ExportForm.RAW
    size: tuple[int, int] = (640, 640)  # height, width
    batch: int = 1
    free: tuple[str, ...] = ()  # dynamic axes: batch, height, width
    nms: NmsSettings = field(default_factory=NmsSettings)
    uint8: bool = False
    half: bool = False
    simplify: bool = False

    def check(self, source: ExportSource) -> None:
        """Raise UserError if the network cannot be exported in this way."""
        size = " ".join(map(str, self.size))
        for name, side in zip(("height", "width"), self.size):
            if side < source.stride or side % source.stride:
                near = max(round(side / source.stride), 1) * source.stride
                raise UserError(
                    f"--img-size {size}: the {name} must be a multiple of {source.stride}, the largest stride of "
                    f"{source.weights}; take {near}"
                )
        if source.is_yolo:
            return
        if self.form not in (ExportForm.RAW, ExportForm.NMS):
            raise UserError(
                f"{source.weights} is a {source.kind} network, which has no grid of boxes to suppress: leave out "
                "--grid and --end2end, and give --nms for detections or nothing for logits and boxes"
            )
        if self.half:
            raise UserError(f"--half is for YOLO networks: {source.weights} is a {source.kind} network")
        least = source.least_cells
        if least and cells(*self.size, source.cell_strides) < least:
            raise UserError(
                f"--img-size {size} is too small for {source.weights}: it selects its {least} queries among as many "
                "cells; take a larger size"
            )

    def input_shape(self, batch: int | str, height: int | str, width: int | str) -> list[int | str]:
        """Shape of the input `images`."""
        return [batch, height, width, 3] if self.uint8 else [batch, 3, height, width]

    @property
    def named_input_shape(self) -> list[int | str]:
        """The same with names for dynamic axes."""
        sizes = zip(AXES, (self.batch, *self.size))
        return self.input_shape(*(name if name in self.free else size for name, size in sizes))


def plan_of(opt: Namespace, source: ExportSource) -> ExportPlan:
    """The plan of the flags of export.py. Without --img-size, a DETR network is exported at its training size."""
    if opt.nms or opt.include_nms:
        form = ExportForm.NMS
    elif opt.end2end:
        form = ExportForm.TENSORRT if opt.max_wh is None else ExportForm.END2END
    else:
        form = ExportForm.GRID if opt.grid else ExportForm.RAW
    free = AXES if form is ExportForm.NMS or (opt.dynamic and not opt.end2end) else ()
    if opt.dynamic_batch and form is not ExportForm.NMS:
        free = ("batch",)  # has priority over --dynamic
    own_size = not source.is_yolo and "img_size" not in opt.given
    sizes = [source.img_size] if own_size else opt.img_size
    topk = opt.topk_all or (MAX_DETECTIONS if form is ExportForm.NMS else UPSTREAM_TOPK)
    offset = float(CLASS_OFFSET) if opt.max_wh is None else float(opt.max_wh)
    return ExportPlan(
        form=form,
        size=(sizes[0], sizes[-1]),
        batch=opt.batch_size,
        free=free,
        nms=NmsSettings(opt.conf_thres, opt.iou_thres, topk, offset),
        uint8=opt.uint8,
        half=opt.half,
        simplify=opt.simplify,
    )


def check_options(opt: Namespace) -> None:
    """Raise UserError for flags that contradict each other or are not supported."""
    check_thresholds(opt.conf_thres, opt.iou_thres)
    for flag in ("fp16", "int8"):
        if getattr(opt, flag):
            raise UserError(f"--{flag} is for CoreML files, which are not written here: leave it out, or give --half")
    if opt.device != "cpu":
        raise UserError(
            f"--device {opt.device}: networks are traced on the CPU, and files name no device: leave it out"
        )
    if opt.end2end and not opt.grid:
        raise UserError("--end2end needs --grid: NMS works on decoded boxes; give --grid --end2end, or --nms")
    if (opt.nms or opt.include_nms) and opt.end2end:
        raise UserError("--nms and --end2end are two forms of NMS inside the file: leave one of them out")
    if opt.max_wh is not None and not (opt.end2end or opt.nms or opt.include_nms):
        raise UserError("--max-wh belongs to NMS inside the file: give --grid --end2end or --nms with it")
    if len(opt.img_size) > 2:
        raise UserError(f"--img-size {' '.join(map(str, opt.img_size))}: give one size, or height and width")


def formats_of(opt: Namespace) -> list[str]:
    """The formats of `--format onnx,openvino` or `--format onnx openvino`, each once."""
    given = [name.strip().lower() for word in opt.format for name in str(word).split(",") if name.strip()]
    for name in given:
        if name not in FORMATS:
            raise UserError(f"--format {name} is not known{nearest(name, FORMATS)}; it is one of {', '.join(FORMATS)}")
    if not given:
        raise UserError(f"--format is empty: give one or several of {', '.join(FORMATS)}")
    return list(dict.fromkeys(given))


def metadata_of(source: ExportSource, plan: ExportPlan) -> ExportMetadata:
    """The metadata of the files of an export."""
    nms = plan.nms if plan.form.has_nms else None
    head = source.model.model[-1] if source.is_yolo and plan.form is ExportForm.RAW else None
    classes: list[list[int]] = []  # of each head, in the order of its columns
    if isinstance(head, MultiHeadDetect):
        places: Any = head.places
        classes = [[int(place) - 5 for place in places[first + 5 : last]] for first, last in head.place_bounds]
    strides = source.cell_strides if source.least_cells else head.stride.int().tolist() if head else []
    return ExportMetadata(
        names=[str(name) for name in source.names],
        kind=source.kind,
        form=plan.form,
        stride=source.stride,
        size=list(plan.size),
        batch=plan.batch,
        free=list(plan.free),
        outputs=output_meanings(plan.form, source.raw_outputs),
        dtype="uint8" if plan.uint8 else "float32",
        layout="NHWC" if plan.uint8 else "NCHW",
        colour="BGR" if plan.uint8 else "RGB",
        scale=1.0 if plan.uint8 else 1 / 255,
        half=plan.half,
        conf_thres=nms and nms.conf_thres,
        iou_thres=nms and nms.iou_thres if source.is_yolo else None,
        topk=nms and nms.topk,
        class_offset=nms and nms.class_offset if source.is_yolo else None,
        strides=strides,
        anchors=head.anchor_grid.view(head.nl, -1, 2).tolist() if head else [],
        head_classes=classes,
        least_cells=source.least_cells,
        weights=source.weights.name,
    )
