"""detect.py's further records: crops, the table, slices; and the same commands on exported files."""

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml

from tests.inference.api.conftest import cells
from tests.inference.export.networks import mini_source
from tests.mini_network import NAMES
from tests.predictors.stubs import StubPredictor
from yolov7fast.cli.checks import check_test
from yolov7fast.cli.commands import detect as command
from yolov7fast.cli.commands import test as test_command
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.inference.export.plan import Plan
from yolov7fast.inference.export.run import export_files
from yolov7fast.inference.output import PredictionOutput
from yolov7fast.inference.predict import predict_source
from yolov7fast.inference.slicing import Slicing
from yolov7fast.inference.sources import LoadImages
from yolov7fast.predictors.base import Prediction
from yolov7fast.predictors.exported.forms import Form

FREE = ("batch", "height", "width")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return mini_source(tmp_path_factory.mktemp("records"))


@pytest.fixture
def images(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    for i in range(5):
        cv2.imwrite(f"images/{i}.png", cells(i, 120, 160))
    return tmp_path / "images"


def detect(weights, *flags: str):
    arguments = ["--weights", str(weights), "--source", "images", "--project", "det", "--device", "cpu"]
    return command.detect(parser_for("detect").parse_args([*arguments, *flags]))


def table(folder: str = "det/exp") -> list[dict[str, str]]:
    with Path(folder, "predictions.csv").open() as file:
        return list(csv.DictReader(file))


def fixed(boxes: list[list[float]]) -> StubPredictor:
    """A detector that always finds the same, in pixels of the letterbox."""
    return StubPredictor(lambda batch, *_: Prediction([torch.tensor(boxes)] * len(batch)), ["cat", "big/dog"])


def test_crops_are_cut_out_of_the_original_and_sorted_by_class(images):
    boxes = [[10.0, 20, 50, 60, 0.9, 1], [100, 100, 140, 130, 0.5, 0], [7, 7, 7, 9, 0.4, 0]]  # the last is empty
    output = PredictionOutput(Path("out"), ["cat", "big/dog"], save_img=False, save_crop=True)
    predict_source(LoadImages("images/0.png", 160), fixed(boxes), output)
    assert sorted(str(p) for p in Path("out/crops").rglob("*.jpg")) == [
        "out/crops/big_dog/0_1.jpg",
        "out/crops/cat/0_2.jpg",
    ]
    rows = cv2.imread("out/crops/big_dog/0_1.jpg")
    assert rows.shape == (40, 40, 3)  # the letterbox is 160 x 128: four rows of padding above
    assert abs(rows.astype(int) - cv2.imread("images/0.png")[16:56, 10:50].astype(int)).mean() < 6


def test_the_table_has_a_row_for_each_detection(source, images):
    summary = detect(source.weights, "--img", "160", "--conf-thres", "0.05", "--save-csv", "--nosave", "--save-txt")
    rows = table()
    assert len(rows) == summary.detections > 10
    assert list(rows[0]) == ["source", "frame", "class", "name", "confidence", "x1", "y1", "x2", "y2"]
    first = [row for row in rows if row["source"].endswith("0.png")]
    text = [line.split() for line in Path("det/exp/labels/0.txt").read_text().splitlines()][::-1]
    for row, (label, x, _, width, _) in zip(first, text, strict=True):
        assert (row["class"], row["name"]) == (label, NAMES[int(label)])
        assert int(row["x1"]) == pytest.approx((float(x) - float(width) / 2) * 160, abs=1e-2)
    assert [p.name for p in Path("det/exp").iterdir() if p.name.startswith(".")] == []


def test_overlapped_and_one_after_the_other_give_the_same(source, images, capsys):
    files = []
    from yolov7fast.predictors.base import PredictOptions
    from yolov7fast.predictors.yolo import YoloPredictor

    predictor = YoloPredictor(source.model, PredictOptions(conf_thres=0.05))
    for overlapped in (False, True):
        folder = Path(f"out_{overlapped}")
        output = PredictionOutput(folder, NAMES, save_img=True, save_txt=True, save_conf=True)
        summary = predict_source(LoadImages("images", 160), predictor, output, 2, overlapped=overlapped)
        assert (summary.images, summary.stopped) == (5, False) and summary.detections > 10
        files.append({str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
    assert files[0] == files[1] and len(files[0]) == 10
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("image ")]
    assert [line.split("images/")[1][:5] for line in lines] == [f"{i}.png" for i in range(5)] * 2


def test_batches_in_lanes_give_the_same_in_the_same_order(source, images, monkeypatch):
    """With two of PyTorch's threads two batches are run on at once, each with one of them."""
    from yolov7fast.inference import predict
    from yolov7fast.predictors.base import PredictOptions
    from yolov7fast.predictors.yolo import YoloPredictor

    predictor = YoloPredictor(source.model, PredictOptions(conf_thres=0.05))
    before, found = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        assert predict.lanes_of(predictor, 1) == 1 and predict.lanes_of(predictor, 2) == 2
        for lanes in (1, 2):
            monkeypatch.setattr(predict, "MOST_LANES", lanes)
            output = PredictionOutput(Path(f"lanes{lanes}"), NAMES, save_img=False, save_csv=True)
            predict_source(LoadImages("images", 160), predictor, output, 2)
            found.append(table(f"lanes{lanes}"))
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len(found[0]) > 10
    for one, two in zip(*found, strict=True):
        assert float(one.pop("confidence")) == pytest.approx(float(two.pop("confidence")), abs=1e-5)
        assert one == two


def test_an_error_while_writing_ends_the_run_with_its_reason(images):
    output = PredictionOutput(Path("out"), ["cat", "dog"])
    Path("out/2.png").mkdir()  # a folder stands where an image must go
    with pytest.raises(UserError, match=r"cannot write out/2\.png"):
        predict_source(LoadImages("images", 160), fixed([[10.0, 20, 50, 60, 0.9, 1]]), output)


def test_slices_find_small_objects_that_the_whole_image_hides(images):
    """A detector that sees only what is at least 8 pixels wide in its input."""
    large = np.zeros((600, 800, 3), np.uint8)
    large[100:112, 300:312] = 255  # 12 pixels: 2.4 in a letterbox of 160
    cv2.imwrite("large.png", large)

    def bright(batch, *_):
        found = []
        for image in batch:
            y, x = (image.amin(0) > 200).nonzero(as_tuple=True)
            wide = len(x) and x.max() - x.min() >= 7
            box = [[float(x.min()), float(y.min()), x.max() + 1.0, y.max() + 1.0, 0.9, 0]] if wide else []
            found.append(torch.tensor(box).reshape(-1, 6))
        return Prediction(found)

    predictor = StubPredictor(bright, ["dot"])
    for slicing, count in ((None, 0), (Slicing(160, 0.25), 1)):
        output = PredictionOutput(Path(f"out{count}"), ["dot"], save_csv=True)
        summary = predict_source(LoadImages("large.png", 160), predictor, output, 4, slicing=slicing)
        assert summary.detections == count
    (row,) = table("out1")
    assert [int(row[name]) for name in ("x1", "y1", "x2", "y2")] == [300, 100, 312, 112]


def test_slices_by_their_flags(source, images):
    plain = detect(source.weights, "--img", "64", "--conf-thres", "0.05", "--nosave")
    sliced = detect(
        *(source.weights, "--img", "64", "--conf-thres", "0.05", "--nosave"),
        *("--slice", "64", "--slice-overlap", "0.5", "--batch-size", "4"),
    )
    assert sliced.detections > plain.detections


# --- exported files ---------------------------------------------------------------------------------------------------


def rows_of(folder: str) -> list[tuple]:
    columns = ("class", "x1", "y1", "x2", "y2")
    return [(Path(row["source"]).name, *(row[name] for name in columns)) for row in table(folder)]


@pytest.mark.parametrize(
    ("plan", "file_format"),
    [
        (Plan(Form.NMS, (160, 160), free=FREE, uint8=True), "onnx"),
        (Plan(Form.GRID, (160, 160), free=FREE), "torchscript"),
        pytest.param(Plan(Form.NMS, (160, 160), free=FREE), "openvino", marks=pytest.mark.slow),
    ],
    ids=["onnx", "torchscript", "openvino"],
)
def test_detect_and_test_run_exported_files_as_they_run_the_checkpoint(source, images, bccd, plan, file_format):
    (file,) = export_files(source, plan, [file_format], folder=Path.cwd())
    flags = ["--conf-thres", "0.05", "--nosave", "--save-csv"]
    detect(source.weights, "--img", "160", *flags, "--name", "pt")
    detect(file.path, *flags, "--name", "exported")  # the size is the file's own
    assert rows_of("det/exported") == rows_of("det/pt") != []

    listed = sorted((bccd / "images" / "test").iterdir())[:8]
    Path("val.txt").write_text("\n".join(map(str, listed)))
    Path("data.yaml").write_text(yaml.safe_dump({"val": "val.txt", "nc": 3, "names": NAMES}))
    found = []
    for weights, size in ((source.weights, ["--img-size", "160"]), (file.path, [])):
        arguments = ["--weights", str(weights), "--data", "data.yaml", "--workers", "0", "--device", "cpu", *size]
        opt = parser_for("test").parse_args([*arguments, "--project", "test", "--batch-size", "4"])
        check_test(opt)
        found.append(test_command.run(opt).summary)
    original, exported = found
    if plan.form is Form.GRID:
        assert exported == pytest.approx(original, abs=1e-6)
    else:  # of a box the best class counts
        assert exported == pytest.approx(original, abs=0.02)
    assert original["metrics/mAP_0.5"] > 0.2


def test_a_file_of_a_fixed_size_gets_squares(source, images):
    (file,) = export_files(source, Plan(Form.GRID, (160, 160)), ["onnx"], folder=Path.cwd())
    summary = detect(file.path, "--conf-thres", "0.05", "--nosave", "--batch-size", "3")
    assert summary.images == 5 and summary.detections > 10
    with pytest.raises(UserError, match="--img-size 320: these weights were exported for 160 alone"):
        detect(file.path, "--img-size", "320")
