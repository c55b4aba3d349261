"""detect.py from end to end: recorded runs, every kind of source, crops, tables, slices and exported files."""

import csv
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml

from tests.inference.detect_runs import blind, cells, make_video, run
from tests.mini_network import NAMES
from tests.predictors.stubs import StubPredictor
from yolov7fast.cli.checks import check_test
from yolov7fast.cli.commands import detect as command
from yolov7fast.cli.commands import test as test_command
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.inference.detection_loop import describe, predict_source
from yolov7fast.inference.detection_output import PredictionOutput
from yolov7fast.inference.export.export_files import export_files
from yolov7fast.inference.export.export_plan import ExportPlan
from yolov7fast.inference.slicing import Slicing
from yolov7fast.inference.sources import LoadImages, LoadStreams
from yolov7fast.predictors.export_metadata import AXES, ExportForm
from yolov7fast.predictors.predictor import Prediction, PredictOptions
from yolov7fast.predictors.yolo_predictor import YoloPredictor


@pytest.fixture
def three(bccd, workplace) -> Path:
    """The first three validation images."""
    folder = workplace / "three"
    folder.mkdir()
    for file in sorted((bccd / "images/val").iterdir())[:3]:
        shutil.copy(file, folder)
    return folder


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def printed(text: str) -> list[str]:
    """The recorded kind of lines, times blanked, without the image's name, which upstream does not print."""
    lines = [re.sub(r"\(\d+\.\d+(ms|s)\)", r"(T\1)", line) for line in text.splitlines()]
    lines = [re.sub(r"^image \d+/\d+ \S+: ", "", line) for line in lines]
    return [line for line in lines if "Done." in line or "is saved in" in line]


def recorded_lines(lines: list[str]) -> list[str]:
    """Recorded lines with the classes' own names: upstream puts an s behind them."""
    lines = [line for line in lines if "Done." in line or "is saved in" in line]
    return [re.sub(r"(RBC|WBC|Platelets)s,", r"\1,", line) for line in lines]


# --- the recorded figures ---------------------------------------------------------------------------------------------


def assert_same_text(path: Path, recorded: list[str]) -> None:
    """Classes and boxes to the letter, scores to 1e-4: those depend on the CPU's rounding."""
    mine = [line.split() for line in path.read_text().splitlines()]
    wanted = [line.split() for line in recorded]
    assert [row[:5] for row in mine] == [row[:5] for row in wanted]
    assert [len(row) for row in mine] == [len(row) for row in wanted]
    scores = [[float(row[5]) for row in rows if len(row) > 5] for rows in (mine, wanted)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("case", ["default", "txt_conf", "txt_classes_agn_nosave"])
def test_recorded_runs(weights, three, golden, capsys, case, batch_size):
    recorded = golden("eval_detect.json")[case]
    run(weights, three, *recorded["args"], "--batch-size", str(batch_size))
    assert files_below(Path("det")) == recorded["files"]
    for name, lines in recorded["txt"].items():
        assert_same_text(Path("det") / name, lines)
    assert printed(capsys.readouterr().out) == recorded_lines(recorded["stdout"])
    assert not Path("traced_model.pt").exists()


def test_recorded_video(weights, three, golden, capsys):
    recorded = golden("eval_detect.json")["video"]
    clip = make_video(Path("clip.mp4"), [cv2.imread(str(p)) for p in sorted(three.iterdir())])
    run(weights, clip, *recorded["args"])
    assert files_below(Path("det")) == recorded["files"]
    for name, count in recorded["txt"].items():
        assert abs(len((Path("det") / name).read_text().splitlines()) - count) <= 2, "the encoder may move a weak box"
    lines = printed(capsys.readouterr().out)
    assert [line.split(" clip")[0].split(f" {clip.resolve()}")[0] for line in lines[:3]] == [
        f"video 1/1 ({i}/3)" for i in (1, 2, 3)
    ]
    capture = cv2.VideoCapture("det/exp/clip.mp4")
    size = capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    assert (capture.get(cv2.CAP_PROP_FRAME_COUNT), capture.get(cv2.CAP_PROP_FPS), *size) == (3, 10, 640, 480)


# --- the flags --------------------------------------------------------------------------------------------------------


# --- kinds of sources -------------------------------------------------------------------------------------------------


def test_runs_count_up_and_exist_ok_does_not_double_lines(weights, made):
    run(weights, made, "--save-txt", "--conf", "0.01")
    before = {name: Path("det/exp", name).read_text() for name in files_below(Path("det/exp")) if "txt" in name}
    run(weights, made, "--save-txt", "--conf", "0.01", "--exist-ok")
    assert {name: Path("det/exp", name).read_text() for name in before} == before
    run(weights, made, "--nosave")
    assert sorted(p.name for p in Path("det").iterdir()) == ["exp", "exp2"]
    assert files_below(Path("det/exp2")) == []
    run(weights, made, "--save-txt", "--conf", "1", "--exist-ok")
    assert files_below(Path("det/exp/labels")) == [], "without detections an earlier text file is removed"


def test_images_of_one_name_do_not_overwrite_each_other(weights, made, capsys):
    (made / "sub").mkdir()
    cv2.imwrite(str(made / "sub" / "0.png"), cells(7))
    cv2.imwrite(str(made / "0.jpg"), cells(8))
    run(weights, made / "**" / "0.*", "--save-txt", "--conf", "0.01")
    assert sorted(p.name for p in Path("det/exp").glob("0*")) == ["0.jpg", "0_2.png", "0_3.png"]
    assert len(list(Path("det/exp/labels").iterdir())) == 3


def test_streams_are_read_to_their_end_and_a_list_of_them_is_not_recorded(weights, workplace, capsys):
    for name in ("a", "b"):
        make_video(workplace / f"{name}.mp4", [cells(i) for i in range(3)])
    Path("cams.txt").write_text("a.mp4\nb.mp4\nrtsp://127.0.0.1:1/none\n")
    summary = run(weights, "cams.txt", "--save-txt", "--conf", "0.01")
    assert summary.images == 6
    names = files_below(Path("det/exp"))
    assert names and all(re.fullmatch(r"labels/[ab]\.mp4_[012]\.txt", name) for name in names)
    assert "rtsp://127.0.0.1:1/none" in capsys.readouterr().out


def test_each_stream_gets_its_own_complete_recording(workplace):
    videos = [str(make_video(workplace / f"{n}.mp4", [cells(i) for i in range(4)])) for n in "ab"]
    output = PredictionOutput(workplace / "out", NAMES)
    predict_source(LoadStreams(videos, 320, 32), blind, output)
    recordings = sorted((workplace / "out").glob("*.mp4"))
    assert len(recordings) == 2
    for file in recordings:
        capture = cv2.VideoCapture(str(file))
        assert (capture.get(cv2.CAP_PROP_FRAME_COUNT), capture.get(cv2.CAP_PROP_FPS)) == (4, 30)


def test_augmentation_changes_what_is_found(weights, made):
    plain = run(weights, made, "--conf", "0.01", "--save-txt", "--save-conf", "--name", "plain")
    augmented = run(weights, made, "--conf", "0.01", "--save-txt", "--save-conf", "--name", "tta", "--augment")
    texts = [Path("det", name, "labels/0.txt").read_text() for name in ("plain", "tta")]
    assert plain.images == augmented.images == 3 and texts[0] != texts[1]


def test_lines_name_the_classes_in_ascending_order():
    boxes = torch.tensor([[0, 0, 1, 1, 0.9, 2], [0, 0, 1, 1, 0.8, 0], [0, 0, 1, 1, 0.7, 2.0]])
    assert describe(boxes, NAMES, 0.25) == "1 RBC, 2 Platelets"
    assert describe(boxes, ["box", "ball", "血球"], 0.25) == "1 box, 2 血球", "a name is no noun that takes an s"
    assert describe(boxes[:0], NAMES, 0.25) == "no detections above 0.25 (--conf-thres)"


def test_a_truncated_jpeg_is_reported_once_by_name(weights, made, capfd, caplog):
    whole = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (96, 128, 3), dtype=np.uint8))[1].tobytes()
    (made / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    assert run(weights, made, "--nosave").images == 4
    logged = [message for message in caplog.messages if "cut.jpg" in message]
    assert len(logged) == 1 and "cut.jpg is damaged (Premature end of JPEG file)" in logged[0]
    lines = capfd.readouterr().err.splitlines()
    assert all("cut.jpg" in line for line in lines if "Premature" in line), "the decoder's own line would break the bar"


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


def test_the_table_has_a_row_for_each_detection(mini, images):
    summary = detect(mini.weights, "--img", "160", "--conf-thres", "0.05", "--save-csv", "--nosave", "--save-txt")
    rows = table()
    assert len(rows) == summary.detections > 10
    assert list(rows[0]) == ["source", "frame", "class", "name", "confidence", "x1", "y1", "x2", "y2"]
    first = [row for row in rows if row["source"].endswith("0.png")]
    text = [line.split() for line in Path("det/exp/labels/0.txt").read_text().splitlines()][::-1]
    for row, (label, x, _, width, _) in zip(first, text, strict=True):
        assert (row["class"], row["name"]) == (label, NAMES[int(label)])
        assert int(row["x1"]) == pytest.approx((float(x) - float(width) / 2) * 160, abs=1e-2)
    assert [p.name for p in Path("det/exp").iterdir() if p.name.startswith(".")] == []


def test_overlapped_and_one_after_the_other_give_the_same(mini, images, capsys):
    files = []
    predictor = YoloPredictor(mini.model, PredictOptions(conf_thres=0.05))
    for overlapped in (False, True):
        folder = Path(f"out_{overlapped}")
        output = PredictionOutput(folder, NAMES, save_img=True, save_txt=True, save_conf=True)
        summary = predict_source(LoadImages("images", 160), predictor, output, 2, overlapped=overlapped)
        assert (summary.images, summary.stopped) == (5, False) and summary.detections > 10
        files.append({str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
    assert files[0] == files[1] and len(files[0]) == 10
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("image ")]
    assert [line.split("images/")[1][:5] for line in lines] == [f"{i}.png" for i in range(5)] * 2


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


# --- exported files ---------------------------------------------------------------------------------------------------


def rows_of(folder: str) -> list[tuple]:
    columns = ("class", "x1", "y1", "x2", "y2")
    return [(Path(row["source"]).name, *(row[name] for name in columns)) for row in table(folder)]


@pytest.mark.parametrize(
    ("plan", "file_format"),
    [
        (ExportPlan(ExportForm.NMS, (160, 160), free=AXES, uint8=True), "onnx"),
        (ExportPlan(ExportForm.GRID, (160, 160), free=AXES), "torchscript"),
    ],
    ids=["onnx", "torchscript"],
)
def test_detect_and_test_run_exported_files_as_they_run_the_checkpoint(mini, images, bccd, plan, file_format):
    (file,) = export_files(mini, plan, [file_format], folder=Path.cwd())
    flags = ["--conf-thres", "0.05", "--nosave", "--save-csv"]
    detect(mini.weights, "--img", "160", *flags, "--name", "pt")
    detect(file.path, *flags, "--name", "exported")  # the size is the file's own
    assert rows_of("det/exported") == rows_of("det/pt") != []

    listed = sorted((bccd / "images" / "test").iterdir())[:8]
    Path("val.txt").write_text("\n".join(map(str, listed)))
    Path("data.yaml").write_text(yaml.safe_dump({"val": "val.txt", "nc": 3, "names": NAMES}))
    found = []
    for weights, size in ((mini.weights, ["--img-size", "160"]), (file.path, [])):
        arguments = ["--weights", str(weights), "--data", "data.yaml", "--workers", "0", "--device", "cpu", *size]
        opt = parser_for("test").parse_args([*arguments, "--project", "test", "--batch-size", "4"])
        check_test(opt)
        found.append(test_command.run(opt).summary)
    original, exported = found
    if plan.form is ExportForm.GRID:
        assert exported == pytest.approx(original, abs=1e-6)
    else:  # of a box the best class counts
        assert exported == pytest.approx(original, abs=0.02)
    assert original["metrics/mAP_0.5"] > 0.2
