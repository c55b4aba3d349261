"""Configuration of an evaluation: how a detector is evaluated, and which outputs are written."""

from dataclasses import dataclass, fields
from typing import Any

from yolov7fast.data.data_yaml import SPLITS
from yolov7fast.predictors.nms import check_thresholds
from yolov7fast.predictors.predictor import PredictOptions

TRAINING_IOU = 0.6  # NMS IoU of the validations in training, as upstream has it; test.py's own default is 0.65


@dataclass(frozen=True)
class EvalConfig:
    """How a detector is measured, and the outputs. Checked when it is built: invalid values raise UserError."""

    img_size: int = 640  # longer side of the images
    batch_size: int = 32
    conf_thres: float = 0.001  # confidence threshold
    iou_thres: float = TRAINING_IOU  # of NMS
    single_cls: bool = False  # all labels and detections count as class 0
    agnostic_nms: bool = False  # classes suppress one another
    augment: bool = False  # test-time augmentation
    v5_metric: bool = False  # AP with recall extended to 1.0
    half: bool = True  # half precision on CUDA
    bf16: bool = False  # of which kind: bfloat16, else float16
    trust_torchscript: bool = False  # run a TorchScript file that was not exported on this machine
    task: str = "val"
    # outputs
    save_txt: bool = False  # labels/*.txt
    save_conf: bool = False  # with the score in each line
    save_hybrid: bool = False  # labels and detections together, in labels/*.txt
    save_json: bool = False  # COCO rows, and pycocotools' numbers
    annotations: str | None = None  # COCO annotation file; None: looked for, else built from the labels
    is_coco: bool = False  # class ids are COCO's 80, whatever the names
    plots: bool = True  # grids of the first batches, curves, confusion matrix
    verbose: bool = False  # rows of single classes and sizes
    standalone: bool = False  # test.py, which prints more than a validation during training

    def __post_init__(self):
        check_thresholds(self.conf_thres, self.iou_thres)

    @property
    def split(self) -> str:
        """The part of the data set that is measured: speed and study use val."""
        return self.task if self.task in SPLITS else "val"

    def predict_options(self) -> PredictOptions:
        """Options of the predictor; every class of a box above the threshold counts."""
        return PredictOptions(
            conf_thres=self.conf_thres,
            iou_thres=self.iou_thres,
            agnostic=self.agnostic_nms,
            single_cls=self.single_cls,
            multi_label=True,
            augment=self.augment,
            hybrid=self.save_hybrid,
            half=self.half,
            bf16=self.bf16,
            trust_torchscript=self.trust_torchscript,
        )

    def settings(self) -> dict[str, Any]:
        """The settings written to metrics.json."""
        names = ("task", "conf_thres", "iou_thres", "augment", "batch_size", "single_cls", "v5_metric")
        agnostic = self.single_cls or self.agnostic_nms
        return {name: getattr(self, name) for name in names} | {"agnostic": agnostic, "imgsz": self.img_size}


def from_options(options: Any, **changes: Any) -> EvalConfig:
    """The configuration of a command's flags; the default for a flag it lacks. changes: take precedence."""
    given = {"half": not getattr(options, "no_half", False), **vars(options), **changes}
    return EvalConfig(**{f.name: given[f.name] for f in fields(EvalConfig) if f.name in given})
