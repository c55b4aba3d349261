"""The command: sections, time, exit codes; what breaks is a red line; the page and the JSON say the same."""

import json
import re

import pytest
import torch

from tests.browser import Browser
from yolov7fast.commands.machine import check as command
from yolov7fast.core.errors import UserError
from yolov7fast.diagnostics import resuming, run, speed
from yolov7fast.diagnostics.page import as_page
from yolov7fast.diagnostics.results import FAILED, FIGURE, LEFT_OUT, PASSED, Line, Report, judged, line_text
from yolov7fast.diagnostics.run import Check, all_checks, run_checks, sections
from yolov7fast.profiling.measure import measure

GREEN = Check("environment", "fine", lambda setting: judged("fine", True, "as it should be", "never shown"))
RED = Check("correctness", "wrong", lambda setting: [judged("wrong", False, "off", "do this", ("losses/yolo.py:7",))])


def raising(setting):
    raise RuntimeError("CUDA error: no kernel image\nis available")


def test_every_check_has_a_section_and_a_name_of_its_own():
    assert sections() == ["environment", "host syncs", "correctness", "speed"]
    names = [check.name for check in all_checks()]
    assert len(set(names)) == len(names) == 21


@pytest.mark.parametrize(("checks", "code"), [([GREEN], 0), ([GREEN, RED], 4)])
def test_the_exit_code_says_whether_something_is_red(checks, code, setting, capsys):
    report = run_checks(setting, 5, checks=checks)
    assert report.exit_code == code and report.count(PASSED) == 1
    assert "ok   fine: as it should be" in capsys.readouterr().out


def test_a_check_that_breaks_is_a_red_line_with_its_place_and_the_others_run(setting):
    report = run_checks(setting, 5, checks=[Check("speed", "broken", raising), GREEN])
    broken, fine = report.lines
    assert broken.status == FAILED and broken.text == "RuntimeError: CUDA error: no kernel image is available"
    assert "test_check.py" in broken.places[0] and "raising" in broken.places[0] and fine.status == PASSED


def test_when_time_is_up_the_rest_is_left_out_and_the_exit_code_says_so(setting, monkeypatch):
    clock = iter([0.0, 1.0, 400.0, 400.0])
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock))
    report = run_checks(setting, 5, checks=[GREEN, RED])
    assert [line.status for line in report.lines] == [PASSED, LEFT_OUT]
    assert report.exit_code == 3 and "--minutes 5" in report.lines[1].text


def test_only_the_wanted_sections_run(setting):
    report = run_checks(setting, 5, ["correctness"], [GREEN, RED])
    assert list(report.sections) == ["correctness"]


def test_the_command_writes_page_and_json_and_returns_the_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "all_checks", lambda: [GREEN, RED])
    assert command.main(["--device", "cpu", "--output", str(tmp_path / "out")]) == 4
    written = json.loads((tmp_path / "out/check.json").read_text())
    assert written["exit_code"] == 4 and written["device"] == "cpu" and "torch" in written["facts"]
    (line,) = written["sections"]["correctness"]
    assert (line["status"], line["remedy"], line["places"]) == ("failed", "do this", ["losses/yolo.py:7"])
    page = (tmp_path / "out/check.html").read_text()
    assert "Something is wrong" in page and "do this" in page and "never shown" not in page
    assert "1 passed, 1 failed, 0 left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "sped"], "--only sped is not known: sections are environment, host-syncs"),
        (["--minutes", "0"], "above 0"),
    ],
)
def test_mistakes_are_answered(words, says):
    with pytest.raises(UserError, match=re.escape(says)):
        command.parse(words)


def test_an_output_that_is_a_file_is_answered(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"--output: folder .*taken/below cannot be made"):
        command.main(["--output", str(tmp_path / "taken" / "below")])


def test_a_line_in_the_terminal_shows_its_places_and_remedy():
    line = judged("step", False, "12 host syncs", "report it", tuple(f"a.py:{n}" for n in range(12)))
    text = line_text(line, 80).splitlines()
    assert text[0] == "FAIL step: 12 host syncs" and text[1] == "     a.py:0" and text[-1] == "     -> report it"
    assert text[-2] == "     ... and 4 more"


def report_of_everything() -> Report:
    """A page with every kind of line, and text that must not break it."""
    report = Report("cuda", {"Device": "RTX 5090", "Processor": "<b>EPYC</b>"}, seconds=201.3)
    report.add("environment", judged("driver", True, "driver 575"))
    report.add("environment", judged("/dev/shm", False, "0.06 GB", "docker run --shm-size 8g"))
    wait = "1 x yolov7fast/losses/yolo.py:163 (terms): _local_scalar_dense reads a value of the device"
    report.add("host syncs", judged("YOLO, OTA loss", False, "1 host sync", "report it", (wait,)))
    report.add("speed", Line("speed, OTA loss", FIGURE, "640 images/s; recorded, not measured here: 1174 ms"))
    report.add("speed", Line("GPU busy", LEFT_OUT, "no GPU"))
    return report


def test_the_page_shows_every_line_escaped():
    page = as_page(report_of_everything())
    assert "&lt;b&gt;EPYC" in page and "<b>EPYC" not in page
    for text in ("What is wrong", "docker run --shm-size 8g", "(terms): _", "recorded, not measured here"):
        assert text in page.replace("<wbr>", "")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_a_phone_and_a_desktop(width, tmp_path):
    path = tmp_path / "check.html"
    path.write_text(as_page(report_of_everything()))
    with Browser(width, mobile=width < 600) as browser:
        browser.open_fitting(path)


# --- speed ------------------------------------------------------------------------------------------------------------


def profile(total: float, loss: float) -> dict:
    stages = {"forward": 50.0, "loss": loss, "backward": total - 50.0 - loss}
    rows = {name: {"mean_ms": ms, "fraction": ms / total} for name, ms in stages.items()}
    return {"stages": rows, "total_ms": total, "images_per_s": 64e3 / total, "iterations": 30}


def test_recorded_figures_stand_beside_measured_ones_and_are_marked(setting, monkeypatch):
    assert "recorded" not in speed.speed_line("ota", profile(120, 9), setting).text
    monkeypatch.setattr(type(setting), "on_gpu", property(lambda self: True))
    line = speed.speed_line("ota", profile(117.4, 9), setting)
    assert "recorded, not measured here: upstream on an RTX 5090 1174 ms, 10.00 times this" in line.text
    assert line.figures["recorded_over_measured"] == pytest.approx(10.0, rel=1e-3)
    assert speed.speed_line("plain", profile(171.0, 9), setting).figures["recorded_rtx_5090_ms"] == 170.9


def test_the_fraction_of_the_loss_and_its_price(setting):
    assert "7.5% of the step in the loss" in speed.stages_line("ota", profile(120, 9)).text
    assert speed.ratio_line({"plain": profile(100, 5), "ota": profile(110, 9)}).status == PASSED
    assert speed.ratio_line({"plain": profile(100, 5), "ota": profile(200, 90)}).status == FAILED


class FakeEvent:
    """What the profiler says of a kernel, or of a call on the host."""

    def __init__(self, kind: str, start: float, end: float):
        self.device_type = type("Kind", (), {"name": kind})
        self.time_range = type("Range", (), {"start": start, "end": end})


@pytest.mark.parametrize(
    ("kernels", "fraction"),
    [([(0, 10), (10, 20)], 1.0), ([(0, 10), (5, 8), (20, 30)], 2 / 3), ([(5, 9), (0, 2), (1, 4)], 8 / 9), ([], 0.0)],
)
def test_how_busy_a_device_is_by_its_kernels(kernels, fraction):
    events = [FakeEvent("CUDA", *span) for span in kernels] + [FakeEvent("CPU", -50, 100)]
    assert speed.busy_fraction(speed.kernel_spans(events)) == pytest.approx(fraction)


def test_the_measurement_on_a_gpu_is_traced(setting, monkeypatch):
    """The profiler is played: which kernels ran in the traced steps."""
    ran = []

    class Profiler:
        def __init__(self, activities):
            assert torch.profiler.ProfilerActivity.CUDA in activities

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def events(self):
            return [FakeEvent("CUDA", 0, 30), FakeEvent("CUDA", 70, 100)]

    monkeypatch.setattr(type(setting), "on_gpu", property(lambda self: True))
    monkeypatch.setattr(torch.profiler, "profile", Profiler)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: ran.append("waited"))
    made = type("Made", (), {"run": lambda self, number, loss: ran.append(loss)})()
    line = speed.busy_line(made, "OTA", setting)
    assert line.figures == {"busy_fraction": 0.6} and ran == ["OTA"] * 5 + ["waited"]


def test_a_real_measurement_gives_all_lines(setting, few_layers, monkeypatch):
    monkeypatch.setattr(speed, "CFG", few_layers.config)
    monkeypatch.setattr(speed, "SIZE", 64)
    monkeypatch.setattr(speed, "measure", measure)
    lines = {line.name: line for line in speed.check_speed(setting)}
    assert lines["speed, plain loss"].figures["images_per_s"] > 0
    assert set(lines["stages, OTA loss"].figures["stages_ms"]) >= {"forward", "loss", "assignment", "backward"}
    assert lines["GPU busy, OTA loss"].status == LEFT_OUT and "OTA at the price of plain" in lines


@pytest.mark.parametrize(("visible", "device"), [(None, "0"), ("", "0"), ("3,1", "3"), ("GPU-77aa", "")])
def test_a_child_trains_on_the_gpu_that_was_chosen(visible, device, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resuming.chosen_gpu() == device


@pytest.mark.slow
def test_a_real_run_is_killed_in_mid_epoch_and_resumes_bit_for_bit(setting):
    """Three real processes, as the command starts them."""
    line = resuming.check_resume(setting)
    assert line.status == PASSED, line
