"""The Optuna study of trials: its database, its sampler and pruners, and the results it stores for each setting.

One Optuna trial is one setting, trained with each seed in turn; its attribute `run K` holds the result of seed K. If
the process of a trial ends early, by a kill, Ctrl-C or the loss of a machine, the same setting is enqueued again as
another trial with the attributes of the first.
"""

import contextlib
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.reports.trial_ranking import FAILED, FINAL_STATUSES, RUNNING, TrialRun

HEARTBEAT_SECONDS, GRACE_SECONDS = 30, 300  # in a shared database; a trial without heartbeat is then retried
DRIVERS = ("sqlalchemy", "sqlite3", "optuna.exceptions")  # modules of exceptions that concern a database
SETTINGS, NUMBER, RUN = "settings", "setting", "run "  # attributes of a trial; RUN: with the index of a seed

optuna.logging.set_verbosity(optuna.logging.ERROR)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ExperimentalWarning)
    RETRY = RetryHeartbeatStaleTrialCallback()  # enqueues the setting of a trial again, with the results that it has


class KeyedSampler(TPESampler):
    """TPE with draws keyed by seed, setting and name: a resumed search draws the same values."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed

    def sample_independent(self, study, trial, param_name, param_distribution):
        key = zlib.crc32(repr((self.seed, trial.user_attrs[NUMBER], param_name)).encode())
        return TPESampler(seed=key).sample_independent(study, trial, param_name, param_distribution)


def make_pruner(name: str, first: int) -> BasePruner:
    """Optuna's pruner of that name; first: epochs before it first judges a trial."""
    if name == "asha":
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=3)  # the best third continues
    return MedianPruner(n_startup_trials=3, n_warmup_steps=first) if name == "median" else NopPruner()


@contextlib.contextmanager
def failures_named(url: str, what: str = "of the trials failed", kinds: tuple[str, ...] = DRIVERS) -> Iterator[None]:
    """Turn failures of a database, whose exceptions are defined in modules of these `kinds`, into a UserError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not type(error).__module__.startswith(kinds):
            raise
        reason = one_line(error.__cause__ if isinstance(error.__cause__, Exception) else error, 200)
        remedy = "free some space, or start the database, then resume with --resume"
        raise UserError(f"the database {url} {what}: {reason}; {remedy}") from error


def open_study(url: str, name: str, plan: Mapping[str, Any], is_shared: bool, **parts: Any) -> optuna.Study:
    """The study, created or opened; one that was started with another plan is refused. parts: sampler and pruner."""
    options: dict[str, Any] = {"engine_kwargs": {"pool_pre_ping": True}}
    if url.startswith("sqlite"):
        options = {"engine_kwargs": {"connect_args": {"timeout": 60}}}
    if is_shared:
        options |= {"heartbeat_interval": HEARTBEAT_SECONDS, "grace_period": GRACE_SECONDS}
        options["heartbeat_stale_trial_callback"] = RETRY
    with failures_named(url, "cannot be opened", kinds=("",)), warnings.catch_warnings():  # any driver's own classes
        warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats
        parts |= {"storage": RDBStorage(url, **options), "study_name": name, "direction": "maximize"}
        study = optuna.create_study(**parts, load_if_exists=True)
        if "plan" not in study.user_attrs:
            study.set_user_attr("plan", dict(plan))
        stored = study.user_attrs["plan"]
        if different := sorted(key for key in {*stored, *plan} if stored.get(key) != plan.get(key)):
            began = f"began with other settings ({', '.join(different)}); use the same, or another --study"
            raise UserError(f"the study '{name}' in {url} {began}")
        fail_stale_trials(study)  # has no effect without heartbeats
    return study


def suggest(trial: Trial, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Draw a value from each range."""
    drawn: dict[str, Any] = {}
    for name, range_ in space.items():
        if isinstance(range_, CategoricalDistribution):
            drawn[name] = trial.suggest_categorical(name, range_.choices)
        elif isinstance(range_, IntDistribution):
            drawn[name] = trial.suggest_int(name, range_.low, range_.high, step=range_.step)
        elif isinstance(range_, FloatDistribution):
            drawn[name] = trial.suggest_float(name, range_.low, range_.high, log=range_.log)
    return drawn


class SettingTable:
    """The settings of a study, numbered from 1, each with the last trial that trains it."""

    def __init__(self, study: optuna.Study, seeds: Sequence[int], url: str):
        self.study, self.seeds, self.url = study, seeds, url

    def numbered(self) -> list[tuple[int, FrozenTrial]]:
        """All trials, each with its setting; a retried trial has the setting of the first one."""
        settings: list[int] = []  # by number of the trial
        trials = self.study.get_trials(deepcopy=False)
        for trial in trials:
            first = trial.system_attrs.get("failed_trial")  # set by Optuna's callback
            settings.append(max(settings, default=0) + 1 if first is None else settings[first])
        return list(zip(settings, trials))

    def current(self) -> dict[int, FrozenTrial]:
        return dict(self.numbered())

    def retry_unfinished(self, is_shared: bool) -> None:
        """Enqueue again the trials that an earlier process left: interrupted ones, and running ones that only it could
        train.

        In a shared database running trials without heartbeat are enqueued when it is opened.
        """
        current = self.current()
        for setting, trial in self.numbered():
            is_left = trial.state == TrialState.RUNNING and not is_shared
            is_stopped = trial.state == TrialState.FAIL and self.is_open(setting, trial)
            if (is_left or is_stopped) and current[setting].number == trial.number:
                RETRY(self.study, trial)
            if is_left:
                self.study.tell(trial.number, state=TrialState.FAIL)

    def is_open(self, setting: int, trial: FrozenTrial) -> bool:
        """Whether a trial is not done; also true for one that Optuna marked as failed although no training failed."""
        if trial.state == TrialState.FAIL:
            return all(run.status != FAILED for run in self.runs(setting, trial))
        return not trial.state.is_finished()

    def runs(self, setting: int, trial: FrozenTrial | Trial) -> list[TrialRun]:
        """The trainings of a setting, one for each seed; those that have no result yet are `running`."""
        known, first = trial.user_attrs, (setting - 1) * len(self.seeds) + 1
        try:
            return [
                TrialRun(first + k, setting, seed, known.get(SETTINGS, {}), **known.get(f"{RUN}{k}", {}))
                for k, seed in enumerate(self.seeds)
            ]
        except (TypeError, ValueError) as error:
            text = f"the study in {self.url} is damaged in trial {trial.number}: {one_line(error, 100)}"
            raise UserError(text) from None

    def started_runs(self) -> list[TrialRun]:
        """Trainings that have a result, also those of other machines, by id."""
        runs = [run for setting, trial in sorted(self.current().items()) for run in self.runs(setting, trial)]
        return [run for run in runs if run.status != RUNNING]

    def waiting_settings(self, count: int) -> int:
        """Settings that no process has taken; count: the number of settings of a list or a search."""
        current = self.current()
        return sum(t.state == TrialState.WAITING for t in current.values()) + max(0, count - len(current))

    def unfinished_runs(self, count: int) -> int:
        """Trainings that have not ended."""
        current = self.current()
        open_ = [run for s, trial in current.items() if self.is_open(s, trial) for run in self.runs(s, trial)]
        return sum(run.status not in FINAL_STATUSES for run in open_) + len(self.seeds) * max(0, count - len(current))
