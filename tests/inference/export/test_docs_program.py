"""docs/detect_onnx.py: a program of 40 lines without torch and without this project finds what detect.py finds."""

import csv
import subprocess
import sys

import cv2
import numpy as np
import pytest

from tests.inference.detect_runs import cells
from tests.inference.export.networks import ROOT, detr_source
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.cli.commands.detect import detect
from yolov7fast.cli.parser import parser_for
from yolov7fast.inference.export.export_files import export_files
from yolov7fast.inference.export.export_plan import ExportPlan, NmsSettings
from yolov7fast.predictors.export_metadata import AXES, ExportForm

PROGRAM = ROOT / "docs" / "detect_onnx.py"
# a Python that refuses torch and the project, as a machine without them would
REFUSING = (
    "import sys, runpy\n"
    "for name in ('torch', 'torchvision', 'yolov7fast', 'onnx'): sys.modules[name] = None\n"
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
)


def run(*arguments) -> list[list[str]]:
    """The detections that the program prints, in words: name, score, x1, y1, x2, y2."""
    command = [sys.executable, "-I", "-c", REFUSING, str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    *lines, end = done.stdout.splitlines()
    assert end == f"detections: {len(lines)}, drawn in {arguments[-1]}"
    return [line.rsplit(maxsplit=5) for line in lines]


@pytest.mark.parametrize("uint8", [True, False])
def test_it_prints_the_boxes_of_detect(mini, tmp_path, uint8):
    image = tmp_path / "image.png"
    cv2.imwrite(str(image), cells(0, 117, 230))
    plan = ExportPlan(ExportForm.NMS, (160, 160), free=AXES, nms=NmsSettings(0.05), uint8=uint8)
    (file,) = export_files(mini, plan, ["onnx"], folder=tmp_path)
    found = run(file.path, image, tmp_path / "out.png")
    flags = ["--weights", mini.weights, "--source", image, "--img-size", 160, "--conf-thres", 0.05, "--save-csv"]
    detect(parser_for("detect").parse_args([*map(str, flags), "--project", str(tmp_path), "--device", "cpu"]))
    with (tmp_path / "exp" / "predictions.csv").open() as table:
        wanted = [(row["name"], row["confidence"], *list(row.values())[-4:]) for row in csv.DictReader(table)]
    assert len(wanted) > 3 and [tuple(row[2:]) for row in found] == [row[2:] for row in wanted]
    assert [row[0] for row in found] == [row[0] for row in wanted]
    assert [float(row[1]) for row in found] == pytest.approx([float(row[1]) for row in wanted], abs=1e-3)
    assert not np.array_equal(cv2.imread(str(tmp_path / "out.png")), cv2.imread(str(image)))


@needs_transformers
@pytest.mark.slow
def test_it_runs_detr_networks_too(tmp_path):
    source = detr_source("detr", tmp_path)
    plan = ExportPlan(ExportForm.NMS, (96, 96), free=AXES, nms=NmsSettings(0.0))
    (file,) = export_files(source, plan, ["onnx"])
    cv2.imwrite(str(tmp_path / "image.png"), cells(0, 80, 120))
    found = run(file.path, tmp_path / "image.png", tmp_path / "out.png")
    assert found and {row[0] for row in found} <= set(source.names)
