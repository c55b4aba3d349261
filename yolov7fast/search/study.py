"""The study: Optuna's storage holds all that is known of trials, whether a list names them or a search draws them.

A trial of the study is a setting. Its training with the k-th seed is its attribute `run k` (`run.Run`), written before
and after everything that could be lost, so a killed process resumes from it. Several machines may work on one study:
each trial has an owner, whose heartbeat says that it is alive; what an owner leaves without one is retried by others.
"""

import statistics
import time
import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.trial import FrozenTrial, Trial, TrialState

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.search import storage
from yolov7fast.search.run import COMPLETED, ENDED, FAILED, PRUNED, Point, Run, run_from
from yolov7fast.search.storage import RETRY_OF, Place, waiting
from yolov7fast.search.trainer import Trainer

OWNER, SETTINGS, SURPLUS = "owner", "settings", "surplus"  # attributes of a trial
RUN, VERDICT = "run {k}", "verdict {step}"  # likewise; whether its pruner ends it after that epoch


def setting_of(trial: FrozenTrial | Trial) -> int:
    """Settings count from 1; that of a trial which is retried stays."""
    return trial.user_attrs.get(RETRY_OF, trial.number) + 1


def stored_runs(trial: FrozenTrial, url: str) -> list[Run]:
    """The record of each of a trial's trainings; url: of the database, for the complaint where it is damaged."""
    found = sorted(key for key in trial.user_attrs if key.startswith(RUN.format(k="")))
    try:
        return sorted((run_from(trial.user_attrs[key]) for key in found), key=lambda run: run.id)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"the study in {url} is damaged in trial {trial.number}: {one_line(error, 100)}") from None


# --- the trials -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """How trials are drawn and judged.

    space: what a search draws from, empty for a list. count: settings that a search draws in all. threshold: of mAP@.5.
    """

    seeds: Sequence[int]
    space: Mapping[str, BaseDistribution]
    count: int
    threshold: float = 0.0


class Trials:
    """The trials of a study as one machine works on them; `runs` are its own, by id."""

    def __init__(self, study: optuna.Study, place: Place, trainer: Trainer, rules: Rules, owner: str):
        """owner: the name of this machine's output folder, by which it knows its trials again."""
        self.study, self.trainer, self.rules, self.owner = study, trainer, rules, owner
        self.url, self.shared = place.url, place.shared
        self.runs: dict[int, Run] = {}
        self.handles: dict[int, Trial] = {}  # of settings that are at work
        self.waiting: deque[Run] = deque()
        self.drawn, self.beaten, self.looked = 0, 0.0, 0.0
        self.take_up()

    def enqueue(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Settings of a list as trials that wait, but for those that are there. Figures are shown as parameters."""
        for entry in settings[len(self.study.get_trials(deepcopy=False)) :]:
            numbers = {k: float(v) for k, v in entry.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            ranges: dict[str, BaseDistribution] = {k: FloatDistribution(v, v) for k, v in numbers.items()}
            self.study.add_trial(waiting(numbers, ranges, {SETTINGS: dict(entry)}))
        self.drawn, self.looked = len(self.current()), 0.0

    # --- which trials there are ---------------------------------------------------------------------------------------

    def current(self) -> dict[int, FrozenTrial]:
        """The trial of each setting, that is the last one where it was retried."""
        trials = self.study.get_trials(deepcopy=False)
        return {setting_of(trial): trial for trial in trials if SURPLUS not in trial.user_attrs}

    @property
    def ordered(self) -> list[Run]:
        return [self.runs[key] for key in sorted(self.runs)]

    @property
    def total(self) -> int:
        """Runs of this machine, begun or to come; a drawn setting that was pruned or failed saves its other seeds."""
        seeds = Counter(run.setting for run in self.ordered)
        if not self.rules.space:
            return len(self.rules.seeds) * self.drawn
        needed = {run.setting for run in self.ordered if run.status not in (PRUNED, FAILED)}
        known = sum(len(self.rules.seeds) if setting in needed else count for setting, count in seeds.items())
        return known + len(self.rules.seeds) * max(0, self.rules.count - self.drawn)

    def everywhere(self) -> list[Run]:
        """The runs of all machines, this one's as they are now."""
        stored = {run.id: run for trial in self.current().values() for run in stored_runs(trial, self.url)}
        found = stored | self.runs
        return [found[key] for key in sorted(found)]

    def left_elsewhere(self) -> list[int]:
        """Settings whose trials are not ended and not this machine's: with others, at work or gone."""
        own = {run.setting for run in self.ordered}
        return [s for s, trial in self.current().items() if trial.state == TrialState.RUNNING and s not in own]

    # --- from drawing to reporting ------------------------------------------------------------------------------------

    def take_up(self) -> None:
        """What an earlier process of this machine left: its runs, and trials that have not ended."""
        found = self.current()
        self.drawn = len(found)
        for trial in found.values():
            if trial.state == TrialState.WAITING or (self.shared and trial.user_attrs.get(OWNER) != self.owner):
                continue
            runs = stored_runs(trial, self.url)
            self.runs |= {run.id: run for run in runs}
            if trial.state == TrialState.RUNNING:
                self.waiting.extend(run for run in runs if run.status not in ENDED)
                self.work_on(Trial(self.study, trial._trial_id))

    def next(self) -> Run | None:
        """The next run to start or to resume; None: none at present."""
        while not self.waiting and time.monotonic() >= self.looked:
            if self.shared:
                optuna.storages.fail_stale_trials(self.study)
            found = self.current()
            self.drawn = len(found)
            is_waiting = any(trial.state == TrialState.WAITING for trial in found.values())
            if is_waiting or self.drawn < self.rules.count:
                self.take()
            else:  # others may still lose theirs
                self.looked = time.monotonic() + storage.HEARTBEAT_SECONDS if self.shared else float("inf")
        return self.waiting.popleft() if self.waiting else None

    def take(self) -> None:
        """Draw a trial, or take one that waits."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna beats for its own loop only; `beat` does it here
            trial = self.study.ask()
        self.beat(trial)
        trial.set_user_attr(OWNER, self.owner)
        found = self.current()
        self.drawn = len(found)
        is_fresh = self.rules.space and RETRY_OF not in trial.user_attrs
        if is_fresh and setting_of(trial) in sorted(found)[self.rules.count :]:
            trial.set_user_attr(SURPLUS, True)  # another machine drew the last one at the same moment
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            self.work_on(trial)

    def work_on(self, trial: Trial) -> None:
        setting = setting_of(trial)
        self.handles[setting] = trial
        params, impossible = trial.user_attrs.get(SETTINGS), ""
        if params is None:
            params = {name: trial._suggest(name, range_) for name, range_ in self.rules.space.items()}
            try:  # each setting's range was checked by itself, but not what may come together
                params = {name: self.trainer.value(name, value, "drawn") for name, value in params.items()}
                self.trainer.check(params, "drawn")
            except UserError as error:
                impossible = str(error)
        self.advance(setting, params, impossible)

    def advance(self, setting: int, params: Mapping[str, Any], impossible: str = "") -> None:
        """Make the runs that a setting needs next; where all have ended, tell the study.

        Of a drawn setting the first seed decides whether the others are worth their time.
        """
        runs, seeds = [run for run in self.ordered if run.setting == setting], self.rules.seeds
        is_first = self.rules.space and not (runs and runs[0].status == COMPLETED)
        for k in range(len(runs), 1 if is_first else len(seeds)):
            run = Run((setting - 1) * len(seeds) + k + 1, setting, seeds[k], dict(params))
            if impossible:
                run.status, run.reason = FAILED, impossible
            self.runs[run.id] = run
            self.save(run)
            runs.append(run)
            if not impossible:
                self.waiting.append(run)
        if all(run.status in ENDED for run in runs):
            self.tell(setting, runs)

    def tell(self, setting: int, runs: Sequence[Run]) -> None:
        trial = self.handles.pop(setting)
        values = [run.final_map for run in runs if run.status == COMPLETED and run.final_map is not None]
        if runs[0].status == PRUNED:
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        elif values:
            self.study.tell(trial, statistics.fmean(values), skip_if_finished=True)
        else:
            self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def save(self, run: Run) -> None:
        """Optuna's UpdateFinishedTrialError: another machine has taken the trial over."""
        self.handles[run.setting].set_user_attr(RUN.format(k=self.rules.seeds.index(run.seed)), asdict(run))

    def forget(self, run: Run) -> None:
        """Leave a setting to the machine that has taken it over."""
        self.handles.pop(run.setting, None)
        self.runs = {key: other for key, other in self.runs.items() if other.setting != run.setting}
        self.waiting = deque(other for other in self.waiting if other.setting != run.setting)

    def beat(self, *begun: Trial) -> None:
        """Say now and then, and of a trial that has begun at once, that this machine is alive."""
        database = self.study._storage
        if self.shared and isinstance(database, BaseHeartbeat) and (begun or time.monotonic() >= self.beaten):
            if not begun:
                self.beaten = time.monotonic() + storage.HEARTBEAT_SECONDS
            for trial in begun or self.handles.values():
                database.record_heartbeat(trial._trial_id)

    # --- pruning ------------------------------------------------------------------------------------------------------

    def judge(self, run: Run, point: Point) -> str:
        """Why a run is to be pruned after this epoch, or ''."""
        trial, step = self.handles[run.setting], point.epoch + 1
        if run.seed == self.rules.seeds[0] and point.map is not None:
            if step not in self.study.get_trials(deepcopy=False)[trial.number].intermediate_values:
                trial.report(point.map, step)
            if self.prunes(trial, step):
                return f"the search's pruner ended it after epoch {point.epoch}"
        return self.behind(run, point.epoch)

    def prunes(self, trial: Trial, step: int) -> bool:
        """Whether the pruner ends the trial after this epoch; asked again after a kill, it says the same.

        A pruner notes in the study what it has judged and lets it pass the second time. So the first time it judges
        a copy; the verdict is written down, and only then does the pruner make its notes.
        """
        if isinstance(self.study.pruner, optuna.pruners.NopPruner):
            return False
        name = VERDICT.format(step=step)
        if name not in trial.user_attrs:
            copy = optuna.create_study(
                study_name=self.study.study_name, direction=self.study.direction, pruner=self.study.pruner
            )
            copy.add_trials(self.study.get_trials())
            same = copy.get_trials(deepcopy=False)[trial.number]
            trial.set_user_attr(name, bool(Trial(copy, same._trial_id).should_prune()))  # a NumPy one is no JSON
        trial.should_prune()
        return trial.user_attrs[name]

    def behind(self, run: Run, epoch: int) -> str:
        """--early-stop-threshold: from half of its epochs on, under the threshold that another trial has passed."""
        threshold, best = self.rules.threshold, run.best_map50_by(epoch)
        if not threshold or 2 * (epoch + 1) < self.trainer.epochs(run.params) or best >= threshold:
            return ""
        if max((other.best_map50_by(epoch) for other in self.ordered if other is not run), default=0.0) < threshold:
            return ""
        return f"mAP@.5 {best:.3f} after epoch {epoch}, under {threshold:g}, which another trial has passed by then"
