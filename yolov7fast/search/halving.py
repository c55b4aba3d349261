"""Successive halving that pauses and promotes: who trains on after a rung, and whose checkpoint is needed no more.

A trial that reaches a rung (a number of epochs) pauses there: its training ends with a checkpoint. Of those that have
reached a rung the best third are promoted: each resumes where it stopped, up to the next rung. Nobody waits for
the slowest of a rung: where none can be promoted, new trials are drawn. So 27 trials with rungs at 3, 9 and 27 of 81
epochs train 27 * 3 + 9 * 6 + 3 * 18 + 54 = 243 epochs, those of three full trials.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

REDUCTION = 3  # of those that reach a rung, one in so many continues
RUNG, PAUSED = "rung", "paused"  # attributes of a trial: the rung it trains up to; whether it has paused there
History = Sequence[tuple[int, FrozenTrial]]  # all trials, each with its setting; the last of a setting counts


@dataclass(frozen=True)
class Halving:
    """rungs: in epochs, rising; none: no trial pauses. has_brackets: Hyperband, some trials pause later than others."""

    rungs: tuple[int, ...] = ()
    has_brackets: bool = False

    @classmethod
    def of(cls, pruner: str, epochs: int, first: int) -> "Halving":
        """first: epochs before the first rung."""
        if pruner not in ("asha", "hyperband"):
            return cls()
        steps = (first * REDUCTION**k for k in range(epochs.bit_length()))
        return cls(tuple(step for step in steps if step < epochs), pruner == "hyperband")

    def begin(self, setting: int) -> int:
        """The index of the first rung at which a setting pauses."""
        if not self.has_brackets:
            return 0
        weights = [REDUCTION**s / (s + 1) for s in range(len(self.rungs), -1, -1)]  # Hyperband's, of s rungs to come
        return random.Random(setting).choices(range(len(weights)), weights)[0]

    def rung(self, setting: int, trial: FrozenTrial) -> int:
        """The index of the rung that a trial trains up to; beyond the last one it trains to its end."""
        return trial.user_attrs.get(RUNG, self.begin(setting))

    def promotable(self, history: History, to_draw: int) -> list[int]:
        """Settings that may train on now, best first; to_draw: new ones to come.

        While there are, a rung is judged in groups, as large as it takes for one of them to come to its end. The
        last group may be smaller, and the best of the last ones always trains on.
        """
        found = dict(history)
        for rung in range(len(self.rungs)):  # the lower ones first: more is known then of the higher ones
            ranking = self._ranking(rung, history)
            if to_draw:
                group = REDUCTION ** (len(self.rungs) - rung)
                allowed = len(ranking) // group * (group // REDUCTION)
            else:
                allowed = len(ranking) // REDUCTION
                if not any(not t.state.is_finished() and self.rung(s, t) <= rung for s, t in found.items()):
                    allowed = max(1, allowed)
            if chosen := [s for s in ranking[:allowed] if self._is_paused(s, found[s], rung)]:
                return chosen
        return []

    def out(self, history: History, count: int, is_over: bool) -> list[int]:
        """Paused settings that cannot be promoted any more; count: settings in all; is_over: none is."""
        most, found = 0 if is_over else max(1, count // REDUCTION), dict(history)
        rankings = {rung: self._ranking(rung, history)[most:] for rung in range(len(self.rungs))}
        return [s for rung, behind in rankings.items() for s in behind if self._is_paused(s, found[s], rung)]

    def _ranking(self, rung: int, history: History) -> list[int]:
        """Settings that have reached a rung, best first; one that failed later leaves its place to the next."""
        found = dict(history)
        values = {s: trial.value or 0.0 for s, trial in history if self._is_paused(s, trial, rung)}
        alive = [setting for setting in values if found[setting].state != TrialState.FAIL]
        return sorted(alive, key=lambda setting: (-values[setting], setting))

    def _is_paused(self, setting: int, trial: FrozenTrial, rung: int) -> bool:
        is_there = PAUSED in trial.user_attrs and self.rung(setting, trial) == rung
        return is_there and trial.state == TrialState.PRUNED
