"""export.py as a user runs it: upstream's command lines, the printed proof, and every mistake in one line."""

import sys
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
import yaml

from tests.mini_network import NAMES, write_mini_weights
from yolov7fast.cli.commands import export as command
from yolov7fast.core.errors import UserError
from yolov7fast.predictors.export_metadata import ExportMetadata


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_mini_weights(tmp_path_factory.mktemp("command") / "best.pt")


@pytest.fixture(scope="module")
def photographs(bccd, tmp_path_factory):
    """A data yaml with the first twelve test photographs."""
    folder = tmp_path_factory.mktemp("photographs")
    files = sorted((bccd / "images" / "test").iterdir())[:12]
    (folder / "val.txt").write_text("\n".join(map(str, files)))
    data = {"val": str(folder / "val.txt"), "nc": 3, "names": NAMES}
    (folder / "data.yaml").write_text(yaml.safe_dump(data))
    return folder / "data.yaml"


def run(weights, *flags: str):
    return command.run(command.parser().parse_args(["--weights", str(weights), *flags]))


def facts(path) -> ExportMetadata:
    return ExportMetadata.of({entry.key: entry.value for entry in onnx.load(path).metadata_props}, path)


def test_upstreams_command_line_for_onnxruntime(weights, capsys):
    flags = (
        "--grid --end2end --simplify --topk-all 100 --iou-thres 0.65 --conf-thres 0.35 --img-size 64 96 --max-wh 640"
    )
    (file,) = run(weights, *flags.split())
    assert file.path == weights.with_name("best.onnx")
    found = facts(file.path)
    assert (found.form, found.size, found.free, found.batch) == ("end2end", [64, 96], [], 1)
    assert (found.conf_thres, found.iou_thres, found.topk, found.class_offset) == (0.35, 0.65, 100, 640.0)
    printed = capsys.readouterr()
    assert "verified with onnxruntime" in printed.out and "largest difference" in printed.out and printed.err == ""


@pytest.mark.parametrize(
    ("flags", "form", "free"),
    [
        ("", "raw", []),
        ("--dynamic", "raw", ["batch", "height", "width"]),
        ("--grid --dynamic --dynamic-batch", "grid", ["batch"]),
        ("--grid --end2end --max-wh 64 --dynamic", "end2end", []),
        ("--grid --end2end --dynamic-batch", "tensorrt", ["batch"]),
        ("--nms", "nms", ["batch", "height", "width"]),
    ],
)
def test_flags_mean_what_upstreams_mean(weights, flags, form, free):
    from yolov7fast.inference.export.export_network import load_source
    from yolov7fast.inference.export.export_plan import check_options, plan_of

    opt = command.parser().parse_args(["--weights", str(weights), "--img", "64", *flags.split()])
    check_options(opt)
    plan = plan_of(opt, load_source(weights))
    assert (plan.form, list(plan.free), plan.size) == (form, free, (64, 64))
    assert plan.nms.topk == (300 if form == "nms" else 100)


def test_a_file_is_proved_with_the_images_of_a_data_set(weights, photographs, monkeypatch):
    from yolov7fast.inference.export import export_files

    seen = []
    monkeypatch.setattr(export_files, "prove", lambda path, source, plan, images, target: seen.extend(images))
    run(weights, "--grid", "--img", "64", "--data", str(photographs))
    first = Path((photographs.parent / "val.txt").read_text().splitlines()[0])
    assert len(seen) == 6 and np.array_equal(seen[0], cv2.imread(str(first)))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--end2end", "--end2end needs --grid"),
        ("--img 100", r"--img-size 100 100: the height must be a multiple of 32, the largest stride of .*; take 96"),
        ("--img 64 64 64", "give one size, or height and width"),
        ("--format coreml", "--format coreml is not known; it is one of onnx, torchscript, openvino"),
        ("--format onxx", r"--format onxx is not known; did you mean 'onnx'\?"),
        ("--format onnx,torchscript --nms", "--format torchscript supports no NMS"),
        ("--format openvino --grid --end2end", "for TensorRT, which reads ONNX: give --format onnx alone"),
        ("--format openvino --grid --end2end --max-wh 9", "--end2end is for --format onnx: give --nms for OpenVINO"),
        ("--nms --grid --end2end", "--nms and --end2end are two forms of NMS"),
        ("--max-wh 640", "--max-wh belongs to NMS inside the file"),
        ("--fp16", "--fp16 is for CoreML files, which are not written here"),
        ("--device 0", "--device 0: networks are traced on the CPU"),
    ],
)
def test_bad_flags_are_named_in_one_line_and_nothing_is_written(weights, flags, message):
    before = sorted(path.name for path in weights.parent.iterdir())
    with pytest.raises(UserError, match=message) as error:
        run(weights, *flags.split())
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in weights.parent.iterdir()) == before


def test_bad_weights_are_named_in_one_line(weights, tmp_path):
    from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, module_of
    from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint

    save_checkpoint(module_of(load_checkpoint(weights), True).state_dict(), tmp_path / "bare.pt")
    (tmp_path / "broken.pt").write_bytes(b"no checkpoint")
    for file, message in (
        (tmp_path / "nosuch.pt", "nosuch.pt does not exist"),
        (tmp_path / "broken.pt", "broken.pt is damaged|broken.pt is no"),
        (tmp_path / "bare.pt", "bare.pt holds weights only, not the network they belong to"),
        (tmp_path / "best.onnx", "best.onnx is an exported file already: give the .pt file"),
    ):
        with pytest.raises(UserError, match=message):
            run(file, "--img", "64")


@pytest.mark.parametrize(
    ("package", "flags"),
    [("onnx", ""), ("onnxruntime", ""), ("openvino", "--format openvino"), ("onnxscript", "--simplify")],
)
def test_a_missing_package_is_named_before_anything_is_done(weights, monkeypatch, package, flags):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UserError, match=f"needs the package {package}, .*pip install onnx onnxruntime onnxscript openvino"
    ):
        run(weights, "--img", "64", *flags.split())
