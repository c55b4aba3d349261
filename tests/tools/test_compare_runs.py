"""The comparison report: its numbers from the recorded OTA study, odd runs, and the page in a real browser."""

import json
import math
import os
import re
import sys

import numpy as np
import pytest
import yaml

from tests.browser import Browser
from tools.compare import plots
from tools.compare.figures import at_hours, best, differing_settings, duration, hours_to, late, settings, winner
from tools.compare.render import Bullets, Cell, Report, Section, Table, Text, to_html, to_markdown
from tools.compare.runs import read_run, read_runs
from tools.compare.sections import build_report, profile_command
from tools.compare_runs import main, write_report
from utils.errors import UserError

CSV_HEADER = (
    "epoch,train/box,train/obj,train/cls,train/total,labels,img_size,metrics/precision,metrics/recall,"
    "metrics/mAP_0.5,metrics/mAP_0.5:0.95,val/box,val/obj,val/cls,lr0,lr1,lr2,seconds,train_seconds,val_seconds,"
    "iterations,data_wait_share,memory_gb"
)
# the recorded study: tiny network, COCO at 320, 100 epochs
STUDY = {
    "noota": {
        "map50": ([0, 10, 25, 50, 75, 99], [0.02, 0.216, 0.310, 0.365, 0.377, 0.385]),
        "final": (0.568, 0.355, 0.385, 0.226),
        "losses": ((0.0963, 0.0602), (0.0460, 0.0398), (0.0830, 0.0295), (0.2254, 0.1295)),
        "hours": 1.81, "loss_ota": 0, "stages": (50.2, 11.2, 103.6), "total_ms": 170.9, "busy": 0.900,
    },
    "ota": {
        "map50": ([0, 10, 25, 50, 75, 99], [0.03, 0.247, 0.304, 0.360, 0.395, 0.414]),
        "final": (0.558, 0.400, 0.414, 0.251),
        "losses": ((0.0609, 0.0357), (0.0251, 0.0232), (0.0766, 0.0192), (0.1626, 0.0781)),
        "hours": 10.65, "loss_ota": 1, "stages": (50.2, 1016.0, 103.4), "total_ms": 1174.1, "busy": 0.131,
    },
}  # fmt: skip


def write_run(folder, study, epochs: int = 100, csv: bool = True):
    """A run folder whose curves go through the recorded values."""
    (folder / "weights").mkdir(parents=True)
    epoch = np.arange(epochs)
    map50 = np.interp(epoch, *study["map50"])
    growth = map50 / study["final"][2]
    fade = np.linspace(1, 0, 100)[:epochs]
    losses = [a * fade + b * (1 - fade) for a, b in study["losses"]]
    text, table = [], [CSV_HEADER]
    seconds = study["hours"] * 36
    for e in epoch:
        values = [loss[e] for loss in losses] + [512, 320] + [final * growth[e] for final in study["final"]]
        values += [0.06, 0.04, 0.02]
        text.append(("%10s%10s" + "%10.4g" * 13) % (f"{e}/99", "3.2G", *values))
        further = [0.01, 0.01, 0.01, seconds, seconds * 0.95, seconds * 0.05, 1849, 0.02, 3.2]
        table.append(",".join(f"{v:.6g}" for v in [e, *values, *further]))
    (folder / "results.txt").write_text("\n".join(text) + "\n")
    if csv:
        (folder / "results.csv").write_text("\n".join(table) + "\n")
    options = {"epochs": 100, "batch_size": 64, "cfg": "yolov7-tiny.yaml", "name": folder.name, "save_dir": str(folder)}
    (folder / "opt.yaml").write_text(yaml.safe_dump(options))
    (folder / "hyp.yaml").write_text(yaml.safe_dump({"lr0": 0.01, "loss_ota": study["loss_ota"]}))
    (folder / "weights" / "best.pt").write_bytes(bytes(12_600_000 // 1000))
    stages = dict(zip(("forward", "loss", "backward"), study["stages"]))
    profile = {
        "stages": {k: {"mean_ms": v, "std_ms": 1.0, "share": v / study["total_ms"]} for k, v in stages.items()},
        "total_ms": study["total_ms"], "images_per_s": 64000 / study["total_ms"], "gpu_busy": study["busy"],
    }  # fmt: skip
    (folder / "profile.json").write_text(json.dumps(profile))
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [write_run(folder / name, values) for name, values in STUDY.items()]


@pytest.fixture(scope="module")
def report(study):
    return build_report(read_runs(study), 1.5)


@pytest.fixture(scope="module")
def written(report, tmp_path_factory):
    return write_report(report, tmp_path_factory.mktemp("report"))


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without drawing, which takes most of their time."""
    monkeypatch.setattr(plots, "_svg", lambda name, *_: f'<svg data-name="{name}"/>')


def rows_of(report: Report, title: str) -> dict[str, list[str]]:
    """Label -> cells of every table of a section; the winner carries a star."""
    section = next(s for s in report.sections if s.title == title)
    tables = [block for block in section.blocks if isinstance(block, Table)]
    return {row[0]: [mark(cell) for cell in row[1:]] for table in tables for row in table.rows}


def mark(cell) -> str:
    return cell if isinstance(cell, str) else cell.text + "*" * cell.best


# --- the recorded study -----------------------------------------------------------------------------------------------


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
    texts = [b.text for b in report.sections[1].blocks if isinstance(b, Text)]
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


def test_stage_times_and_gpu_share_come_from_the_profiles(report):
    rows = rows_of(report, "Stage times and GPU share")
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
    advice = " ".join(report.sections[-1].blocks[0].items)
    assert "**Final model, accuracy first**: ota" in advice and "best mAP@.5:.95 0.251 at epoch 99" in advice
    assert "0.025 mAP@.5:.95 (+11.1%) above noota for 5.9 times its time (10.65 h against 1.81 h)" in advice
    assert "**Many experiments, or a small budget**: noota" in advice and "**Only 1.81 h**: noota" in advice
    assert "**Missing an object is worst**: ota" in advice and "**A false alarm is worst**: noota" in advice


def test_every_section_that_was_asked_for_is_there_in_both_forms(report, written):
    titles = [section.title for section in report.sections]
    assert titles == [
        "Summary", "Settings", "Loss", "Accuracy and recall", "Stability over the last ten epochs",
        "Stage times and GPU share", "Time and cost", "Equal time", "Accuracy against hours", "File sizes",
        "Advice by use case",
    ]  # fmt: skip
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert all(title in text for title in titles), path


def test_markdown_links_plots_that_exist(written):
    folder = written[0].parent
    links = [line.split("](")[1].rstrip(")") for line in written[0].read_text().splitlines() if line.startswith("![")]
    assert len(links) >= 14 and all((folder / link).is_file() for link in links)
    assert {"plots/loss_box.svg", "plots/loss_obj.svg", "plots/loss_cls.svg", "plots/loss_total.svg"} <= set(links)


# --- runs that are not so neat ----------------------------------------------------------------------------------------


def test_runs_of_different_length_are_compared_at_the_epochs_they_share(tmp_path, study, undrawn):
    short = write_run(tmp_path / "short", STUDY["ota"], epochs=30)
    report = build_report(read_runs([study[0], short]), None)
    rows = rows_of(report, "Accuracy and recall")
    assert max(int(label.rsplit(" ", 1)[1]) for label in rows) == 29
    assert rows_of(report, "Summary")["epochs done"][1] == "30 of 100"
    assert "ended after 30 of 100 epochs" in to_markdown(report, "plots")
    assert "cost" not in " ".join(rows_of(report, "Summary"))


def test_missing_epochs_columns_and_times_are_told(tmp_path, undrawn):
    run = write_run(tmp_path / "odd", STUDY["ota"], epochs=20, csv=False)
    lines = (run / "results.txt").read_text().splitlines()
    (run / "results.txt").write_text("\n".join(line[:80] for line in lines[:5] + lines[8:]) + "\n")
    for name in ("opt.yaml", "hyp.yaml", "profile.json"):
        (run / name).unlink()
    odd = read_run(run)
    assert odd.epoch.tolist() == [*range(5), *range(8, 20)] and odd.seconds is None
    assert not np.isfinite(odd.metrics["map"]).any() and odd.losses["box"][0] == pytest.approx(0.0609)
    assert any("3 epochs are missing" in note for note in odd.notes)
    text = to_markdown(build_report([odd], 1.5), "plots")
    assert "unknown" in text and not re.search(r"\bnan\b", text)


def test_time_is_estimated_from_the_files_where_there_is_no_csv(tmp_path):
    run = write_run(tmp_path / "old", STUDY["noota"], epochs=10, csv=False)
    start = (run / "results.txt").stat().st_mtime
    for name in ("opt.yaml", "hyp.yaml"):
        os.utime(run / name, (start - 3600, start - 3600))
    old = read_run(run)
    assert old.time_source == "file times" and old.total_hours == pytest.approx(1, abs=0.01)
    assert any("estimated from file times" in note for note in old.notes)


def test_copied_files_of_equal_age_give_no_time(tmp_path):
    run = write_run(tmp_path / "copy", STUDY["noota"], epochs=10, csv=False)
    assert read_run(run).seconds is None


def test_a_missing_time_is_the_median_of_the_others(tmp_path):
    run = write_run(tmp_path / "gap", STUDY["noota"], epochs=5)
    lines = (run / "results.csv").read_text().splitlines()
    fields = lines[3].split(",")
    fields[CSV_HEADER.split(",").index("seconds")] = ""
    lines[3] = ",".join(fields)
    (run / "results.csv").write_text("\n".join(lines) + "\n")
    gap = read_run(run)
    assert gap.seconds == pytest.approx([1.81 * 36] * 5) and any("median" in note for note in gap.notes)


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


def test_a_csv_alone_and_losses_of_other_names_are_enough(tmp_path, undrawn):
    run = tmp_path / "detr"
    run.mkdir()
    (run / "results.csv").write_text(
        "epoch,train/ce,train/total,metrics/mAP_0.5:0.95,seconds\n0,2,5,0.1,60\n1,1,4,0.2,60\n"
    )
    detr = read_run(run)
    assert list(detr.losses) == ["ce", "total"] and detr.metrics["map"].tolist() == [0.1, 0.2]
    assert "ce, last epoch" in rows_of(build_report([detr], None), "Loss")


def test_many_runs_have_no_change_column_and_one_run_no_winner(tmp_path, study, undrawn):
    third = write_run(tmp_path / "third", STUDY["noota"] | {"hours": 1.0}, epochs=50)
    three = build_report(read_runs([*study, third]), 1.5)
    assert rows_of(three, "Summary")["total time"] == ["1.81 h", "10.65 h", "30.0 min*"]
    assert three.title == "Comparison of noota, ota and third"
    one = build_report(read_runs(study[:1]), 1.5)
    assert not any("*" in cell for cells in rows_of(one, "Summary").values() for cell in cells)


def test_runs_of_one_name_are_told_apart_by_their_parents(tmp_path):
    runs = read_runs([write_run(tmp_path / f"{p}/exp", STUDY["ota"], epochs=3) for p in "ab"])
    assert [run.name for run in runs] == ["a/exp", "b/exp"]


def test_results_txt_may_be_named_instead_of_its_folder(study):
    assert read_run(study[0] / "results.txt").folder == study[0]


def test_files_that_are_not_as_they_should_be_leave_unknown_figures_and_a_note(tmp_path, undrawn):
    run = write_run(tmp_path / "odd", STUDY["ota"], epochs=3)
    (run / "results.txt").unlink()
    (run / "opt.yaml").write_text("epochs: many\n")
    (run / "hyp.yaml").write_bytes("name: caf\u00e9\n".encode("latin-1"))
    odd = read_run(run)
    assert odd.planned == 3 and odd.hyp == {}
    assert "epochs in its opt.yaml is 'many', which is no number: taken as the 3 done" in odd.notes
    assert "its hyp.yaml is not plain YAML in UTF-8: settings unknown" in odd.notes
    (run / "opt.yaml").write_text("epochs: 7\n")
    assert read_run(run).planned == 7
    (run / "opt.yaml").write_bytes(b"epochs: 7 # \xe9\n")
    assert read_run(run).planned == 3
    assert "3 of 3" in to_markdown(build_report([read_run(run)], None), "plots")


def test_a_stage_without_a_number_is_an_unknown_cell(tmp_path):
    run = write_run(tmp_path / "odd", STUDY["ota"], epochs=3)
    stages = {
        "forward": {"mean_ms": 50.0, "std_ms": "much", "share": None},
        "loss": {"mean_ms": None, "std_ms": 1.0, "share": 0.1},
        "backward": {"mean_ms": "slow"},
    }
    (run / "profile.json").write_text(json.dumps({"stages": stages, "total_ms": "long", "images_per_s": None}))
    rows = rows_of(build_report([read_run(run)], None), "Stage times and GPU share")  # drawn, too
    assert rows["forward"] == ["50.0 ms"] and rows["loss"] == rows["backward"] == rows["total"] == ["unknown"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"stages": []}', '{"stages": {"loss": 3}}', '{"stages": {"loss": {"mean_ms": null}}}', "\xff"]
)
def test_a_profile_without_any_number_is_a_note(text, tmp_path):
    run = write_run(tmp_path / "odd", STUDY["ota"], epochs=3)
    (run / "profile.json").write_bytes(text.encode("latin-1"))
    odd = read_run(run)
    assert odd.profile is None and "its profile.json cannot be read" in odd.notes


def test_the_report_names_the_command_that_measures_the_stages(tmp_path, study, undrawn):
    bare = write_run(tmp_path / "my runs" / "bare", STUDY["ota"], epochs=3)
    (bare / "profile.json").unlink()
    options = {
        "data": "data/coco320.yaml",
        "cfg": "cfg/tiny.yaml",
        "batch_size": 64,
        "img_size": [320, 320],
        "workers": 8,
    }
    (bare / "opt.yaml").write_text(yaml.safe_dump(options))
    command = (
        "python tests/profile_training_loop.py --data data/coco320.yaml --cfg cfg/tiny.yaml "
        f"--hyp '{bare}/hyp.yaml' --batch-size 64 --img-size 320 320 --workers 8 --output '{bare}'"
    )
    alone = to_markdown(build_report([read_run(bare)], None), "plots")
    assert f"- `{command}`" in alone and "Without a `profile.json`: bare." in alone
    both = to_markdown(build_report(read_runs([study[0], bare]), None), "plots")
    assert f"- `{command}`" in both and "| forward | 50.2 \u00b1 1.0 ms" in both
    assert "profile_training_loop" not in to_markdown(build_report(read_runs(study), None), "plots")
    (bare / "hyp.yaml").unlink()
    for options, words in (
        ({"cfg": "", "weights": "best.pt", "data": "d.yaml"}, "--data d.yaml --cfg '' --weights best.pt"),
        ({"cfg": "c.yaml", "weights": "best.pt", "data": "d.yaml"}, "--data d.yaml --cfg c.yaml"),
        ({}, "--data DATA.yaml"),
    ):
        (bare / "opt.yaml").write_text(yaml.safe_dump(options))
        assert profile_command(read_run(bare)) == f"python tests/profile_training_loop.py {words} --output '{bare}'"
    (bare / "opt.yaml").write_text("architecture: detr\n")  # a family that this profiler does not know
    text = to_markdown(build_report([read_run(bare)], None), "plots")
    assert "Without a `profile.json`: bare." in text and "profile_training_loop" not in text


def test_weights_of_transformer_runs_count(tmp_path, undrawn):
    run = write_run(tmp_path / "detr", STUDY["ota"], epochs=3)
    (run / "weights" / "best.pt").unlink()
    for name, size in (("best.pth", 4_000_000), ("last.pth", 2_000_000), ("notes.ptx", 10)):
        (run / "weights" / name).write_bytes(bytes(size))
    other = write_run(tmp_path / "worse", STUDY["noota"], epochs=3)
    report = build_report(read_runs([run, other]), None)
    assert rows_of(report, "File sizes")["`best.pth`"][0] == "4.0 MB"
    assert rows_of(report, "File sizes")["all checkpoints"][0] == "6.0 MB in 2"
    assert rows_of(report, "Summary")["weights file"][0] == "4.0 MB"
    assert f"detr (`{run}/weights/best.pth`)" in "\n".join(report.sections[-1].blocks[0].items)


@pytest.mark.parametrize("output", ["file", "file/below"])
def test_an_output_below_a_file_is_a_user_error(output, study, tmp_path, monkeypatch, undrawn):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", str(study[0]), "--output", str(tmp_path / output)])
    with pytest.raises(UserError, match=r"--output .* cannot be written to"):
        main()
    assert (tmp_path / "file").read_text() == "mine"


def test_mistakes_are_user_errors(tmp_path, study, monkeypatch):
    with pytest.raises(UserError, match="does not exist"):
        read_run(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="neither results"):
        read_run(tmp_path / "empty")
    with pytest.raises(UserError, match="twice"):
        read_runs([study[0], study[0]])
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", str(study[0]), "--rate", "-1"])
    with pytest.raises(UserError, match="--rate"):
        main()


def test_command_writes_to_a_folder_of_its_own_and_prints_the_advice(study, tmp_path, monkeypatch, capsys, undrawn):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["compare_runs.py", *map(str, study)])
        assert main() == 0
    assert sorted(p.name for p in (tmp_path / "runs/compare").iterdir()) == ["exp", "exp2"]
    assert "Final model, accuracy first: ota" in capsys.readouterr().out
    assert not list((tmp_path / "runs/compare").rglob(".*"))


# --- figures ----------------------------------------------------------------------------------------------------------


def test_equal_time_values_and_time_to_a_value(study):
    run = read_run(study[0])
    assert at_hours(run, "map50", 1.81 * 0.51).epoch == 50
    assert math.isnan(at_hours(run, "map50", 0.001).value)
    assert hours_to(run, "map50", 0.310) == pytest.approx(1.81 * 26 / 100)
    assert math.isnan(hours_to(run, "map50", 0.9))
    assert (best(run, "map").epoch, best(run, "map").value) == (99, pytest.approx(0.226))


def test_late_stability_tells_trend_from_scatter(study):
    run = read_run(study[0])
    wave = 0.2 + 0.001 * run.epoch + 0.01 * (-1.0) ** run.epoch
    window = late(run, wave)
    assert window.count == 10 and window.slope == pytest.approx(0.001, abs=7e-4)
    assert window.scatter == pytest.approx(0.01, abs=1e-3) and window.std > window.scatter
    assert late(run, np.full(100, np.nan)).count == 0


def test_runs_that_have_learnt_nothing_get_no_advice(tmp_path, undrawn):
    early = [
        write_run(tmp_path / name, values | {"final": (0.1, 0.1, 0.1, 0.001)}, 3) for name, values in STUDY.items()
    ]
    items = build_report(read_runs(early), 1.5).sections[-1].blocks[0].items
    assert len(items) == 1 and "too early" in items[0]


@pytest.mark.parametrize(
    "hours, text", [(10.65, "10.65 h"), (0.5, "30.0 min"), (0.01, "36.0 s"), (math.nan, "unknown")]
)
def test_durations_read_well(hours, text):
    assert duration(hours) == text


def test_winner_needs_two_known_values_that_differ():
    assert winner([1.0, 2.0], True) == 1 and winner([1.0, 2.0], False) == 0
    assert winner([1.0, math.nan], True) is None and winner([1.0, 1.0], True) is None


def test_an_option_on_the_command_line_wins_over_the_hyper_parameter_of_its_name(study):
    run = read_run(study[0])
    run.opt["loss_ota"] = None
    assert settings(run)["loss_ota"] == 0
    run.opt["loss_ota"] = 1
    assert settings(run)["loss_ota"] == 1


def test_settings_unknown_in_one_run_are_not_called_different(study, tmp_path):
    bare = write_run(tmp_path / "bare", STUDY["ota"], epochs=3)
    (bare / "opt.yaml").unlink()
    (bare / "hyp.yaml").unlink()
    assert differing_settings(read_runs([study[0], bare])) == {}


# --- the page ---------------------------------------------------------------------------------------------------------


def test_text_is_escaped():
    cells = [Cell("<b>|", True), "a|b"]
    report = Report(
        "<script>alert(1)</script>", [Section("S & T", [Text("`x<y`"), Bullets(["**a**"]), Table(["h", "i"], [cells])])]
    )
    page = to_html(report)
    assert "<script" not in page and "&lt;script&gt;" in page and "<code>x&lt;y</code>" in page
    assert '<td class="best">&lt;b&gt;|</td>' in page and "<strong>a</strong>" in page
    assert "| **<b>\\|** | a\\|b |" in to_markdown(report, "p")


def test_page_needs_nothing_but_itself(written):
    page = written[1].read_text(encoding="utf-8")
    assert "<svg" in page and not [word for word in ("<script", "<img", "<link", "url(http", "src=") if word in page]
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids)), "the plots' inner ids must not meet"


@pytest.mark.parametrize("width, mobile", [(1280, False), (390, True)])
def test_page_in_a_browser(written, width, mobile):
    with Browser(width, mobile=mobile) as page:
        page.open(written[1])
        assert page.log() == [], "script error, or something that could not be loaded"
        sizes = page.run(
            "return [innerWidth, document.documentElement.scrollWidth,"
            " [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().toJSON())]"
        )
        assert sizes[0] == width and sizes[1] <= width, "the page is wider than the screen"
        assert len(sizes[2]) >= 14 and all(200 < s["width"] <= width and s["height"] > 80 for s in sizes[2])
        smallest = page.run(
            "return Math.min(...[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect())"
            ".map(r => Math.min(r.width, r.height)).filter(x => x > 0).concat([99]))"
        )
        assert smallest >= 4, "axis labels stay legible"
        body = page.run("return parseFloat(getComputedStyle(document.querySelector('td')).fontSize)")
        assert body >= 12
