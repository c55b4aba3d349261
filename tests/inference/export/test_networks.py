"""Every kind of network: exported with suppression inside and free sizes, and proved against its checkpoint."""

import onnx
import pytest

from tests.inference.export.networks import ROOT, detr_source, write_network
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.inference.export.network import load_source
from yolov7fast.inference.export.plan import Plan
from yolov7fast.inference.export.proof import BOUNDS
from yolov7fast.inference.export.run import export_files
from yolov7fast.inference.export.suppression import Suppression
from yolov7fast.predictors.exported.forms import Form

FREE = ("batch", "height", "width")
CONFIGURATIONS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "cfg").glob("*/*.yaml"))
# one of each kind of head, the others with `make test-slow`
QUICK = (
    "cfg/training/yolov7-tiny.yaml",
    "cfg/deploy/yolov7-tiny.yaml",
    "cfg/training/yolov7-tiny-1b4h.yaml",
    "cfg/training/yolov7-tiny-1b4h-attn.yaml",
)


def export_all(weights, folder, formats=("onnx",), form: Form = Form.NMS):
    source = load_source(weights)
    side = 2 * source.stride
    plan = Plan(form, (side, side), free=FREE, suppression=Suppression(0.0001, 0.6))
    return export_files(source, plan, formats, folder=folder)


@pytest.mark.parametrize("cfg", QUICK)
def test_each_kind_of_head_is_exported_and_compared(cfg, tmp_path):
    (file,) = export_all(write_network(cfg, tmp_path / "best.pt"), tmp_path)
    assert file.report.difference.within(BOUNDS) and file.report.detections > 0 and not file.report.undecided


@pytest.mark.slow
@pytest.mark.parametrize("cfg", CONFIGURATIONS)
def test_every_configuration_is_exported_and_compared(cfg, tmp_path):
    (file,) = export_all(write_network(cfg, tmp_path / "best.pt"), tmp_path)
    assert file.report.difference.within(BOUNDS) and file.report.detections > 0 and not file.report.undecided


@pytest.mark.slow
@pytest.mark.parametrize("cfg", ["cfg/training/yolov7-w6.yaml", "cfg/training/yolov7-1b4h.yaml"])
@pytest.mark.parametrize("file_format", ["torchscript", "openvino"])
def test_other_formats_hold_the_other_heads(cfg, file_format, tmp_path):
    (file,) = export_all(write_network(cfg, tmp_path / "best.pt"), tmp_path, [file_format], Form.GRID)
    assert file.report.difference.within(BOUNDS)


def test_training_networks_are_merged_first(tmp_path):
    """Auxiliary heads, implicit vectors, BatchNorm and branches: nothing of training is left in the graph."""
    (file,) = export_all(write_network("cfg/training/yolov7-tiny.yaml", tmp_path / "best.pt"), tmp_path)
    model = onnx.load(file.path)
    assert not any(node.op_type == "BatchNormalization" for node in model.graph.node)
    assert not any("implicit" in tensor.name for tensor in model.graph.initializer)


@pytest.mark.slow
def test_the_auxiliary_head_is_left_out(tmp_path):
    weights = write_network("cfg/training/yolov7-w6.yaml", tmp_path / "best.pt")
    (file,) = export_all(weights, tmp_path, form=Form.RAW)
    assert len(file.report.cases) == 3 and len(onnx.load(file.path).graph.output) == 4


def test_one_class_says_everything_with_its_objectness(tmp_path):
    weights = write_network("cfg/training/yolov7-tiny.yaml", tmp_path / "best.pt", nc=1)
    (file,) = export_all(weights, tmp_path)
    assert file.report.difference.within(BOUNDS) and file.report.detections > 0


@pytest.mark.parametrize("form", [Form.RAW, Form.GRID])
def test_several_heads_are_told_apart_in_every_form(form, tmp_path):
    weights = write_network("cfg/training/yolov7-tiny-1b4h.yaml", tmp_path / "best.pt", nc=5)  # heads of 2, 1, 1, 1
    (file,) = export_all(weights, tmp_path, form=form)
    assert file.report.difference.within(BOUNDS)


@needs_transformers
@pytest.mark.parametrize("form", [Form.NMS, Form.RAW])
def test_detr_is_exported_and_compared(form, tmp_path):
    source = detr_source("detr", tmp_path)
    (file,) = export_files(source, Plan(form, (96, 96), free=FREE), ["onnx"])
    assert file.path.name == "detr.onnx" and file.report.difference.within(BOUNDS) and file.report.detections > 0


@needs_transformers
@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["onnx", "openvino"])
@pytest.mark.parametrize("architecture", ["detr", "rtdetr_v2"])
def test_detr_and_rtdetr_are_exported_in_every_format(architecture, file_format, tmp_path):
    source = detr_source(architecture, tmp_path)
    for form in (Form.NMS, Form.RAW):
        (file,) = export_files(source, Plan(form, (96, 96), free=FREE, uint8=form is Form.NMS), [file_format])
        assert file.report.difference.within(BOUNDS) and file.report.detections > 0 and not file.report.undecided


@needs_transformers
def test_what_detr_networks_cannot_be_is_refused(tmp_path):
    from yolov7fast.core.errors import UserError

    source = detr_source("rtdetr_v2", tmp_path)
    for plan, message in (
        (Plan(Form.GRID, (96, 96)), "which has no grid of boxes to suppress: leave out --grid and --end2end"),
        (Plan(Form.NMS, (96, 96), half=True), "--half is for YOLO networks"),
        (Plan(Form.NMS, (0, 96)), "the height must be a multiple of 32"),
    ):
        with pytest.raises(UserError, match=message):
            export_files(source, plan, ["onnx"])
    source.model.network.config.num_queries = 1000
    with pytest.raises(UserError, match=r"is too small for .*: it picks its 1000 queries among as many cells"):
        export_files(source, Plan(Form.NMS, (96, 96)), ["onnx"])
