"""The study: Optuna's storage holds all that is known of trials, whether a list names them or a search draws them.

A trial of the study is a setting. Its training with the k-th seed is its attribute `run k` (`run.Run`), written before
and after everything that could be lost, so a killed process resumes from it. Optuna reopens no trial that has ended:
a setting that is promoted, or whose machine is gone, continues as another trial. Several machines may work on one
study: each trial has an owner, whose heartbeat says that it is alive.
"""

import statistics
import time
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
from yolov7fast.search.run import COMPLETED, ENDED, FAILED, PRUNED, RUNNING, Point, Run, run_from
from yolov7fast.search.storage import CONTINUES, numbered, quiet
from yolov7fast.search.trainer import Trainer

OWNER, SETTINGS, SURPLUS, RUN = "owner", "settings", "surplus", "run "  # attributes of a trial; the last by its seed


def stored_runs(trial: FrozenTrial | Trial, where: str) -> list[Run]:
    """The record of each of a trial's trainings; where: of the study, for the complaint where it is damaged."""
    records = [record for key, record in trial.user_attrs.items() if key.startswith(RUN)]
    try:
        return sorted(map(run_from, records), key=lambda run: run.id)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"the study in {where} is damaged in trial {trial.number}: {one_line(error, 100)}") from None


@dataclass
class Trials:
    """The trials of a study as one machine works on them.

    url: of the study's database; owner: the name of this machine's output folder, by which it knows its trials again;
    is_shared: other machines may work on the study; space: what a search draws from, empty for a list; count: settings
    that a search draws in all; threshold: of mAP@.5.
    """

    study: optuna.Study
    url: str
    trainer: Trainer
    owner: str
    is_shared: bool
    seeds: Sequence[int]
    space: Mapping[str, BaseDistribution]
    count: int
    threshold: float
    halving: Halving
    looked = 0.0  # when to look for work again

    def take_up(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """What an earlier process of this machine left, and settings of a list that are not there, as trials that wait.

        Figures of a list are shown as parameters.
        """
        for trial in self.current().values():
            if trial.state == TrialState.RUNNING and not self.is_elsewhere(trial):
                self.study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
        for entry in settings[len(self.current()) :]:
            numbers = {k: float(v) for k, v in entry.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            ranges: dict[str, BaseDistribution] = {k: FloatDistribution(v, v) for k, v in numbers.items()}
            storage.enqueue(self.study, numbers, ranges, {SETTINGS: dict(entry)})

    # --- which trials there are ---------------------------------------------------------------------------------------

    def history(self) -> History:
        trials = numbered(self.study.get_trials(deepcopy=False))
        return [(setting, trial) for setting, trial in trials if SURPLUS not in trial.user_attrs]

    def current(self) -> dict[int, FrozenTrial]:
        """The trial of each setting, that is the last one where it was continued."""
        return dict(self.history())

    def is_elsewhere(self, trial: FrozenTrial) -> bool:
        """Whether a trial is with another machine, at work or gone."""
        is_running = trial.state == TrialState.RUNNING
        return is_running and self.is_shared and trial.user_attrs.get(OWNER) != self.owner

    def everywhere(self) -> list[Run]:
        """The runs of all machines."""
        runs = [run for trial in self.current().values() for run in stored_runs(trial, self.url)]
        return sorted(runs, key=lambda run: run.id)

    def to_draw(self) -> int:
        return max(0, self.count - len(self.current()))

    def promotable(self) -> list[int]:
        return self.halving.promotable(self.history(), self.to_draw())

    def left(self) -> int:
        """Runs that this machine has not ended, and those that no machine has begun."""
        mine = [t for t in self.current().values() if not t.state.is_finished() and not self.is_elsewhere(t)]
        ended = sum(run.status in ENDED for trial in mine for run in stored_runs(trial, self.url))
        return len(self.seeds) * (len(mine) + self.to_draw()) - ended + len(self.promotable())

    def out(self) -> list[Run]:
        """Runs that are paused and cannot be promoted any more."""
        found, to_come = self.current(), self.to_draw() or self.promotable()
        is_over = not to_come and all(trial.state.is_finished() for trial in found.values())
        settings = self.halving.out(self.history(), self.count, is_over)
        return [run for setting in settings for run in stored_runs(found[setting], self.url)]

    # --- from drawing to reporting ------------------------------------------------------------------------------------

    def next(self) -> tuple[int, Trial] | None:
        """The next setting to train, with its trial; None: none at present."""
        while time.monotonic() >= self.looked:
            if self.is_shared:
                with quiet():
                    optuna.storages.fail_stale_trials(self.study)
            found, to_draw, promotable = self.current(), self.to_draw(), self.promotable()
            own = [setting for setting in promotable if found[setting].user_attrs[OWNER] == self.owner]
            if not any(trial.state == TrialState.WAITING for trial in found.values()):
                if own or (promotable and not to_draw):  # without work: another machine's, from scratch
                    setting = (own or promotable)[0]
                    self.promote(setting, found[setting])
                elif not to_draw:  # others may still lose theirs
                    self.looked = time.monotonic() + storage.HEARTBEAT_SECONDS if self.is_shared else float("inf")
                    return None
            if taken := self.take():
                return taken
        return None

    def promote(self, setting: int, trial: FrozenTrial) -> None:
        """Enqueue a paused setting with all that is known of it, up to the next rung."""
        attributes = {CONTINUES: setting, RUNG: self.halving.rung(setting, trial) + 1}
        for key in (key for key in trial.user_attrs if key.startswith(RUN)):
            attributes[key] = trial.user_attrs[key] | {"status": RUNNING, "reason": ""}
        storage.enqueue(self.study, trial.params, trial.distributions, attributes)

    def take(self) -> tuple[int, Trial] | None:
        """Draw a trial, or take one that waits; None where other machines were faster."""
        with quiet():
            trial = self.study.ask()
        database = self.study._storage
        if self.is_shared and isinstance(database, BaseHeartbeat):  # at once: the last beat of one taken up may be old
            database.record_heartbeat(trial._trial_id)
        trial.set_user_attr(OWNER, self.owner)
        trials = numbered(self.study.get_trials(deepcopy=False))
        (setting,) = [s for s, other in trials if other.number == trial.number]
        if CONTINUES in trial.user_attrs:
            rung = trial.user_attrs.get(RUNG)
            before = [t for s, t in trials if s == setting and t.number < trial.number and t.state != TrialState.FAIL]
            is_surplus = any(other.user_attrs.get(RUNG) == rung for other in before)
        else:
            is_surplus = bool(self.space) and setting in sorted(self.current())[self.count :]
        if not is_surplus:
            return setting, trial
        trial.set_user_attr(SURPLUS, True)
        self.study.tell(trial, state=TrialState.FAIL)
        return None

    def runs(self, setting: int, trial: Trial) -> list[Run]:
        """The trainings of a setting, one for each seed, as far as they are; one that cannot be has failed already."""
        params, status, reason = trial.user_attrs.get(SETTINGS), RUNNING, ""
        if params is None:
            params = {name: trial._suggest(name, range_) for name, range_ in self.space.items()}
            try:  # each setting's range was checked by itself, but not what may come together
                params = {name: self.trainer.value(name, value, "drawn") for name, value in params.items()}
                self.trainer.check(params, "drawn")
            except UserError as error:
                status, reason = FAILED, str(error)
        known, first = {run.seed: run for run in stored_runs(trial, self.url)}, (setting - 1) * len(self.seeds) + 1
        new = [Run(first + k, setting, seed, params, status, reason=reason) for k, seed in enumerate(self.seeds)]
        return [known.get(run.seed, run) for run in new]

    def tell(self, trial: Trial, runs: Sequence[Run]) -> None:
        """The study learns how a setting ended: its runs as far as they were made."""
        values = [run.final.map for run in runs if run.status == COMPLETED and run.final.map is not None]
        state = TrialState.PRUNED if runs[0].status == PRUNED else TrialState.COMPLETE if values else TrialState.FAIL
        value = statistics.fmean(values) if state == TrialState.COMPLETE else None
        self.study.tell(trial, value, state=state, skip_if_finished=True)
        self.looked = 0.0  # now another one may be promoted

    def save(self, trial: Trial, run: Run) -> None:
        """Optuna's UpdateFinishedTrialError: another machine has taken the trial over."""
        trial.set_user_attr(f"{RUN}{self.seeds.index(run.seed)}", asdict(run))

    # --- pruning ------------------------------------------------------------------------------------------------------

    def judge(self, trial: Trial, run: Run, point: Point) -> str:
        """Why a run is to stop after this epoch, or ''. Asked again after a kill, the study says the same."""
        step = point.epoch + 1
        if run.seed == self.seeds[0] and point.map is not None:
            known = self.study.get_trials(deepcopy=False)[trial.number]
            if step not in known.intermediate_values:
                trial.report(point.map, step)
            if trial.should_prune():
                return f"the search's pruner ended it after epoch {point.epoch}"
            if step >= self.halving.limit(run.setting, known, self.trainer.epochs(run.params)):
                trial.set_user_attr(PAUSED, True)
                return f"paused after epoch {point.epoch}: one in {REDUCTION} trains on"
        return self.behind(run, point.epoch)

    def behind(self, run: Run, epoch: int) -> str:
        """--early-stop-threshold: from half of its epochs on, under the threshold that another trial has passed."""
        threshold, best = self.threshold, run.best_map50_by(epoch)
        if not threshold or 2 * (epoch + 1) < self.trainer.epochs(run.params) or best >= threshold:
            return ""
        others = (other.best_map50_by(epoch) for other in self.everywhere() if other.id != run.id)
        if max(others, default=0.0) < threshold:
            return ""
        return f"mAP@.5 {best:.3f} after epoch {epoch}, under {threshold:g}, which another trial has passed by then"
