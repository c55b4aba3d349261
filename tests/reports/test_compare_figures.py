"""The figures behind the comparison report, one by one."""

import math

import numpy as np
import pytest

from tests.reports.recorded_study import STUDY, write_run
from yolov7fast.reports.comparison import build_report
from yolov7fast.reports.run_results import read_run, read_runs
from yolov7fast.reports.run_statistics import (
    at_hours,
    best,
    differing_settings,
    hours_to,
    late,
    settings,
)


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


def test_runs_that_have_learnt_nothing_get_no_advice(tmp_path):
    early = [
        write_run(tmp_path / name, values | {"final": (0.1, 0.1, 0.1, 0.001)}, 3) for name, values in STUDY.items()
    ]
    items = build_report(read_runs(early), 1.5).sections[-1].blocks[0]
    assert len(items) == 1 and "too early" in items[0]


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
