"""TorchScript is code: only files that export.py wrote on this machine are run, or those that the user trusts.

Custom operator libraries of ONNX and OpenVINO, which are code as well, are never loaded.
"""

import json
import re
from pathlib import Path

import cv2
import onnx
import pytest
import torch

from tests.inference.detect_runs import cells, run
from tests.inference.export.networks import mini_source
from tests.mini_network import ROOT
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.eval_config import from_options
from yolov7fast.inference.detector import load
from yolov7fast.inference.export.export_files import export_files
from yolov7fast.inference.export.export_plan import ExportPlan, metadata_of
from yolov7fast.predictors.export_metadata import ExportForm
from yolov7fast.predictors.predictor import PredictOptions, load_predictor
from yolov7fast.predictors.runtime_sessions import TRUST_VARIABLE

CPU = torch.device("cpu")
PLAN = ExportPlan(ExportForm.GRID, (64, 64))


class Hostile(torch.nn.Module):
    """Creates a file, both when it is loaded and when it is run."""

    def __init__(self, canary: str):
        super().__init__()
        self.canary = canary
        self.number = torch.zeros(1)

    @torch.jit.export
    def __getstate__(self):
        return self.canary, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]):
        self.canary, self.training = state
        self.number = torch.from_file(self.canary + "_loaded", shared=True, size=1)

    def forward(self, x):
        return torch.zeros(len(x), 1, 8) + torch.from_file(self.canary, shared=True, size=1)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("YOLOV7FAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return mini_source(tmp_path_factory.mktemp("trust"))


@pytest.fixture
def hostile(cache, source, tmp_path) -> tuple[Path, Path]:
    """The file, and the file that it creates when it is run."""
    canary, path = tmp_path / "canary", tmp_path / "hostile.torchscript.pt"
    module = torch.jit.script(Hostile(str(canary)))
    torch.jit.save(module, path, _extra_files={"metadata.json": json.dumps(metadata_of(source, PLAN).to_text())})
    return path, canary


def created(canary: Path) -> list[str]:
    return sorted(path.name for path in canary.parent.glob("canary*"))


def test_a_file_from_elsewhere_is_neither_loaded_nor_run(hostile):
    path, canary = hostile
    for call in (lambda: load_predictor(path, CPU, PredictOptions()), lambda: load(path, "cpu")):
        with pytest.raises(UserError, match=r"hostile.* was not exported on this machine.* --trust-torchscript"):
            call()
    assert created(canary) == []


def test_it_is_run_where_the_user_trusts_it(hostile, monkeypatch):
    path, canary = hostile
    images = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    load_predictor(path, CPU, PredictOptions(trust_torchscript=True))(images)
    assert created(canary) == ["canary", "canary_loaded"]  # so the file is indeed able to
    assert load(path, "cpu", trust_torchscript=True).predictor.options.trust_torchscript
    monkeypatch.setenv(TRUST_VARIABLE, "0")
    with pytest.raises(UserError, match=TRUST_VARIABLE):
        load(path, "cpu")
    monkeypatch.setenv(TRUST_VARIABLE, "1")
    assert load(path, "cpu").names


def test_the_flag_of_detect_and_test(hostile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("image.png", cells(0))
    with pytest.raises(UserError, match="--trust-torchscript"):
        run(hostile[0], "image.png", "--img", "64")
    assert run(hostile[0], "image.png", "--img", "64", "--trust-torchscript").images == 1
    for flags in ([], ["--trust-torchscript"]):
        opt = parser_for("test").parse_args(flags)
        assert from_options(opt).predict_options().trust_torchscript == bool(flags)


def test_an_own_export_needs_no_flag_until_it_is_changed(cache, source, tmp_path):
    (file,) = export_files(source, PLAN, ["torchscript"], folder=tmp_path)
    assert [len(record.name) for record in (cache / "trusted_exports").iterdir()] == [64]
    moved = file.path.rename(tmp_path / "moved.torchscript")
    assert load_predictor(moved, CPU, PredictOptions()).names
    moved.write_bytes(moved.read_bytes() + b"\0")
    with pytest.raises(UserError, match="was not exported on this machine"):
        load_predictor(moved, CPU, PredictOptions())


def test_export_says_where_its_record_cannot_be_written(cache, source, tmp_path):
    cache.write_text("a file where the folder would be")
    with pytest.raises(UserError, match=r"cannot write the cache folder .* set YOLOV7FAST_CACHE=FOLDER"):
        export_files(source, PLAN, ["torchscript"], folder=tmp_path)
    assert not list(tmp_path.glob("*.torchscript.pt"))


# --- custom operators -------------------------------------------------------------------------------------------------


def test_operators_outside_onnx_are_refused(tmp_path):
    image = onnx.helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, [1, 3, 64, 64])
    output = onnx.helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, [1, 3, 64, 64])
    node = onnx.helper.make_node("Spawn", ["images"], ["output"], domain="elsewhere")
    graph = onnx.helper.make_graph([node], "graph", [image], [output])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("elsewhere", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "custom.onnx")
    with pytest.raises(UserError, match=r"custom\.onnx cannot be loaded by onnxruntime: .*elsewhere") as error:
        load_predictor(tmp_path / "custom.onnx", CPU, PredictOptions())
    assert "\n" not in str(error.value)


def test_nothing_here_loads_a_library_of_operators():
    calls = re.compile(r"register_custom_ops|add_extension|load_library|register_execution_provider|register_plugin")
    files = [*(ROOT / "yolov7fast").rglob("*.py"), *ROOT.glob("*.py"), *(ROOT / "tools").glob("*.py")]
    assert len(files) > 100
    assert [path.name for path in files if calls.search(path.read_text())] == []
