"""detect.py from end to end: the recorded text files and lines, every kind of source."""

import logging
import re
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.inference.detect_runs import blind, cells, make_video, run
from tests.mini_network import NAMES
from tests.predictors.stubs import StubPredictor
from yolov7fast.cli.commands import detect as command
from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.inference.output import PredictionOutput
from yolov7fast.inference.predict import batches, describe, predict_source
from yolov7fast.inference.sources import LoadImages
from yolov7fast.inference.streams import LoadStreams
from yolov7fast.predictors.base import Prediction


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


def test_labelled_image_differs_from_the_original_only_near_boxes(weights, three):
    run(weights, three / "BloodImage_00000.jpg", "--classes", "1")
    original = cv2.imread(str(three / "BloodImage_00000.jpg")).astype(int)
    drawn = cv2.imread("det/exp/BloodImage_00000.jpg").astype(int)
    changed = abs(drawn - original).max(-1) > 60
    assert changed.any() and not changed[:, :200].any(), "the one WBC lies in the middle of the image"


# --- the flags --------------------------------------------------------------------------------------------------------


def test_flags_are_those_recorded(golden):
    recorded = {entry["flag"]: entry for entry in golden("eval_cli.json")["detect"]}
    mine = {action.option_strings[0]: action for action in parser_for("detect")._actions if action.dest != "help"}
    new = {"--batch-size", "--save-crop", "--save-csv", "--slice", "--slice-overlap", "--no-half"}
    assert set(mine) - set(recorded) == new and set(recorded) <= set(mine)
    for name, entry in recorded.items():
        action = mine[name]
        type_name = getattr(action.type, "__name__", None)
        nargs = 0 if entry["store_true"] else entry["nargs"]
        text = None if entry["store_true"] else entry["type"] or "str"
        assert (type_name, action.default, action.nargs) == (text, entry["default"], nargs)


@pytest.mark.parametrize(
    "short, name, value",
    [
        ("--img", "img_size", 96),
        ("--conf", "conf_thres", 0.5),
        ("--iou", "iou_thres", 0.5),
        ("--class", "classes", [2]),
    ],
)
def test_abbreviations_in_the_wild_work(short, name, value):
    text = str(value[0] if isinstance(value, list) else value)
    assert getattr(parser_for("detect").parse_args([short, text]), name) == value


def test_every_flag_says_what_it_does():
    text = " ".join(parser_for("detect").format_help().split())
    assert all(flag.name in text and flag.help.split(":")[0] in text for flag in flags_of("detect").values())
    assert "always run untraced" in text


# --- kinds of sources -------------------------------------------------------------------------------------------------


def test_batches_hold_one_shape_and_keep_the_order(made):
    cv2.imwrite(str(made / "1b.png"), cells(9, 160, 120))
    source = LoadImages(str(made), 320, 32)
    groups = [[Path(f.path).stem for f in frames] for frames in batches(source, 2)]
    assert groups == [["0", "1"], ["1b"], ["2"]]


def test_batches_give_the_same_files_as_single_images(weights, made):
    for name, batch_size in (("one", "1"), ("four", "4")):
        run(weights, made, "--save-txt", "--conf", "0.01", "--name", name, "--batch-size", batch_size)
    labels = files_below(Path("det/one/labels"))
    assert labels and labels == files_below(Path("det/four/labels"))
    for name in labels:
        assert Path("det/one/labels", name).read_text() == Path("det/four/labels", name).read_text()


def test_runs_count_up_and_exist_ok_does_not_double_lines(weights, made):
    run(weights, made, "--save-txt", "--conf", "0.01")
    before = {name: Path("det/exp", name).read_text() for name in files_below(Path("det/exp")) if "txt" in name}
    run(weights, made, "--save-txt", "--conf", "0.01", "--exist-ok")
    assert {name: Path("det/exp", name).read_text() for name in before} == before
    run(weights, made, "--nosave")
    assert sorted(p.name for p in Path("det").iterdir()) == ["exp", "exp2"]
    assert files_below(Path("det/exp2")) == []


def test_a_image_that_lost_its_detections_loses_its_text_file(weights, made):
    run(weights, made, "--save-txt", "--conf", "0.01")
    run(weights, made, "--save-txt", "--conf", "1", "--exist-ok")
    assert files_below(Path("det/exp/labels")) == []


def test_images_of_one_name_do_not_overwrite_each_other(weights, made, capsys):
    (made / "sub").mkdir()
    cv2.imwrite(str(made / "sub" / "0.png"), cells(7))
    cv2.imwrite(str(made / "0.jpg"), cells(8))
    run(weights, made / "**" / "0.*", "--save-txt", "--conf", "0.01")
    assert sorted(p.name for p in Path("det/exp").glob("0*")) == ["0.jpg", "0_2.png", "0_3.png"]
    assert len(list(Path("det/exp/labels").iterdir())) == 3


def test_formats_that_cannot_be_written_are_saved_as_jpg(workplace):
    output = PredictionOutput(workplace / "out", NAMES)
    frame = next(LoadImages(write_image(workplace / "a.png"), 320, 32).frames())
    frame = type(frame)("a.dng", frame.image, frame.original, "image")
    assert output.write(frame, torch.zeros(0, 6)) == workplace / "out" / "a.jpg"


def write_image(path: Path) -> str:
    cv2.imwrite(str(path), cells(0))
    return str(path)


def test_list_of_files_is_detected_and_saved_like_a_folder(weights, made):
    Path("list.txt").write_text("made/0.png\nmade/2.png\n")
    assert run(weights, "list.txt").images == 2
    assert files_below(Path("det/exp")) == ["0.png", "2.png"]


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


def test_any_detector_can_be_asked(made, workplace):
    """Whatever has the interface will do: here one that finds the whole letterboxed image."""

    def whole(images, _shapes, _targets):
        h, w = images.shape[2:]
        return Prediction([torch.tensor([[0.0, 0.0, w, h, 0.9, 1.0]])] * len(images))

    output = PredictionOutput(workplace / "out", NAMES, save_txt=True, save_conf=True)
    summary = predict_source(LoadImages(str(made), 320, 32), StubPredictor(whole, NAMES), output, batch_size=2)
    assert (summary.images, summary.detections) == (3, 3)
    assert (workplace / "out/labels/0.txt").read_text() == "1 0.5 0.5 1 1 0.9\n"


def test_ensemble_of_two_finds_what_one_finds(weights, made, workplace):
    second = shutil.copy(weights, workplace / "second.pt")
    one = run(weights, made, "--conf", "0.01")
    both = command.detect(
        parser_for("detect").parse_args(
            ["--weights", str(weights), str(second), "--source", "made", "--img", "320", "--conf", "0.01", "--nosave"]
        )
    )
    assert both.detections == one.detections > 0, "equal boxes suppress each other"


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


def test_every_line_names_its_image_and_says_where_nothing_was_found(weights, made, capsys):
    run(weights, made, "--conf", "1", "--nosave")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("image ")]
    for i, line in enumerate(lines):
        assert line.startswith(f"image {i + 1}/3 made/{i}.png: no detections above 1 (--conf-thres), Done. (")
    assert len(lines) == 3


def test_a_truncated_jpeg_is_reported_once_by_name(weights, made, capfd, caplog):
    whole = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (96, 128, 3), dtype=np.uint8))[1].tobytes()
    (made / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    assert run(weights, made, "--nosave").images == 4
    logged = [message for message in caplog.messages if "cut.jpg" in message]
    assert len(logged) == 1 and "cut.jpg is damaged (Premature end of JPEG file)" in logged[0]
    lines = capfd.readouterr().err.splitlines()
    assert all("cut.jpg" in line for line in lines if "Premature" in line), "the decoder's own line would break the bar"


def test_what_is_logged_stands_above_the_bar(weights, made, monkeypatch):
    (made / "broken.jpg").write_bytes(b"no image")
    above = []
    monkeypatch.setattr("tqdm.std.tqdm.write", lambda text, **_: above.append(text))
    console = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(console)
    try:
        run(weights, made, "--nosave")
    finally:
        logging.getLogger().removeHandler(console)
    assert any("broken.jpg cannot be decoded" in text for text in above)
