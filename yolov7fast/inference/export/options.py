"""From the flags of export.py to a plan: what excludes what is said before anything is loaded."""

from argparse import Namespace

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import nearest
from yolov7fast.inference.export.network import Source
from yolov7fast.inference.export.plan import FORMATS, Plan
from yolov7fast.inference.export.suppression import DEFAULT_TOPK, Suppression
from yolov7fast.predictors.exported.forms import Form
from yolov7fast.predictors.exported.metadata import AXES
from yolov7fast.predictors.nms import CLASS_OFFSET, check_thresholds

UPSTREAM_TOPK = 100  # of --end2end


def check_options(opt: Namespace) -> None:
    """Refuse flags that contradict one another, or ask for what is not made here."""
    check_thresholds(opt.conf_thres, opt.iou_thres)
    for flag in ("fp16", "int8"):
        if getattr(opt, flag):
            raise UserError(f"--{flag} is for CoreML files, which are not written here: leave it out, or give --half")
    if opt.device != "cpu":
        raise UserError(
            f"--device {opt.device}: networks are traced on the CPU, and files name no device: leave it out"
        )
    if opt.end2end and not opt.grid:
        raise UserError("--end2end needs --grid: suppression works on decoded boxes; give --grid --end2end, or --nms")
    if (opt.nms or opt.include_nms) and opt.end2end:
        raise UserError("--nms and --end2end are two forms of suppression inside the file: leave one of them out")
    if opt.max_wh is not None and not (opt.end2end or opt.nms or opt.include_nms):
        raise UserError("--max-wh belongs to suppression inside the file: give --grid --end2end or --nms with it")
    if len(opt.img_size) > 2:
        raise UserError(f"--img-size {' '.join(map(str, opt.img_size))}: give one size, or height and width")


def formats_of(opt: Namespace) -> list[str]:
    """`--format onnx,openvino` or `--format onnx openvino` -> names, each once."""
    given = [name.strip().lower() for word in opt.format for name in str(word).split(",") if name.strip()]
    for name in given:
        if name not in FORMATS:
            raise UserError(f"--format {name} is not known{nearest(name, FORMATS)}; it is one of {', '.join(FORMATS)}")
    if not given:
        raise UserError(f"--format is empty: give one or several of {', '.join(FORMATS)}")
    return list(dict.fromkeys(given))


def form_of(opt: Namespace) -> Form:
    if opt.nms or opt.include_nms:
        return Form.NMS
    if opt.end2end:
        return Form.TENSORRT if opt.max_wh is None else Form.END2END
    return Form.GRID if opt.grid else Form.RAW


def plan_of(opt: Namespace, source: Source) -> Plan:
    """What the flags mean for a network. Not given, --img-size of a DETR network is what it was trained for."""
    form = form_of(opt)
    own_size = not source.is_yolo and "img_size" not in opt.given
    sizes = [source.img_size] if own_size else opt.img_size
    topk = opt.topk_all or (DEFAULT_TOPK if form is Form.NMS else UPSTREAM_TOPK)
    offset = float(CLASS_OFFSET) if opt.max_wh is None else float(opt.max_wh)
    return Plan(
        form=form,
        size=(sizes[0], sizes[-1]),
        batch=opt.batch_size,
        free=free_of(opt, form),
        suppression=Suppression(opt.conf_thres, opt.iou_thres, topk, offset),
        uint8=opt.uint8,
        half=opt.half,
        simplify=opt.simplify,
    )


def free_of(opt: Namespace, form: Form) -> tuple[str, ...]:
    """Which sizes stay free: all with --nms or --dynamic; the batch with --dynamic-batch, which wins over --dynamic."""
    if form is Form.NMS:
        return AXES
    if opt.dynamic_batch:
        return ("batch",)
    return AXES if opt.dynamic and not opt.end2end else ()
