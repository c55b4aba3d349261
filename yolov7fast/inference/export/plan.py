"""What is to be exported, decided and checked before anything is traced."""

from dataclasses import dataclass, field
from typing import Any

from yolov7fast.core.errors import UserError
from yolov7fast.inference.export.network import Source
from yolov7fast.inference.export.suppression import Suppression
from yolov7fast.nn.detr_model import cells
from yolov7fast.nn.multihead import MultiHeadDetect
from yolov7fast.predictors.exported.forms import Form, meanings
from yolov7fast.predictors.exported.metadata import AXES, Metadata

FORMATS = ("onnx", "torchscript", "openvino")


@dataclass(frozen=True)
class Plan:
    """One export: a form at a size, in as many formats as wanted."""

    form: Form = Form.RAW
    size: tuple[int, int] = (640, 640)  # height, width
    batch: int = 1
    free: tuple[str, ...] = ()  # which of batch, height, width the runtime may choose
    suppression: Suppression = field(default_factory=Suppression)
    uint8: bool = False
    half: bool = False
    simplify: bool = False

    def check(self, source: Source) -> None:
        """Refuse what this network cannot be exported as."""
        for name, side in zip(("height", "width"), self.size):
            if side < source.stride or side % source.stride:
                near = max(round(side / source.stride), 1) * source.stride
                raise UserError(
                    f"--img-size {' '.join(map(str, self.size))}: the {name} must be a multiple of {source.stride}, "
                    f"the largest stride of {source.weights}; take {near}"
                )
        if not source.is_yolo:
            self._check_detr(source)

    def _check_detr(self, source: Source) -> None:
        if self.form not in (Form.RAW, Form.NMS):
            raise UserError(
                f"{source.weights} is a {source.kind} network, which has no grid of boxes to suppress: leave out "
                "--grid and --end2end, and give --nms for detections or nothing for logits and boxes"
            )
        if self.half:
            raise UserError(f"--half is for YOLO networks: {source.weights} is a {source.kind} network")
        least = least_cells(source)
        if least and cells(*self.size, cell_strides(source)) < least:
            raise UserError(
                f"--img-size {' '.join(map(str, self.size))} is too small for {source.weights}: it picks its {least} "
                "queries among as many cells; take a larger size"
            )

    def input_shape(self, batch: int | str, height: int | str, width: int | str) -> list[int | str]:
        """Of `images`, as the file takes them."""
        return [batch, height, width, 3] if self.uint8 else [batch, 3, height, width]

    @property
    def named_input_shape(self) -> list[int | str]:
        """The same with words for what is free."""
        sizes = dict(zip(AXES, (self.batch, *self.size)))
        return self.input_shape(*(name if name in self.free else size for name, size in sizes.items()))


def least_cells(source: Source) -> int:
    """Places in the feature maps that the network needs: one for each query that it picks there."""
    return source.model.network.config.num_queries if not source.is_yolo and source.model.kind.picks_cells else 0


def cell_strides(source: Source) -> list[int]:
    return [int(stride) for stride in source.model.network.config.feat_strides]


def raw_outputs(source: Source) -> int:
    """How many raw outputs a YOLO network has; 0 for DETR networks."""
    if not source.is_yolo:
        return 0
    head = source.model.model[-1]
    return head.nl * (len(head.heads) if isinstance(head, MultiHeadDetect) else 1)


def describe(source: Source, plan: Plan) -> Metadata:
    """The metadata of the files of an export."""
    inside = plan.suppression if plan.form.has_suppression else None
    raw = source.is_yolo and plan.form is Form.RAW
    head = source.model.model[-1] if raw else None
    several = isinstance(head, MultiHeadDetect)
    return Metadata(
        names=[str(name) for name in source.names],
        kind=source.kind,
        form=plan.form,
        stride=source.stride,
        size=list(plan.size),
        batch=plan.batch,
        free=list(plan.free),
        outputs=meanings(plan.form, raw_outputs(source)),
        dtype="uint8" if plan.uint8 else "float32",
        layout="NHWC" if plan.uint8 else "NCHW",
        colour="BGR" if plan.uint8 else "RGB",
        scale=1.0 if plan.uint8 else 1 / 255,
        half=plan.half,
        conf_thres=inside and inside.conf_thres,
        iou_thres=inside and inside.iou_thres if source.is_yolo else None,
        topk=inside and inside.topk,
        class_offset=inside and inside.class_offset if source.is_yolo else None,
        strides=cell_strides(source) if least_cells(source) else head.stride.int().tolist() if head else [],
        anchors=head.anchor_grid.view(head.nl, -1, 2).tolist() if head else [],
        head_classes=[sorted_places(head, k) for k in range(len(head.heads))] if several else [],
        least_cells=least_cells(source),
        weights=source.weights.name,
    )


def sorted_places(head: MultiHeadDetect, k: int) -> list[int]:
    """Global classes of head k, in the order of its class columns."""
    first, last = head.place_bounds[k]
    places: Any = head.places
    return [int(place) - 5 for place in places[first + 5 : last]]
