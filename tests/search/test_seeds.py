"""What differs by more than the noise of seeds, by hand."""

from typing import NamedTuple

import pytest

from yolov7fast.reports.trial_ranking import interval, pooled_deviation


class Seeds(NamedTuple):
    values: tuple[float, ...]


def test_the_interval_of_two_means_by_hand():
    """Deviations 0.01 and 0.03 over 2 + 2 degrees of freedom: pooled sqrt(0.0005); t(0.975, 4) = 2.776."""
    one, other = Seeds((0.49, 0.50, 0.51)), Seeds((0.37, 0.40, 0.43))
    deviation, freedom = pooled_deviation([one, other])
    assert (deviation, freedom) == (pytest.approx(0.0223607), 4)
    assert interval(one, other, [one, other]) == pytest.approx(2.776 * 0.0223607 * (2 / 3) ** 0.5, rel=1e-3)
    assert interval(Seeds((0.5,)), Seeds((0.4,)), [Seeds((0.5,))]) == float("inf")
