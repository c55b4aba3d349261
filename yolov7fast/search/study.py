"""The study: Optuna's storage holds all that is known of trials, whether a list names them or a search draws them.

A trial of the study is a setting. Its training with the k-th seed is its attribute `run k` (`run.Run`), written after
every epoch, so a killed process resumes from it. Optuna reopens no trial that has ended: a setting that is promoted, or
whose machine is gone, continues as another trial. Several machines may work on one study: each trial has an owner,
whose heartbeat says that it is alive.
"""

import itertools
import statistics
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.pruners import MedianPruner, NopPruner
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.trial import FrozenTrial, Trial, TrialState

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.search.halving import PAUSED, REDUCTION, RUNG, Halving
from yolov7fast.search.run import COMPLETED, ENDED, FAILED, PRUNED, RUNNING, Point, Run
from yolov7fast.search.storage import KeyedSampler, open_study
from yolov7fast.search.trainer import Trainer

# attributes of a trial; CONTINUES: the setting that an earlier trial has begun; RUN: with the index of a seed
OWNER, SETTINGS, SURPLUS, CONTINUES, RUN = "owner", "settings", "surplus", "continues", "run "


def numbered(trials: Sequence[FrozenTrial]) -> list[tuple[int, FrozenTrial]]:
    """Each trial with its setting; settings count from 1, a trial that continues another has the other's."""
    fresh = itertools.accumulate(int(CONTINUES not in trial.user_attrs) for trial in trials)
    return [(trial.user_attrs.get(CONTINUES, count), trial) for count, trial in zip(fresh, trials)]


def enqueue(
    study: optuna.Study, params: dict[str, Any], ranges: dict[str, BaseDistribution], attributes: dict[str, Any]
) -> None:
    """Add a trial that the next machine without work takes."""
    state = TrialState.WAITING
    study.add_trial(optuna.create_trial(state=state, params=params, distributions=ranges, user_attrs=attributes))


def retry(study: optuna.Study, trial: FrozenTrial) -> None:
    """Enqueue a trial whose machine is gone, from its first epoch up to the same rung: progress was there."""
    setting = {other.number: s for s, other in numbered(study.get_trials(deepcopy=False))}[trial.number]
    rung = {RUNG: trial.user_attrs[RUNG]} if RUNG in trial.user_attrs else {}
    enqueue(study, trial.params, trial.distributions, {CONTINUES: setting} | rung)


class Trials:
    """The trials of a study as one machine works on them."""

    def __init__(
        self, opt: Namespace, trainer: Trainer, plan: Mapping[str, Any], space: Mapping[str, BaseDistribution], url: str
    ):
        """plan: of `command.make_plan`; space: what a search draws from, empty for a list; url: of the database."""
        self.trainer, self.space, self.url = trainer, space, url
        self.owner, self.is_shared = plan["id"], bool(opt.storage)  # other machines may work on the study
        self.count, self.threshold = opt.trials if space else 0, opt.early_stop_threshold
        seed = (trainer.base["seed"] or 0) if opt.seed is None else opt.seed
        self.seeds = range(seed, seed + opt.repeat)
        pruner, epochs = opt.pruner if space else "none", trainer.epochs({})
        first = opt.first_rung or max(1, min(2, epochs // 2), epochs // REDUCTION**2)  # before, mAP is mostly chance
        self.halving = Halving.of(pruner, epochs, first)
        median = MedianPruner(n_startup_trials=3, n_warmup_steps=first) if pruner == "median" else NopPruner()
        same = {key: plan[key] for key in ("base", "space")}  # what machines that share a study must agree in
        same |= {name: getattr(opt, name) for name in ("budget_epochs", "budget_subset", "budget_size", "repeat")}
        parts = {"study_name": opt.study, "sampler": KeyedSampler(seed), "pruner": median}
        self.study = open_study(url, retry if self.is_shared else None, same, **parts)

    def take_up(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """What an earlier process of this machine left, and settings of a list that are new, as trials that wait.

        Figures of a list are shown as parameters.
        """
        found = self.current()
        for trial in found.values():
            if trial.state == TrialState.RUNNING and not self.is_elsewhere(trial):
                self.study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
        for entry in settings[len(found) :]:
            numbers = {k: float(v) for k, v in entry.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            ranges: dict[str, BaseDistribution] = {k: FloatDistribution(v, v) for k, v in numbers.items()}
            enqueue(self.study, numbers, ranges, {SETTINGS: dict(entry)})

    # --- which trials there are ---------------------------------------------------------------------------------------

    def history(self) -> list[tuple[int, FrozenTrial]]:
        trials = numbered(self.study.get_trials(deepcopy=False))
        return [(setting, trial) for setting, trial in trials if SURPLUS not in trial.user_attrs]

    def current(self) -> dict[int, FrozenTrial]:
        """The trial of each setting, that is the last one where it was continued."""
        return dict(self.history())

    def runs(self, setting: int, trial: FrozenTrial | Trial) -> list[Run]:
        """The trainings of a setting, one for each seed, as far as they are."""
        known, first = trial.user_attrs, (setting - 1) * len(self.seeds) + 1
        try:
            return [
                Run(first + k, setting, seed, known.get(SETTINGS, {}), **known.get(f"{RUN}{k}", {}))
                for k, seed in enumerate(self.seeds)
            ]
        except (TypeError, ValueError) as error:
            text = f"the study in {self.url} is damaged in trial {trial.number}: {one_line(error, 100)}"
            raise UserError(text) from None

    def everywhere(self) -> list[Run]:
        """The runs of all machines."""
        return [run for setting, trial in sorted(self.current().items()) for run in self.runs(setting, trial)]

    def begun(self) -> list[Run]:
        """Those that have something to show."""
        return [run for run in self.everywhere() if run.status != RUNNING]

    def is_elsewhere(self, trial: FrozenTrial) -> bool:
        """Whether a trial is with another machine, at work or gone."""
        is_running = trial.state == TrialState.RUNNING
        return is_running and self.is_shared and trial.user_attrs.get(OWNER) != self.owner

    def to_draw(self) -> int:
        return max(0, self.count - len(self.current()))

    def promotable(self) -> list[int]:
        return self.halving.promotable(self.history(), self.to_draw())

    def left(self) -> int:
        """Runs that this machine has not ended, and those that no machine has begun."""
        mine = [(s, t) for s, t in self.current().items() if not t.state.is_finished() and not self.is_elsewhere(t)]
        begun = sum(run.status not in ENDED for setting, trial in mine for run in self.runs(setting, trial))
        return begun + len(self.seeds) * self.to_draw() + len(self.promotable())

    def out(self) -> list[Run]:
        """Runs that are paused and cannot be promoted any more."""
        found, to_come = self.current(), self.to_draw() or self.promotable()
        is_over = not to_come and all(trial.state.is_finished() for trial in found.values())
        settings = self.halving.out(self.history(), self.count, is_over)
        return [run for setting in settings for run in self.runs(setting, found[setting])]

    # --- from drawing to reporting ------------------------------------------------------------------------------------

    def next(self) -> tuple[int, Trial] | None:
        """The next setting to train, with its trial; None: none at present."""
        while True:
            if self.is_shared:
                optuna.storages.fail_stale_trials(self.study)
            found, to_draw, promotable = self.current(), self.to_draw(), self.promotable()
            own = [setting for setting in promotable if found[setting].user_attrs[OWNER] == self.owner]
            if not any(trial.state == TrialState.WAITING for trial in found.values()):
                if own or (promotable and not to_draw):  # without work: another machine's, from its first epoch
                    setting = (own or promotable)[0]
                    self.promote(setting, found[setting])
                elif not to_draw:
                    return None
            if taken := self.take():
                return taken

    def promote(self, setting: int, trial: FrozenTrial) -> None:
        """Enqueue a paused setting with all that is known of it, up to the next rung."""
        runs = {key: value for key, value in trial.user_attrs.items() if key.startswith(RUN)}
        reopened = {key: record | {"status": RUNNING, "reason": ""} for key, record in runs.items()}
        attributes = {CONTINUES: setting, RUNG: self.halving.rung(setting, trial) + 1, **reopened}
        enqueue(self.study, trial.params, trial.distributions, attributes)

    def take(self) -> tuple[int, Trial] | None:
        """Draw a trial, or take one that waits; None where another machine, or job, was faster."""
        trial, database = self.study.ask(), self.study._storage
        if self.is_shared and isinstance(database, BaseHeartbeat):  # at once: the last beat of one taken up may be old
            database.record_heartbeat(trial._trial_id)
        trial.set_user_attr(OWNER, self.owner)
        history, rung = self.history(), trial.user_attrs.get(RUNG)
        (setting,) = [s for s, other in history if other.number == trial.number]
        before = [t for s, t in history if s == setting and t.number < trial.number and t.state != TrialState.FAIL]
        is_surplus = any(other.user_attrs.get(RUNG) == rung for other in before)
        if CONTINUES not in trial.user_attrs:
            is_surplus = bool(self.space) and setting in sorted(dict(history))[self.count :]
        if is_surplus:
            trial.set_user_attr(SURPLUS, True)
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        if SETTINGS not in trial.user_attrs:
            self.draw(trial)
        return setting, trial

    def draw(self, trial: Trial) -> None:
        """Give a trial its settings; one that cannot be has failed already."""
        params = {name: trial._suggest(name, range_) for name, range_ in self.space.items()}
        try:  # each setting's range was checked by itself, but not what may come together
            params = self.trainer.checked(params, "drawn")
        except UserError as error:
            trial.set_user_attr(f"{RUN}0", {"status": FAILED, "reason": str(error)})
        trial.set_user_attr(SETTINGS, params)

    def tell(self, trial: Trial, runs: Sequence[Run]) -> None:
        """The study learns how a setting ended: its runs as far as they were made."""
        values = [run.final.map for run in runs if run.status == COMPLETED and run.final.map is not None]
        state = TrialState.PRUNED if runs[0].status == PRUNED else TrialState.COMPLETE if values else TrialState.FAIL
        value = statistics.fmean(values) if state == TrialState.COMPLETE else None
        self.study.tell(trial, value, state=state, skip_if_finished=True)

    def save(self, trial: Trial, run: Run) -> None:
        """Optuna's UpdateFinishedTrialError: another machine has taken the trial over."""
        trial.set_user_attr(f"{RUN}{self.seeds.index(run.seed)}", run.record)

    # --- pruning ------------------------------------------------------------------------------------------------------

    def judge(self, trial: Trial, run: Run, point: Point) -> str:
        """Why a run is to stop after this epoch, or ''. Asked again after a kill, the study says the same."""
        step, epochs = point.epoch + 1, self.trainer.epochs(run.params)
        if point.map is None or step >= epochs:
            return ""
        if run.seed == self.seeds[0]:
            known = self.study.get_trials(deepcopy=False)[trial.number]
            if step not in known.intermediate_values:
                trial.report(point.map, step)
            if trial.should_prune():
                return f"the search's pruner ended it after epoch {point.epoch}"
            to_come = self.halving.rungs[self.halving.rung(run.setting, known) :]
            if to_come and step >= to_come[0]:
                trial.set_user_attr(PAUSED, True)
                return f"paused after epoch {point.epoch}: one in {REDUCTION} trains on"

        def best(run: Run) -> float:
            return max((known.map50 or 0.0 for known in run.validated if known.epoch <= point.epoch), default=0.0)

        if 2 * step < epochs or not best(run) < self.threshold <= max(map(best, self.everywhere())):
            return ""
        text = f"mAP@.5 {best(run):.3f} after epoch {point.epoch}, under {self.threshold:g}"
        return f"{text}, which another trial has passed by then"
