"""detect.py where something is wrong or stops it: mistakes of the user, damaged images, signals, exit codes."""

import os
import re
import struct
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.inference.detect_runs import blind, cells, make_video, nothing_found, run
from tests.mini_network import NAMES, mini_model
from tests.predictors.stubs import StubPredictor
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.cli.commands import detect as command
from yolov7fast.core.errors import UserError
from yolov7fast.inference import detection_output as predict_output
from yolov7fast.inference.detection_loop import DetectSummary, predict_source
from yolov7fast.inference.detection_output import PredictionOutput
from yolov7fast.inference.detector import load
from yolov7fast.inference.sources import LoadImages


def png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header claims another size than its pixels have, with a right checksum."""
    content = bytearray(cv2.imencode(".png", cells(0))[1])
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def test_thin_images_and_impossible_headers_are_skipped_by_a_line_each(weights, made, caplog, capsys, monkeypatch):
    cv2.imwrite(str(made / "1a.png"), np.zeros((3, 5000, 3), np.uint8))
    cv2.imwrite(str(made / "1b.png"), np.zeros((5000, 1, 3), np.uint8))
    cv2.imwrite(str(made / "1c.png"), np.zeros((20, 5000, 3), np.uint8))  # one pixel high for the network
    (made / "1d.png").write_bytes(png_of_size(40_000, 40_000))
    arguments = ["--weights", str(weights), "--source", str(made), "--img", "320", "--project", "det"]
    monkeypatch.setattr(sys, "argv", ["detect.py", *arguments])
    assert command.main() == 1
    printed = capsys.readouterr().out
    assert "4 images, " in printed and "3 sources skipped: " in printed
    lines = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert len(lines) == 3 and all("\n" not in line for line in lines)
    assert re.search(r"1a.png is 5000x3 pixels, too thin for --img-size 320", lines[0])
    assert re.search(r"1b.png is 1x5000 pixels, too thin", lines[1])
    assert re.search("1d.png is too large: ", lines[2])


def test_names_that_are_not_utf8_are_detected_on_and_written_as_escapes(weights, made, capsys):
    content = (made / "0.png").read_bytes()
    for name in (b"caf\xe9.png", b"two\nlines.png"):
        Path(os.fsdecode(os.fsencode(made) + b"/" + name)).write_bytes(content)
    os.mkfifo(made / "fifo.png")
    (made / os.fsdecode(b"\xff.mp4")).write_bytes(b"no video")
    summary = run(weights, made, "--save-txt", "--save-csv", "--save-crop", "--conf", "0.01")
    assert (summary.images, summary.skipped) == (5, 1)
    printed = capsys.readouterr().out.encode().decode()  # as a terminal in UTF-8 takes it
    assert r"made/caf\udce9.png: " in printed and r"made/two\nlines.png: " in printed and r"\udcff.mp4" in printed
    table = Path("det/exp/predictions.csv").read_text(encoding="utf-8")
    assert r"caf\udce9.png" in table
    Path("list.txt").write_bytes(b"made/caf\xe9.png\n")
    assert run(weights, "list.txt", "--nosave").images == 1
    assert {"caf�.png", "two\nlines.png"} <= {path.name for path in Path("det/exp").iterdir()}


def test_a_size_of_zero_is_the_trained_one_and_a_fifo_is_no_source(weights, made, caplog):
    run(weights, made / "0.png", "--img-size", "0", "--nosave")
    assert "do not say at which size they were trained: 640 pixels" in caplog.text
    os.mkfifo(made / "fifo.png")
    with pytest.raises(UserError, match=r"fifo\.png is not a regular file"):
        run(weights, made / "fifo.png")


def test_a_thin_image_is_an_error_from_python(weights):
    with pytest.raises(UserError, match="is 5000x3 pixels, too thin"):
        load(weights, "cpu")(np.zeros((3, 5000, 3), np.uint8))


def test_nothing_readable_at_all_is_an_error(weights, workplace):
    Path("broken.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"nothing could be read: .*broken\.jpg"):
        run(weights, "broken.jpg")


def test_view_without_a_display_says_so_and_goes_on(weights, made, caplog, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert run(weights, made, "--view-img", "--nosave").images == 3
    assert "no display" in caplog.text


def test_q_in_the_window_stops_and_files_are_complete(workplace, monkeypatch):
    monkeypatch.setattr(predict_output.cv2, "imshow", lambda *_: None)
    monkeypatch.setattr(predict_output.cv2, "waitKey", lambda _: ord("q"))
    clip = make_video(workplace / "clip.mp4", [cells(i) for i in range(5)])
    output = PredictionOutput(workplace / "out", NAMES)
    source = LoadImages(str(clip), 320, 32)
    summary = predict_source(source, blind, output, show=predict_output.show_on_screen)
    assert summary.stopped and summary.images == 1
    assert cv2.VideoCapture(str(workplace / "out/clip.mp4")).get(cv2.CAP_PROP_FRAME_COUNT) == 1


def test_ctrl_c_ends_with_all_files_complete(workplace):
    calls = []

    def interrupted(images, _shapes, _targets):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return nothing_found(images)

    clip = make_video(workplace / "clip.mp4", [cells(i) for i in range(5)])
    output = PredictionOutput(workplace / "out", NAMES)
    summary = predict_source(LoadImages(str(clip), 320, 32), StubPredictor(interrupted, NAMES), output)
    assert summary.stopped and summary.images == 2
    assert [p.name for p in (workplace / "out").iterdir()] == ["clip.mp4"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--conf-thres", "1.5"], "--conf-thres is 1.5; it must be"),
        (["--img-size", "-1"], "--img-size is -1; it must be at least 0"),
        (["--classes", "1", "9"], r"--classes \[9\]: the weights have 0 RBC, 1 WBC, 2 Platelets"),
        (["--source", "nowhere"], "nowhere does not exist"),
        (["--weights", "nowhere.pt"], r"nowhere\.pt"),
        (["--device", "7"], "--device 7"),
    ],
)
def test_mistakes_are_told_before_a_folder_is_made(weights, made, monkeypatch, arguments, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match=message):
        run(weights, made, *arguments)
    assert not Path("det").exists()


def test_update_strips_the_weights(made, workplace):
    from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint

    path = workplace / "full.pt"
    model = mini_model().half()
    save_checkpoint({"epoch": 3, "model": model, "ema": model, "optimizer": {"a": 1}, "updates": 5}, path)
    run(path, made, "--nosave", "--update")
    stripped = load_checkpoint(path)
    assert stripped["epoch"] == -1 and stripped["optimizer"] is None and stripped["ema"] is None


@pytest.mark.parametrize("result, code", [({}, 0), ({"skipped": 2}, 1), ({"stopped": True, "skipped": 2}, 130)])
def test_exit_code_tells_what_was_skipped_and_whether_it_was_stopped(monkeypatch, result, code):
    monkeypatch.setattr(sys, "argv", ["detect.py"])
    monkeypatch.setattr(command, "detect", lambda *_: DetectSummary(**result))
    assert command.main() == code


def test_last_line_gives_the_time_and_the_one_before_the_rate(weights, made, capsys):
    run(weights, made)
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert re.fullmatch(r"Done\. \(\d+\.\d{3}s\)", lines[-1])
    assert re.match(r"3 images, \d+ detections?, [\d.]+ images/s", lines[-3])
