"""The ranking of trials: order, what is noise, what is recommended."""

from typing import NamedTuple

import pytest

from tests.search.test_results import repeated, run
from yolov7fast.reports.trial_ranking import aligned, best_settings, interval, pooled_deviation, rank, ranking, verdict


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


def test_differences_within_the_noise_are_said_to_be():
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
