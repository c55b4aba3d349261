"""The tables of a search."""

import csv
import json

import pytest

from yolov7fast.reports.trial_ranking import CurvePoint, TrialRun, rank, ranking
from yolov7fast.search.runner import setting_columns, write_csv, write_results
from yolov7fast.search.trial_training import Budget, read_trials, training_for

pytestmark = pytest.mark.usefixtures("project_root")


def run(id: int, setting: int, value: float, status: str = "completed", **params) -> TrialRun:
    curve = [CurvePoint(0, 2.0, value / 2, value), CurvePoint(1, 1.0, value, value * 1.5)]
    return TrialRun(id, setting, id, {"lr0": 0.01 * (setting + 1), **params}, status, curve, 60.0)


def repeated(*means: float) -> list[TrialRun]:
    """Three seeds for each setting, 0.01 apart."""
    deviations = (-0.01, 0.0, 0.01)
    return [run(3 * s + k, s, mean + d) for s, mean in enumerate(means) for k, d in enumerate(deviations)]


def test_the_csv_names_settings_as_the_user_wrote_them_in_that_order(tmp_path):
    trainer = training_for("configs/detr_baseline.yaml")("configs/detr_baseline.yaml", Budget())
    trials = [
        {"training.optimizer.lr": 1e-4, "training.batch_size": 4},
        {"batch_size": 8, "lr": 1e-3, "training.clip_norm": 0.2},
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trials))
    settings = read_trials(path, trainer)
    runs = [
        TrialRun(i, i, 0, params, "completed", [CurvePoint(0, 1.0, 0.1, 0.2)]) for i, params in enumerate(settings, 1)
    ]
    write_csv(tmp_path / "t.csv", runs, trainer)
    head, first, second = csv.reader((tmp_path / "t.csv").open())
    names = ["training.optimizer.lr", "training.batch_size", "training.clip_norm"]
    assert head[:7] == ["trial_id", "status", "final_map", "final_loss", *(f"param_{name}" for name in names)]
    assert first[:7] == ["1", "completed", "0.1", "1", "0.0001", "4", "0.1"] and second[4:7] == ["0.001", "8", "0.2"]
    assert ranking(rank(runs), setting_columns(runs, trainer))[0][-3:] == [f"param_{name}" for name in names]


def test_the_csv_has_the_promised_columns(tmp_path, trainer):
    runs = [run(0, 0, 0.2), run(1, 1, 0.3, "failed", batch_size=8), TrialRun(2, 2, 0, {}, "interrupted")]
    runs[1].reason = "RuntimeError: a, b"
    write_csv(tmp_path / "t.csv", runs, trainer)
    lines = list(csv.reader((tmp_path / "t.csv").open()))
    assert lines[0][:6] == ["trial_id", "status", "final_map", "final_loss", "param_lr0", "param_batch_size"]
    assert lines[0][6:8] == ["wall_time", "best_epoch"]
    assert lines[1] == ["0", "completed", "0.2", "1", "0.01", "16", "60.0", "1", "0.3", "0", "0", ""]
    assert lines[2][:6] == ["1", "failed", "", "1", "0.02", "8"] and lines[2][-1] == "RuntimeError: a, b"
    assert lines[3][:6] == ["2", "interrupted", "", "", "0.01", "16"]  # what the base configuration has


def test_results_are_written_for_any_mixture(tmp_path, trainer):
    runs = [*repeated(0.2, 0.3), run(6, 2, 0.1, "pruned", data="other.yaml"), TrialRun(7, 3, 0, {"lr0": 1.0}, "failed")]
    for name, trials in (("a", runs), ("b", [TrialRun(0, 0, 0, {}, "failed")])):
        write_results(tmp_path / f"trials_{name}.csv", trials, trainer)
        assert (tmp_path / f"ranking_{name}.txt").stat().st_size > 50
        assert (tmp_path / "best.yaml").exists() == (name == "a")
