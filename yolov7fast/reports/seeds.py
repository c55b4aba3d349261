"""What differs by more than the noise of seeds: several trainings of each setting, compared by a t-test."""

import math
import statistics
from collections.abc import Sequence
from typing import Protocol

from scipy.special import stdtrit  # the quantile of Student's t

CONFIDENCE = 0.95


class Repeated(Protocol):
    @property
    def values(self) -> Sequence[float]:
        """Of what is compared, one for each seed."""
        ...


def pooled_deviation(found: Sequence[Repeated]) -> tuple[float, int]:
    """Deviation of a seed, taken over all settings, and its degrees of freedom; NaN where none has two seeds.

    Few seeds each tell little of their own spread, but much together.
    """
    several = [repeated.values for repeated in found if len(repeated.values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in several)
    return (math.sqrt(squares / freedom), freedom) if freedom else (math.nan, 0)


def interval(one: Repeated, other: Repeated, found: Sequence[Repeated]) -> float:
    """Half width of the 95% interval of the difference of two means, by a t-test; infinite where seeds cannot say."""
    deviation, freedom = pooled_deviation(found)
    if not freedom:
        return math.inf
    quantile = float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return quantile * deviation * math.sqrt(1 / len(one.values) + 1 / len(other.values))
