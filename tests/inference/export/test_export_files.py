"""Every form and every kind of network: names, shapes, metadata, and the same result as the .pt file."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from tests.inference.export.networks import ROOT, detr_source, write_network
from tests.mini_network import NAMES
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.inference.export.export_files import export_files
from yolov7fast.inference.export.export_network import load_source
from yolov7fast.inference.export.export_plan import ExportPlan, NmsSettings
from yolov7fast.inference.export.export_proof import BOUNDS
from yolov7fast.predictors.export_metadata import AXES, ExportForm


def shapes(values) -> dict[str, list]:
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def exported(source, folder, plan: ExportPlan, file_format: str = "onnx"):
    """One file of a source, in a folder of its own."""
    (file,) = export_files(source, plan, [file_format], folder=folder)
    return file


def test_nms_takes_any_batch_and_any_size_and_says_what_it_gives(mini, tmp_path):
    plan = ExportPlan(ExportForm.NMS, (96, 128), free=AXES, nms=NmsSettings(0.3, 0.5))
    file = exported(mini, tmp_path, plan)
    model = onnx.load(file.path)
    assert shapes(model.graph.input) == {"images": ["batch", 3, "height", "width"]}
    assert shapes(model.graph.output) == {
        "num_dets": ["batch", 1],
        "det_boxes": ["batch", 300, 4],
        "det_scores": ["batch", 300],
        "det_classes": ["batch", 300],
    }
    session = onnxruntime.InferenceSession(file.path)
    for batch, height, width in ((1, 32, 32), (4, 64, 160), (2, 128, 96)):
        images = np.random.default_rng(0).random((batch, 3, height, width), np.float32)
        counts, boxes, _, _ = session.run(None, {"images": images})
        assert counts.shape == (batch, 1) and boxes.shape == (batch, 300, 4)
    assert [str(case) for case in file.report.cases] == ["1x96x128", "3x32x64", "2x32x128"]
    assert file.report.difference.box < 1e-3 and file.report.difference.score < 1e-4
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["names"]) == NAMES and json.loads(facts["free"]) == list(AXES)
    assert (facts["stride"], facts["size"], facts["batch"]) == ("32", "[96, 128]", "1")
    assert (facts["conf_thres"], facts["iou_thres"], facts["topk"]) == ("0.3", "0.5", "300")
    assert (facts["dtype"], facts["layout"], facts["colour"], facts["padding"]) == ("float32", "NCHW", "RGB", "114")
    assert facts["weights"] == "mini.pt" and facts["version"] and facts["kind"] == "yolo"
    assert set(json.loads(facts["outputs"])) == {"num_dets", "det_boxes", "det_scores", "det_classes"}


def test_without_flags_the_raw_outputs_of_each_level_at_a_fixed_size(mini, tmp_path):
    model = onnx.load(exported(mini, tmp_path, ExportPlan(ExportForm.RAW, (64, 96), batch=2)).path)
    assert shapes(model.graph.input) == {"images": [2, 3, 64, 96]}
    assert shapes(model.graph.output) == {
        "output": [2, 3, 8, 12, 8],
        "output_1": [2, 3, 4, 6, 8],
        "output_2": [2, 3, 2, 3, 8],
    }


def test_grid_gives_decoded_predictions(mini, tmp_path):
    file = exported(mini, tmp_path, ExportPlan(ExportForm.GRID, (64, 96), free=("batch",)))
    assert shapes(onnx.load(file.path).graph.output) == {"output": ["batch", 3 * (96 + 24 + 6), 8]}
    images = torch.rand(3, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = mini.model(images)[0]
    found = onnxruntime.InferenceSession(file.path).run(None, {"images": images.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), wanted, atol=1e-3, rtol=0)


def test_the_tensorrt_graph_is_proved_up_to_its_plugin(mini, tmp_path):
    file = exported(
        mini, tmp_path, ExportPlan(ExportForm.TENSORRT, (64, 64), free=("batch",), nms=NmsSettings(topk=100))
    )
    model = onnx.load(file.path)
    assert model.graph.node[-1].op_type == "EfficientNMS_TRT"
    assert {entry.domain for entry in model.opset_import} == {"", "TRT"}
    assert file.report.difference.box < 1e-3 and "not run" in str(file.report)


def test_half_precision_halves_the_file_within_the_stated_bounds(mini, tmp_path):
    half = exported(mini, tmp_path, ExportPlan(ExportForm.NMS, (96, 96), free=AXES, half=True))
    assert half.report.bounds == (2.0, 0.05)
    assert half.report.difference.box > 1e-3 and half.report.difference.within(half.report.bounds)
    model = onnx.load(half.path)
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    weights = [w for w in model.graph.initializer if len(w.dims) == 4 and np.prod(w.dims) > 16]
    assert weights and all(w.data_type == onnx.TensorProto.FLOAT16 for w in weights)


def test_simplify_takes_idle_nodes_out(mini, tmp_path):
    plans = (ExportPlan(ExportForm.GRID, (64, 64), free=AXES, simplify=on) for on in (False, True))
    plain, simple = (len(onnx.load(exported(mini, tmp_path, plan).path).graph.node) for plan in plans)
    assert simple < 0.8 * plain


def test_torchscript_answers_bit_by_bit_as_the_checkpoint(mini, tmp_path):
    file = exported(mini, tmp_path, ExportPlan(ExportForm.RAW, (64, 96), free=AXES), "torchscript")
    assert file.path.name == "mini.torchscript.pt"
    assert file.report.difference == (0.0, 0.0)


CONFIGURATIONS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "cfg").glob("*/*.yaml"))
# one of each kind of head, the others with `make test-slow`
QUICK = (
    "cfg/training/yolov7-tiny.yaml",
    "cfg/deploy/yolov7-tiny.yaml",
    "cfg/training/yolov7-tiny-1b4h.yaml",
    "cfg/training/yolov7-tiny-1b4h-attn.yaml",
)


def export_all(weights, folder, formats=("onnx",), form: ExportForm = ExportForm.NMS):
    source = load_source(weights)
    side = 2 * source.stride
    plan = ExportPlan(form, (side, side), free=AXES, nms=NmsSettings(0.0001, 0.6))
    return export_files(source, plan, formats, folder=folder)


@pytest.mark.parametrize("cfg", QUICK)
def test_each_kind_of_head_is_exported_and_compared(cfg, tmp_path):
    (file,) = export_all(write_network(cfg, tmp_path / "best.pt"), tmp_path)
    assert file.report.difference.within(BOUNDS) and file.report.detections > 0 and not file.report.undecided
    graph = onnx.load(file.path).graph  # branches, BatchNorm and implicit vectors are merged
    assert not any(node.op_type == "BatchNormalization" for node in graph.node)
    assert not any("implicit" in tensor.name for tensor in graph.initializer)


@pytest.mark.slow
@pytest.mark.parametrize("cfg", CONFIGURATIONS)
def test_every_configuration_is_exported_and_compared(cfg, tmp_path):
    (file,) = export_all(write_network(cfg, tmp_path / "best.pt"), tmp_path)
    assert file.report.difference.within(BOUNDS) and file.report.detections > 0 and not file.report.undecided


def test_one_class_says_everything_with_its_objectness(tmp_path):
    weights = write_network("cfg/training/yolov7-tiny.yaml", tmp_path / "best.pt", nc=1)
    (file,) = export_all(weights, tmp_path)
    assert file.report.difference.within(BOUNDS) and file.report.detections > 0


@needs_transformers
@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["onnx", "openvino"])
@pytest.mark.parametrize("architecture", ["detr", "rtdetr_v2"])
def test_detr_and_rtdetr_are_exported_in_every_format(architecture, file_format, tmp_path):
    source = detr_source(architecture, tmp_path)
    for form in (ExportForm.NMS, ExportForm.RAW):
        (file,) = export_files(
            source, ExportPlan(form, (96, 96), free=AXES, uint8=form is ExportForm.NMS), [file_format]
        )
        assert file.report.difference.within(BOUNDS) and file.report.detections > 0 and not file.report.undecided


@needs_transformers
def test_what_detr_networks_cannot_be_is_refused(tmp_path):
    from yolov7fast.core.errors import UserError

    source = detr_source("rtdetr_v2", tmp_path)
    for plan, message in (
        (
            ExportPlan(ExportForm.GRID, (96, 96)),
            "which has no grid of boxes to suppress: leave out --grid and --end2end",
        ),
        (ExportPlan(ExportForm.NMS, (96, 96), half=True), "--half is for YOLO networks"),
        (ExportPlan(ExportForm.NMS, (0, 96)), "the height must be a multiple of 32"),
    ):
        with pytest.raises(UserError, match=message):
            export_files(source, plan, ["onnx"])
    source.model.network.config.num_queries = 1000
    with pytest.raises(UserError, match=r"is too small for .*: it selects its 1000 queries among as many cells"):
        export_files(source, ExportPlan(ExportForm.NMS, (96, 96)), ["onnx"])
