"""The search: one dimension after the other, each setting in turn with what is chosen so far."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from tqdm import tqdm

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.tuning.dimensions import Dimension, Effect, Flags

GAIN = 0.03  # less than this is noise: what is chosen so far stays
FEWEST, MOST = 2, 6  # rounds of a comparison
LOST = 0.95  # a setting whose first round is slower than this is not given a second


class Trial(Protocol):
    """A run with some flags that can be continued for a moment."""

    def burst(self) -> float:
        """Seconds an image, of the next few iterations."""
        ...

    def close(self) -> None: ...


class Row(NamedTuple):
    """What one setting bought. speedup: against what was chosen before it, above 1 is faster; 0: not measured.

    cost: seconds that it takes at the start; seconds: an image; note: why it was left out.
    """

    dimension: str
    setting: Flags
    effect: Effect
    speedup: float
    seconds: float = 0.0
    cost: float = 0.0
    chosen: bool = False
    note: str = ""


MakeTrial = Callable[[str, Flags], Trial]  # by kind of dimension


class Search:
    """allow_changes: settings that change results may be chosen, too; images: that the planned run will see in all,
    against which start-up costs count."""

    def __init__(
        self,
        make_trial: MakeTrial,
        seconds: float,
        images: int,
        allow_changes: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.make_trial, self.allow_changes, self.clock = make_trial, allow_changes, clock
        self.until = clock() + seconds
        self.images = images
        self.chosen: dict[str, Any] = {}
        self.rows: list[Row] = []

    def run(self, dimensions: Sequence[Dimension]) -> dict[str, Any]:
        """The flags to use; `rows` says what each was worth."""
        for at, dimension in enumerate(tqdm(dimensions, desc="tuning", unit="question")):
            if not dimension.applies(self.chosen):
                continue
            if not (self.allow_changes or dimension.effect.chosen_by_default()):
                self._leave_out(dimension, "changes results: --allow-changes measures it")
            elif (left := self.until - self.clock()) <= 0:
                self._leave_out(dimension, "no time left: give more --minutes")
            else:
                self._compare(dimension, left / (len(dimensions) - at))
        return self.chosen

    def _leave_out(self, dimension: Dimension, note: str) -> None:
        self.rows += [Row(dimension.name, setting, dimension.effect, 0.0, note=note) for setting in dimension.settings]

    def _compare(self, dimension: Dimension, seconds: float) -> None:
        """Measure all settings of a dimension in turn for so long, and take the best if it is better than noise."""
        until = self.clock() + seconds
        best: Row | None = None
        base = self.make_trial(dimension.kind, dict(self.chosen))
        found: list[Row] = []
        try:
            for number, setting in enumerate(dimension.settings):
                left = until - self.clock()
                row = self._against(base, dimension, setting, left / (len(dimension.settings) - number))
                found.append(row)
                if row.speedup > 1 + GAIN and self._pays(row) and (best is None or row.speedup > best.speedup):
                    best = row
        finally:
            base.close()
        self.rows += [row._replace(chosen=row is best) for row in found]
        if best is not None:
            self.chosen |= best.setting

    def _pays(self, row: Row) -> bool:
        """Whether a start-up cost is earned back in the planned run."""
        return row.cost <= self.images * row.seconds * (row.speedup - 1)

    def _against(self, base: Trial, dimension: Dimension, setting: Flags, seconds: float) -> Row:
        began = self.clock()
        try:
            trial = self.make_trial(dimension.kind, {**self.chosen, **setting})
        except (UserError, TimeoutError) as error:
            return Row(dimension.name, setting, dimension.effect, 0.0, note=one_line(error, 90))
        try:
            pairs = list(self._rounds(base, trial, began + seconds))
        except (UserError, TimeoutError) as error:
            return Row(dimension.name, setting, dimension.effect, 0.0, note=one_line(error, 90))
        finally:
            trial.close()
        speedup = statistics.median(theirs / ours for theirs, ours in pairs)
        cost = getattr(trial, "startup", 0.0)
        return Row(dimension.name, setting, dimension.effect, speedup, statistics.median(p[1] for p in pairs), cost)

    def _rounds(self, base: Trial, trial: Trial, until: float) -> Iterable[tuple[float, float]]:
        """(seconds of the base, of the trial), in turn, every second round in reverse order."""
        for number in range(MOST):
            if number >= FEWEST and self.clock() >= until:
                return
            if number % 2:
                ours, theirs = trial.burst(), base.burst()
            else:
                theirs, ours = base.burst(), trial.burst()
            yield theirs, ours
            if number == 0 and theirs / ours < LOST:
                return
