"""The study: Optuna's storage holds all that is known of trials, whether a list names them or a search draws them.

A trial of the study is a setting. Its training with the k-th seed is its attribute `run k` (`run.Run`), written before
and after everything that could be lost, so a killed process resumes from it. Optuna reopens no trial that has ended:
a setting that is promoted, or whose machine is gone, continues as another trial. Several machines may work on one
study: each trial has an owner, whose heartbeat says that it is alive.
"""

import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.trial import FrozenTrial, Trial, TrialState

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.search import storage
from yolov7fast.search.halving import PAUSED, REDUCTION, RUNG, Halving, History
from yolov7fast.search.run import COMPLETED, ENDED, FAILED, PRUNED, WAITING, Point, Run, run_from
from yolov7fast.search.storage import CONTINUES, Place, numbered, quiet, waiting
from yolov7fast.search.trainer import Trainer

OWNER, SETTINGS, SURPLUS, RUN = "owner", "settings", "surplus", "run "  # attributes of a trial; the last by its seed


@dataclass(frozen=True)
class Rules:
    """How trials are drawn and judged.

    space: what a search draws from, empty for a list. count: settings that a search draws in all. threshold: of mAP@.5.
    """

    seeds: Sequence[int]
    space: Mapping[str, BaseDistribution]
    count: int
    threshold: float
    halving: Halving


def stored_runs(trial: FrozenTrial | Trial, url: str) -> list[Run]:
    """The record of each of a trial's trainings; url: of the database, for the complaint where it is damaged."""
    records = [record for key, record in trial.user_attrs.items() if key.startswith(RUN)]
    try:
        return sorted(map(run_from, records), key=lambda run: run.id)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"the study in {url} is damaged in trial {trial.number}: {one_line(error, 100)}") from None


class Trials:
    """The trials of a study as one machine works on them."""

    def __init__(self, study: optuna.Study, place: Place, trainer: Trainer, rules: Rules, owner: str):
        """owner: the name of this machine's output folder, by which it knows its trials again."""
        self.study, self.trainer, self.rules, self.owner = study, trainer, rules, owner
        self.url, self.shared = place.url, place.shared
        self.beaten, self.looked = 0.0, 0.0
        self.left_over = deque(self.own().items())  # by an earlier process of this machine

    def enqueue(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Settings of a list as trials that wait, but for those that are there. Figures are shown as parameters."""
        for entry in settings[len(self.current()) :]:
            numbers = {k: float(v) for k, v in entry.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            ranges: dict[str, BaseDistribution] = {k: FloatDistribution(v, v) for k, v in numbers.items()}
            self.study.add_trial(waiting(numbers, ranges, {SETTINGS: dict(entry)}))

    # --- which trials there are ---------------------------------------------------------------------------------------

    def history(self) -> History:
        trials = numbered(self.study.get_trials(deepcopy=False))
        return [(setting, trial) for setting, trial in trials if SURPLUS not in trial.user_attrs]

    def current(self) -> dict[int, FrozenTrial]:
        """The trial of each setting, that is the last one where it was continued."""
        return dict(self.history())

    def own(self) -> dict[int, FrozenTrial]:
        """Those that this machine has taken and that have not ended."""
        running = {s: t for s, t in self.current().items() if t.state == TrialState.RUNNING}
        return {s: t for s, t in running.items() if not self.shared or t.user_attrs.get(OWNER) == self.owner}

    def everywhere(self) -> list[Run]:
        """The runs of all machines."""
        runs = [run for trial in self.current().values() for run in stored_runs(trial, self.url)]
        return sorted(runs, key=lambda run: run.id)

    def to_draw(self) -> int:
        return max(0, self.rules.count - len(self.current()))

    def promotable(self) -> list[int]:
        return self.rules.halving.promotable(self.history(), self.to_draw())

    def left(self) -> int:
        """Runs that this machine has not ended, and those that no machine has begun."""
        own = self.own().values()
        to_begin = self.to_draw() + sum(trial.state == TrialState.WAITING for trial in self.current().values())
        ended = sum(run.status in ENDED for trial in own for run in stored_runs(trial, self.url))
        return len(self.rules.seeds) * (len(own) + to_begin) - ended + len(self.promotable())

    def epochs_left(self) -> int:
        """Of runs that have begun, up to their next rung, and of those to come, up to their first one."""
        own, halving = self.own(), self.rules.halving
        to_come = max(0, self.left() - len(own)) * (*halving.rungs, self.trainer.epochs({}))[0]
        begun = [(run, t) for t in own.values() for run in stored_runs(t, self.url) if run.status not in ENDED]
        limits = (halving.limit(run.setting, t, self.trainer.epochs(run.params)) - len(run.curve) for run, t in begun)
        return to_come + sum(max(0, limit) for limit in limits)

    def left_elsewhere(self) -> list[int]:
        """Settings whose trials are not ended and not this machine's: with others, at work or gone."""
        own = self.own()
        return [s for s, t in self.current().items() if t.state == TrialState.RUNNING and s not in own]

    def out(self) -> list[Run]:
        """Runs that are paused and cannot be promoted any more."""
        found, to_come = self.current(), self.to_draw() or self.promotable()
        is_over = not to_come and all(trial.state.is_finished() for trial in found.values())
        settings = self.rules.halving.out(self.history(), self.rules.count, is_over)
        return [run for setting in settings for run in stored_runs(found[setting], self.url)]

    # --- from drawing to reporting ------------------------------------------------------------------------------------

    def next(self) -> tuple[int, Trial] | None:
        """The next setting to train, with its trial; None: none at present."""
        while not self.left_over and time.monotonic() >= self.looked:
            if self.shared:
                with quiet():
                    optuna.storages.fail_stale_trials(self.study)
            found, to_draw, promotable = self.current(), self.to_draw(), self.promotable()
            own = [setting for setting in promotable if found[setting].user_attrs[OWNER] == self.owner]
            is_waiting = any(trial.state == TrialState.WAITING for trial in found.values())
            if own or (promotable and not is_waiting and not to_draw):  # without work: another machine's, from scratch
                setting = (own or promotable)[0]
                self.promote(setting, found[setting])
            elif not is_waiting and not to_draw:  # others may still lose theirs
                self.looked = time.monotonic() + storage.HEARTBEAT_SECONDS if self.shared else float("inf")
                return None
            if taken := self.take():
                return taken
        if not self.left_over:
            return None
        setting, trial = self.left_over.popleft()
        return setting, Trial(self.study, trial._trial_id)

    def promote(self, setting: int, trial: FrozenTrial) -> None:
        """Enqueue a paused setting with all that is known of it, up to the next rung."""
        attributes = {CONTINUES: setting, RUNG: self.rules.halving.rung(setting, trial) + 1}
        for key in (key for key in trial.user_attrs if key.startswith(RUN)):
            attributes[key] = trial.user_attrs[key] | {"status": WAITING, "reason": "", "stop": ""}
        self.study.add_trial(waiting(trial.params, trial.distributions, attributes))

    def take(self) -> tuple[int, Trial] | None:
        """Draw a trial, or take one that waits; None where other machines were faster."""
        with quiet():
            trial = self.study.ask()
        self.beat(trial)
        trial.set_user_attr(OWNER, self.owner)
        trials = numbered(self.study.get_trials(deepcopy=False))
        (setting,) = [s for s, other in trials if other.number == trial.number]
        if CONTINUES in trial.user_attrs:
            rung = trial.user_attrs.get(RUNG)
            before = [t for s, t in trials if s == setting and t.number < trial.number and t.state != TrialState.FAIL]
            is_surplus = any(other.user_attrs.get(RUNG) == rung for other in before)
        else:
            is_surplus = bool(self.rules.space) and setting in sorted(self.current())[self.rules.count :]
        if not is_surplus:
            return setting, trial
        trial.set_user_attr(SURPLUS, True)
        self.study.tell(trial, state=TrialState.FAIL)
        return None

    def runs(self, setting: int, trial: Trial) -> list[Run]:
        """The trainings of a setting, one for each seed, as far as they are; one that cannot be has failed already."""
        params, impossible = trial.user_attrs.get(SETTINGS), ""
        if params is None:
            params = {name: trial._suggest(name, range_) for name, range_ in self.rules.space.items()}
            try:  # each setting's range was checked by itself, but not what may come together
                params = {name: self.trainer.value(name, value, "drawn") for name, value in params.items()}
                self.trainer.check(params, "drawn")
            except UserError as error:
                impossible = str(error)
        runs = {run.seed: run for run in stored_runs(trial, self.url)}
        for k, seed in enumerate(self.rules.seeds):
            new = Run((setting - 1) * len(self.rules.seeds) + k + 1, setting, seed, dict(params))
            if impossible:
                new.status, new.reason = FAILED, impossible
            runs.setdefault(seed, new)
        return [runs[seed] for seed in self.rules.seeds]

    def tell(self, trial: Trial, runs: Sequence[Run]) -> None:
        """The study learns how a setting ended: its runs as far as they were made."""
        values = [run.final_map for run in runs if run.status == COMPLETED and run.final_map is not None]
        state = TrialState.PRUNED if runs[0].status == PRUNED else TrialState.COMPLETE if values else TrialState.FAIL
        value = statistics.fmean(values) if state == TrialState.COMPLETE else None
        self.study.tell(trial, value, state=state, skip_if_finished=True)
        self.looked = 0.0  # now another one may be promoted

    def save(self, trial: Trial, run: Run) -> None:
        """Optuna's UpdateFinishedTrialError: another machine has taken the trial over."""
        trial.set_user_attr(f"{RUN}{self.rules.seeds.index(run.seed)}", asdict(run))

    def beat(self, begun: Trial | None = None) -> None:
        """Say now and then, and of a trial that has begun at once, that this machine is alive."""
        database = self.study._storage
        if not self.shared or not isinstance(database, BaseHeartbeat) or (not begun and time.monotonic() < self.beaten):
            return
        if not begun:
            self.beaten = time.monotonic() + storage.HEARTBEAT_SECONDS
        for trial in [begun] if begun else self.own().values():
            database.record_heartbeat(trial._trial_id)

    # --- pruning ------------------------------------------------------------------------------------------------------

    def judge(self, trial: Trial, run: Run, point: Point) -> str:
        """Why a run is to stop after this epoch, or ''. Asked again after a kill, the study says the same."""
        step = point.epoch + 1
        if run.seed == self.rules.seeds[0] and point.map is not None:
            known = self.study.get_trials(deepcopy=False)[trial.number]
            if step not in known.intermediate_values:
                trial.report(point.map, step)
            if trial.should_prune():
                return f"the search's pruner ended it after epoch {point.epoch}"
            if step >= self.rules.halving.limit(run.setting, known, self.trainer.epochs(run.params)):
                trial.set_user_attr(PAUSED, True)
                return f"paused after epoch {point.epoch}: one in {REDUCTION} trains on"
        return self.behind(run, point.epoch)

    def behind(self, run: Run, epoch: int) -> str:
        """--early-stop-threshold: from half of its epochs on, under the threshold that another trial has passed."""
        threshold, best = self.rules.threshold, run.best_map50_by(epoch)
        if not threshold or 2 * (epoch + 1) < self.trainer.epochs(run.params) or best >= threshold:
            return ""
        others = (other.best_map50_by(epoch) for other in self.everywhere() if other.id != run.id)
        if max(others, default=0.0) < threshold:
            return ""
        return f"mAP@.5 {best:.3f} after epoch {epoch}, under {threshold:g}, which another trial has passed by then"
