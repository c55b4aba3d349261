"""Exported files behind the interface of every detector: same boxes as the checkpoint, from the file's own metadata."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import onnx
import pytest
import torch

from tests.inference.export.networks import detr_source, mini_source
from tests.mini_network import NAMES
from tests.training.commands import ROOT
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.core.errors import UserError
from yolov7fast.inference.export.export_files import ExportedFile, export_files
from yolov7fast.inference.export.export_plan import ExportPlan, NmsSettings
from yolov7fast.inference.export.export_proof import BOUNDS
from yolov7fast.predictors.detr_predictor import DetrPredictor
from yolov7fast.predictors.export_metadata import AXES, ExportForm
from yolov7fast.predictors.predictor import PredictOptions, input_size, load_predictor
from yolov7fast.predictors.yolo_predictor import YoloPredictor

CPU = torch.device("cpu")
OPTIONS = PredictOptions(conf_thres=0.01, iou_thres=0.6)
SHAPES = [((48, 64), ((1.0, 1.0), (0.0, 8.0)))] * 3


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return mini_source(tmp_path_factory.mktemp("runtimes"))


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    small = torch.randint(0, 255, (3, 3, 8, 8), generator=generator).float()
    return torch.nn.functional.interpolate(small, (64, 64), mode="bilinear").to(torch.uint8)


def exported(source, folder, plan: ExportPlan, file_format: str = "onnx", options=OPTIONS):
    (file,) = export_files(source, plan, [file_format], folder=folder)
    return load_predictor(file.path, CPU, options)


def assert_same(found, wanted, atol=1e-3):
    assert sum(map(len, wanted)) > 0
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("plan", "file_format"),
    [
        (ExportPlan(ExportForm.NMS, (64, 64), free=AXES, uint8=True), "onnx"),
        (ExportPlan(ExportForm.GRID, (64, 64), free=AXES, uint8=True), "torchscript"),
        (ExportPlan(ExportForm.RAW, (64, 64)), "onnx"),  # a batch of 1: three images are three runs
        (ExportPlan(ExportForm.RAW, (64, 64), batch=2), "torchscript"),  # and the last is filled up
        (ExportPlan(ExportForm.END2END, (64, 64), batch=2, nms=NmsSettings(0.3, 0.3)), "onnx"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.form}-{value.batch}",
)
def test_boxes_are_those_of_the_checkpoint_at_thresholds_of_the_moment(source, images, tmp_path, plan, file_format):
    compare_boxes(exported(source, tmp_path, plan, file_format), source, images)


def compare_boxes(predictor, source, images) -> None:
    """The boxes of an exported file and of its checkpoint, before and after the thresholds are changed."""
    original = YoloPredictor(source.model, OPTIONS)
    assert_same(predictor(images).detections, original(images).detections)
    predictor.options = original.options = replace(OPTIONS, conf_thres=0.05, iou_thres=0.3, classes=[0])
    found = predictor(images)
    assert_same(found.detections, original(images).detections)
    assert found.inference_ms > 0


@pytest.fixture(scope="module")
def openvino_file(source, tmp_path_factory) -> ExportedFile:
    plan = ExportPlan(ExportForm.NMS, (64, 64), free=AXES, nms=NmsSettings(0.001))
    return export_files(source, plan, ["openvino"], folder=tmp_path_factory.mktemp("openvino"))[0]


def test_openvino_is_a_pair_of_files_with_the_boxes_of_the_checkpoint(source, images, openvino_file):
    assert sorted(path.name for path in openvino_file.path.parent.iterdir()) == ["mini.bin", "mini.xml"]
    assert openvino_file.report.difference.within(BOUNDS) and openvino_file.report.detections > 0
    assert openvino_file.size > openvino_file.path.stat().st_size
    compare_boxes(load_predictor(openvino_file.path, CPU, OPTIONS), source, images)


def test_operators_outside_openvino_are_refused(openvino_file, tmp_path):
    text = openvino_file.path.read_text()
    changed = re.sub(r'type="Sigmoid" version="\w+"', 'type="Spawn" version="elsewhere"', text, count=1)
    assert changed != text
    (tmp_path / "mini.xml").write_text(changed)
    shutil.copy(openvino_file.path.with_suffix(".bin"), tmp_path)
    with pytest.raises(UserError, match=r"mini\.xml cannot be loaded by OpenVINO: .*Spawn"):
        load_predictor(tmp_path / "mini.xml", CPU, PredictOptions())


def test_the_file_says_names_stride_and_size(source, tmp_path):
    free = exported(source, tmp_path, ExportPlan(ExportForm.GRID, (64, 96), free=AXES, half=True))
    assert (list(free.names), free.stride, free.fixed_size, free.precision) == (NAMES, 32, False, "float16")
    assert input_size(free, 0) == 96 and input_size(free, 160) == 160
    static = exported(source, tmp_path, ExportPlan(ExportForm.GRID, (64, 64)))
    assert static.fixed_size and input_size(static, 0) == 64
    with pytest.raises(UserError, match="exported for 64 only"):
        input_size(static, 320)
    with pytest.raises(UserError, match=r"takes images of \[64, 64\] only, not \[32, 64\]"):
        static(torch.zeros(1, 3, 32, 64, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"augment": True}, "--augment is for .pt files"),
        ({"hybrid": True}, "--save-hybrid is for .pt files"),
        ({"agnostic": True}, "includes NMS within classes: for --agnostic-nms"),
        ({"single_cls": True}, "for --agnostic-nms and --single-cls export it with --max-wh 0"),
    ],
)
def test_what_a_file_cannot_do_is_refused(source, tmp_path_factory, change, message):
    folder = tmp_path_factory.getbasetemp() / "nms_file"
    path = folder / "mini.onnx"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        export_files(source, ExportPlan(ExportForm.NMS, (64, 64), free=AXES), ["onnx"], folder=folder)
    with pytest.raises(UserError, match=message):
        load_predictor(path, CPU, replace(OPTIONS, **change))


def test_files_that_cannot_be_used_are_named(source, tmp_path):
    (tmp_path / "no.onnx").write_bytes(b"nothing")
    (tmp_path / "no.torchscript.pt").write_bytes(b"nothing")
    (tmp_path / "no.xml").write_text("<nothing/>")
    trusted = replace(OPTIONS, trust_torchscript=True)
    for name in ("no.onnx", "no.torchscript.pt", "no.xml"):
        with pytest.raises(UserError, match=f"{name} cannot be loaded by .*; export the .pt file again") as error:
            load_predictor(tmp_path / name, CPU, trusted)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"nosuch.onnx does not exist; export.py writes such files"):
        load_predictor(tmp_path / "nosuch.onnx", CPU, OPTIONS)
    (file,) = export_files(source, ExportPlan(ExportForm.TENSORRT, (64, 64)), ["onnx"], folder=tmp_path)
    with pytest.raises(UserError, match="includes TensorRT's NMS plugin, which only TensorRT can run"):
        load_predictor(file.path, CPU, OPTIONS)
    (file,) = export_files(source, ExportPlan(ExportForm.GRID, (64, 96)), ["onnx"], folder=tmp_path)
    with pytest.raises(UserError, match="was exported for 64x96 images only"):
        load_predictor(file.path, CPU, OPTIONS)
    model = onnx.load(file.path)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    with pytest.raises(UserError, match=r"foreign.onnx has no metadata of export.py"):
        load_predictor(tmp_path / "foreign.onnx", CPU, OPTIONS)
    with pytest.raises(UserError, match="an ensemble is made of"):
        load_predictor([file.path, file.path], CPU, OPTIONS)


@needs_transformers
@pytest.mark.parametrize("form", [ExportForm.NMS, ExportForm.RAW])
def test_detr_files_know_where_images_lie(images, tmp_path, form):
    source = detr_source("detr", tmp_path)
    predictor = exported(source, tmp_path, ExportPlan(form, (96, 96), free=AXES))
    original = DetrPredictor(source.model, OPTIONS)
    assert (predictor.uses_nms, predictor.border, predictor.img_size) == (False, 0.0, 96)
    assert_same(predictor(images, SHAPES).detections, original(images, SHAPES).detections, atol=5e-3)


@needs_transformers
@pytest.mark.slow
def test_rtdetr_files_get_the_rows_that_their_queries_need(images, tmp_path):
    source = detr_source("rtdetr_v2", tmp_path)
    predictor = exported(source, tmp_path, ExportPlan(ExportForm.NMS, (96, 96), free=AXES))
    small = images[:, :, :32, :32]
    shapes = [((32, 32), ((1.0, 1.0), (0.0, 0.0)))] * 3
    assert source.model.least_height(32, 32) >= 32
    original = DetrPredictor(source.model, OPTIONS)
    found, wanted = predictor(small, shapes).detections, original(small, shapes).detections
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a[:, 4], b[:, 4], atol=1e-4, rtol=0)


def test_signals_are_survived_after_openvino_files_were_closed(openvino_file):
    """In any order: its plugin replaces the stack that signal handlers run on. A crash would end pytest: a process."""
    program = (
        "import faulthandler, gc, os, signal, sys\n"
        "from yolov7fast.predictors.runtime_sessions import open_session\n"
        "faulthandler.enable()\n"  # Python's handlers run on another stack from here on
        "first, second = open_session(sys.argv[1]), open_session(sys.argv[1])\n"
        "del first; gc.collect(); del second; gc.collect()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('survived'))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, openvino_file.path], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr
