"""Comparison of runs that are short, damaged, unequal or of another family."""

import os
import re

import numpy as np
import pytest

from tests.reports.recorded_study import STUDY, rows_of, write_run
from yolov7fast.reports.comparison import build_report
from yolov7fast.reports.html_page import to_markdown
from yolov7fast.reports.run_results import read_run, read_runs


def test_runs_of_different_length_are_compared_at_the_epochs_they_share(tmp_path, study):
    short = write_run(tmp_path / "short", STUDY["ota"], epochs=30)
    report = build_report(read_runs([study[0], short]), None)
    rows = rows_of(report, "Accuracy and recall")
    assert max(int(label.rsplit(" ", 1)[1]) for label in rows) == 29
    assert rows_of(report, "Summary")["epochs done"][1] == "30 of 100"
    assert "ended after 30 of 100 epochs" in to_markdown(report)
    assert "cost" not in " ".join(rows_of(report, "Summary"))


def test_missing_epochs_columns_and_times_are_reported(tmp_path):
    run = write_run(tmp_path / "odd", STUDY["ota"], epochs=20, csv=False)
    lines = (run / "results.txt").read_text().splitlines()
    (run / "results.txt").write_text("\n".join(line[:80] for line in lines[:5] + lines[8:]) + "\n")
    for name in ("opt.yaml", "hyp.yaml", "profile.json"):
        (run / name).unlink()
    odd = read_run(run)
    assert odd.epoch.tolist() == [*range(5), *range(8, 20)] and odd.seconds is None
    assert not np.isfinite(odd.metrics["map"]).any() and odd.losses["box"][0] == pytest.approx(0.0609)
    assert any("3 epochs are missing" in note for note in odd.notes)
    text = to_markdown(build_report([odd], 1.5))
    assert "unknown" in text and not re.search(r"\bnan\b", text)


def test_time_is_estimated_from_the_files_where_there_is_no_csv(tmp_path):
    run = write_run(tmp_path / "old", STUDY["noota"], epochs=10, csv=False)
    start = (run / "results.txt").stat().st_mtime
    for name in ("opt.yaml", "hyp.yaml"):
        os.utime(run / name, (start - 3600, start - 3600))
    old = read_run(run)
    assert old.time_source == "file times" and old.total_hours == pytest.approx(1, abs=0.01)
    assert any("estimated from file times" in note for note in old.notes)


def test_an_epoch_that_was_not_validated_is_a_gap(tmp_path):
    run = write_run(tmp_path / "interval", STUDY["noota"], epochs=4)
    lines = (run / "results.csv").read_text().splitlines()
    fields = lines[2].split(",")
    for i in range(7, 14):
        fields[i] = ""
    lines[2] = ",".join(fields)
    (run / "results.csv").write_text("\n".join(lines) + "\n")
    metrics = read_run(run).metrics["map"]
    assert np.isfinite(metrics).tolist() == [True, False, True, True]


def test_a_csv_alone_and_losses_of_other_names_are_enough(tmp_path):
    run = tmp_path / "detr"
    run.mkdir()
    (run / "results.csv").write_text(
        "epoch,train/ce,train/total,metrics/mAP_0.5:0.95,seconds\n0,2,5,0.1,60\n1,1,4,0.2,60\n"
    )
    detr = read_run(run)
    assert list(detr.losses) == ["ce", "total"] and detr.metrics["map"].tolist() == [0.1, 0.2]
    assert "ce, last epoch" in rows_of(build_report([detr], None), "Loss")


def test_many_runs_have_no_change_column_and_one_run_no_winner(tmp_path, study):
    third = write_run(tmp_path / "third", STUDY["noota"] | {"hours": 1.0}, epochs=50)
    three = build_report(read_runs([*study, third]), 1.5)
    assert rows_of(three, "Summary")["total time"] == ["1.81 h", "10.65 h", "30.0 min*"]
    assert three.title == "Comparison of noota, ota and third"
    one = build_report(read_runs(study[:1]), 1.5)
    assert not any("*" in cell for cells in rows_of(one, "Summary").values() for cell in cells)


def test_runs_of_one_name_are_named_with_their_parents(tmp_path):
    runs = read_runs([write_run(tmp_path / f"{p}/exp", STUDY["ota"], epochs=3) for p in "ab"])
    assert [run.name for run in runs] == ["a/exp", "b/exp"]


def test_files_that_are_not_as_they_should_be_leave_unknown_figures_and_a_note(tmp_path):
    run = write_run(tmp_path / "odd", STUDY["ota"], epochs=3)
    (run / "results.txt").unlink()
    (run / "opt.yaml").write_text("epochs: many\n")
    (run / "hyp.yaml").write_bytes("name: caf\u00e9\n".encode("latin-1"))
    odd = read_run(run)
    assert odd.planned == 3 and odd.hyp == {}
    assert "epochs in its opt.yaml is 'many', not a number: the 3 finished epochs are used" in odd.notes
    assert "its hyp.yaml is not plain YAML in UTF-8: settings unknown" in odd.notes
    (run / "opt.yaml").write_text("epochs: 7\n")
    assert read_run(run).planned == 7
    (run / "opt.yaml").write_bytes(b"epochs: 7 # \xe9\n")
    assert read_run(run).planned == 3
    assert "3 of 3" in to_markdown(build_report([read_run(run)], None))


@pytest.mark.parametrize("text", ["{", "[]", '{"stages": []}', '{"stages": {"loss": 3}}', "\xff"])
def test_a_profile_that_cannot_be_read_is_a_note_and_a_missing_number_an_unknown_cell(text, tmp_path):
    run = write_run(tmp_path / "odd", STUDY["ota"], epochs=3)
    (run / "profile.json").write_bytes(text.encode("latin-1"))
    odd = read_run(run)
    assert odd.profile == {} and "its profile.json cannot be read" in odd.notes
    (run / "profile.json").write_text('{"stages": {"loss": {"mean_ms": 5.0, "std_ms": null}}, "total_ms": "long"}')
    rows = rows_of(build_report([read_run(run)], None), "Stage times and GPU utilisation")
    assert rows["loss"] == rows["total"] == ["unknown"]


def test_the_report_says_how_stages_are_measured(tmp_path, study):
    bare = write_run(tmp_path / "bare", STUDY["ota"], epochs=3)
    (bare / "profile.json").unlink()
    both = to_markdown(build_report(read_runs([study[0], bare]), None))
    assert "Without a `profile.json`: bare." in both and "python tests/profile_training_loop.py --data" in both
    assert "| forward | 50.2 \u00b1 1.0 ms" in both
    assert "profile_training_loop" not in to_markdown(build_report(read_runs(study), None))


def test_weights_of_transformer_runs_count(tmp_path):
    run = write_run(tmp_path / "detr", STUDY["ota"], epochs=3)
    (run / "weights" / "best.pt").unlink()
    for name, size in (("best.pth", 4_000_000), ("last.pth", 2_000_000), ("notes.ptx", 10)):
        (run / "weights" / name).write_bytes(bytes(size))
    other = write_run(tmp_path / "worse", STUDY["noota"], epochs=3)
    report = build_report(read_runs([run, other]), None)
    assert rows_of(report, "File sizes")["`best.pth`"][0] == "4.0 MB"
    assert rows_of(report, "File sizes")["all checkpoints"][0] == "6.0 MB in 2"
    assert rows_of(report, "Summary")["weights file"][0] == "4.0 MB"
    assert f"detr (`{run}/weights/best.pth`)" in "\n".join(report.sections[-1].blocks[0])
