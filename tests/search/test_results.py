"""The tables of a search: columns, ranking, what is noise."""

import csv
import json
from typing import NamedTuple

import pytest

from yolov7fast.reports.trial_ranking import (
    CurvePoint,
    TrialRun,
    aligned,
    best_settings,
    interval,
    pooled_deviation,
    rank,
    ranking,
    verdict,
)
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


def test_completed_settings_rank_by_mean_before_all_others():
    runs = [run(0, 0, 0.1), run(1, 0, 0.3), run(2, 1, 0.25), run(3, 2, 0.9, "pruned"), run(4, 3, 0.9, "failed")]
    places = rank(runs)
    assert [place.setting for place in places] == [1, 0, 2, 3]
    assert places[1].map == pytest.approx(0.2) and places[1].spread == pytest.approx(0.02**0.5)
    assert best_settings(places) == {"lr0": 0.02}
    assert aligned(ranking(places, {})).splitlines()[2].split()[:6] == ["2", "0", "completed", "2", "0.2000", "0.1414"]
    assert best_settings(rank(runs[3:])) is None


class Seeds(NamedTuple):
    values: tuple[float, ...]


def test_the_interval_of_two_means_by_hand():
    """Deviations 0.01 and 0.03 over 2 + 2 degrees of freedom: pooled sqrt(0.0005); t(0.975, 4) = 2.776."""
    one, other = Seeds((0.49, 0.50, 0.51)), Seeds((0.37, 0.40, 0.43))
    assert pooled_deviation([one, other]) == (pytest.approx(0.0223607), 4)
    assert interval(one, other, [one, other]) == pytest.approx(2.776 * 0.0223607 * (2 / 3) ** 0.5, rel=1e-3)
    assert interval(Seeds((0.5,)), Seeds((0.4,)), [Seeds((0.5,))]) == float("inf")


def test_differences_within_the_noise_are_said_to_be(trainer):
    """Pooled deviation 0.01, 3 seeds: t(97.5%, 6) = 2.447, so differences below 2.447 * 0.01 * sqrt(2/3) = 0.01998."""
    text = verdict(rank(repeated(0.300, 0.2801, 0.2)))
    assert "Within the noise of setting 0" in text and "0.0200" in text and "setting 1." in text
    clear = verdict(rank(repeated(0.300, 0.2799, 0.2)))
    assert clear == "Setting 0 is better than every other by more than the noise (0.0200 at 95%)."
    assert "--repeat 3" in verdict(rank([run(0, 0, 0.1), run(1, 1, 0.2)]))


@pytest.mark.parametrize("maps", [(0.0, 0.0, 0.0), (3e-5, 1e-5), (0.3, 0.3)])
def test_a_ranking_in_which_nothing_differs_recommends_nothing(maps):
    places = rank([run(i, i, found) for i, found in enumerate(maps)])
    assert "Nothing differs" in verdict(places) and "--budget-epochs" in verdict(places)
    assert best_settings(places) is None
    assert best_settings(places[:1]) is not None  # one setting alone is what there is


def test_results_are_written_for_any_mixture(tmp_path, trainer):
    runs = [*repeated(0.2, 0.3), run(6, 2, 0.1, "pruned", data="other.yaml"), TrialRun(7, 3, 0, {"lr0": 1.0}, "failed")]
    for name, trials in (("a", runs), ("b", [TrialRun(0, 0, 0, {}, "failed")])):
        write_results(tmp_path / f"trials_{name}.csv", trials, trainer)
        assert (tmp_path / f"ranking_{name}.txt").stat().st_size > 50
        assert (tmp_path / "best.yaml").exists() == (name == "a")
