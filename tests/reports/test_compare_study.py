"""The comparison report of the recorded OTA study: its numbers."""

import pytest

from tests.reports.recorded_study import STUDY, rows_of, write_run
from yolov7fast.reports.comparison import build_report
from yolov7fast.reports.run_results import read_runs


def test_summary_names_the_winners_of_the_recorded_study(report):
    rows = rows_of(report, "Summary")
    assert rows["final mAP@.5"] == ["0.385", "0.414*", "+7.5%"]
    assert rows["final mAP@.5:.95"] == ["0.226", "0.251*", "+11.1%"]
    assert rows["final precision"] == ["0.568*", "0.558", "-1.8%"]
    assert rows["final recall"] == ["0.355", "0.400*", "+12.7%"]
    assert rows["total time"] == ["1.81 h*", "10.65 h", "5.88x"]
    assert [cell[:4] for cell in rows["cost at $1.5 an hour"][:2]] == ["$2.7", "$15."]
    assert rows["epochs done"] == ["100 of 100", "100 of 100", ""]


def test_the_one_setting_that_differs_is_found(report):
    assert rows_of(report, "Settings")["`loss_ota`"] == ["0", "1"]
    assert rows_of(report, "Settings")["`batch_size`"] == ["64"]
    texts = report.sections[1].blocks
    assert "One setting differs:" in texts


def test_losses_of_first_and_last_epoch_are_those_recorded(report):
    rows = rows_of(report, "Loss")
    assert rows["box, first epoch"] == ["0.0963", "0.0609"] and rows["box, last epoch"] == ["0.0602", "0.0357"]
    assert rows["total, first epoch"] == ["0.2254", "0.1626"] and rows["total, last epoch"] == ["0.1295", "0.0781"]


def test_accuracy_at_the_recorded_epochs(report):
    rows = rows_of(report, "Accuracy and recall")
    recorded = {10: ("0.216", "0.247*"), 25: ("0.310*", "0.304"), 50: ("0.365*", "0.360"), 75: ("0.377", "0.395*")}
    assert {e: tuple(rows[f"mAP@.5, epoch {e}"][:2]) for e in recorded} == recorded
    assert rows["mAP@.5, epoch 99"][:2] == ["0.385", "0.414*"]


def test_stage_times_and_gpu_utilisation_come_from_the_profiles(report):
    rows = rows_of(report, "Stage times and GPU utilisation")
    assert rows["loss"] == ["11.2 ± 1.0 ms (6.6%)", "1016.0 ± 1.0 ms (86.5%)"]
    assert rows["total"] == ["170.9 ms*", "1174.1 ms"] and rows["GPU busy"] == ["90.0%*", "13.1%"]


def test_time_and_cost(report):
    rows = rows_of(report, "Time and cost")
    assert rows["time an epoch"] == ["1.1 min*", "6.4 min", "5.88x"]
    assert rows["iterations per second"] == ["29.87*", "5.08", "0.17x"]
    assert rows["mAP@.5:.95 per hour"] == ["0.125*", "0.024", "0.19x"]


def test_equal_time_view_stops_at_the_shortest_run(report):
    rows = rows_of(report, "Equal time")
    assert list(rows)[2] == "after 1.81 h"
    assert rows["after 1.81 h"] == ["0.226 (epoch 99)*", "0.161 (epoch 15)"]
    assert rows["time to reach 0.226"][0] == "1.81 h*"


def test_advice_weighs_accuracy_against_time(report):
    advice = " ".join(report.sections[-1].blocks[0])
    assert "**Final model, accuracy first**: ota" in advice and "best mAP@.5:.95 0.251 at epoch 99" in advice
    assert "0.025 mAP@.5:.95 (+11.1%) above noota for 5.9 times its time (10.65 h against 1.81 h)" in advice
    assert "**Many experiments, or a small budget**: noota" in advice and "**Only 1.81 h**: noota" in advice
    assert "**Missing an object is worst**: ota" in advice and "**A false alarm is worst**: noota" in advice


@pytest.mark.parametrize(
    "hours, sentence",
    [
        ((1.81, 1.81), "The runs do not differ in accuracy or time: there is nothing to recommend."),
        ((1.81, 1.86), "The runs do not differ in accuracy or time: there is nothing to recommend."),
        ((1.81, 2.5), "**Equally accurate**: a, least time 1.81 h (against 2.50 h)."),
    ],
)
def test_runs_that_do_not_differ_get_no_recommendation(hours, sentence, tmp_path):
    runs = [write_run(tmp_path / name, {**STUDY["ota"], "hours": h}) for name, h in zip("ab", hours)]
    report = build_report(read_runs(runs), 1.5)
    assert report.sections[-1].blocks[0] == [sentence]


def test_every_section_that_was_asked_for_is_there_in_both_forms(report, written):
    titles = [section.title for section in report.sections]
    assert titles == [
        "Summary", "Settings", "Loss", "Accuracy and recall", "Stability over the last ten epochs",
        "Stage times and GPU utilisation", "Time and cost", "Equal time", "Accuracy against hours", "File sizes",
        "Advice by use case",
    ]  # fmt: skip
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert all(title in text for title in titles), path
