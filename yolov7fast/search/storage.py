"""The database of a study: opened, waited for, named where it fails; and what draws its trials.

Draws are keyed by (seed, trial number): a search that was killed proposes what it would have proposed.
"""

import contextlib
import itertools
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, ProgrammingError
from tqdm import tqdm

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.search.halving import RUNG

HEARTBEAT_SECONDS, GRACE_SECONDS = 30, 300  # of trials in a shared database; without a beat for so long: retried
PATIENCE_SECONDS, RETRY_SECONDS = 600.0, 1.0  # how long a server that is away is waited for, and between attempts
DRIVERS = ("sqlalchemy", "sqlite3", "optuna.exceptions")  # whose exceptions concern a database
CALLS = ("_create_new_trial", "_get_trials", "_set_trial_param", "record_heartbeat", "_get_stale_trial_ids")
CONTINUES = "continues"  # attribute of a trial: the setting that an earlier trial has begun

optuna.logging.set_verbosity(optuna.logging.WARNING)


def quiet() -> warnings.catch_warnings:
    """Optuna warns of what it calls experimental, and of heartbeats outside its own loop; users can do nothing."""
    return warnings.catch_warnings(action="ignore")


class PatientStorage(RDBStorage):
    """A database server that machines share: while it is away, as in a restart, every call waits and tries again."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return _patient(found) if name in CALLS or name.startswith(("get_", "set_")) else found


def _patient(method):
    def call(*args, **kwargs):
        for attempt in itertools.count():
            try:
                return method(*args, **kwargs)
            except (OperationalError, InterfaceError, optuna.exceptions.StorageInternalError) as error:
                if attempt * RETRY_SECONDS > PATIENCE_SECONDS:
                    raise
                if not attempt:
                    tqdm.write(f"the database does not answer ({_reason(error)[:100]}); waiting")
                time.sleep(RETRY_SECONDS)

    return call


def _reason(error: Exception) -> str:
    """What the driver says, below what Optuna wraps it in."""
    return one_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)


@contextlib.contextmanager
def failures_named(url: str) -> Iterator[None]:
    """A database that fails in the midst of the trials, as on a full disk, is the user's business: one line."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(DRIVERS):
            raise
        remedy = "free some space, or start the database, then resume with --resume"
        raise UserError(f"the database {url} of the trials failed: {_reason(error)[:200]}; {remedy}") from error


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


def _retry(study: optuna.Study, trial: FrozenTrial) -> None:
    """Enqueue a drawn trial whose machine is gone, from its first epoch up to the same rung: progress was there."""
    setting = {other.number: s for s, other in numbered(study.get_trials(deepcopy=False))}[trial.number]
    rung = {RUNG: trial.user_attrs[RUNG]} if RUNG in trial.user_attrs else {}
    enqueue(study, trial.params, trial.distributions, {CONTINUES: setting} | rung)


def _open(url: str, is_shared: bool) -> RDBStorage:
    is_file = url.startswith("sqlite")
    return (RDBStorage if is_file else PatientStorage)(
        url,
        engine_kwargs={"connect_args": {"timeout": 60}} if is_file else {"pool_pre_ping": True},
        heartbeat_interval=HEARTBEAT_SECONDS if is_shared else None,
        grace_period=GRACE_SECONDS,
        heartbeat_stale_trial_callback=_retry,
    )


def open_study(
    url: str, name: str, is_shared: bool, pruner: optuna.pruners.BasePruner, seed: int, plan: Mapping[str, Any]
) -> optuna.Study:
    """The study, made or joined; one that was begun for other settings is refused."""
    try:
        with quiet():
            try:
                storage = _open(url, is_shared)
            except (IntegrityError, ProgrammingError):  # another machine has made the tables at the same moment
                storage = _open(url, is_shared)
            parts = {"storage": storage, "sampler": KeyedSampler(seed), "pruner": pruner}
            study = optuna.create_study(study_name=name, direction="maximize", load_if_exists=True, **parts)
            if "plan" not in study.user_attrs:
                study.set_metric_names(["mAP@.5:.95"])
                study.set_user_attr("plan", dict(plan))
    except Exception as error:  # any driver's own classes: the address is wrong, the database away or foreign
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"--storage {url} cannot be opened: {reason}") from None
    stored = study.user_attrs["plan"]
    if different := sorted(key for key in {*stored, *plan} if stored.get(key) != plan.get(key)):
        begun = f"was begun with other settings ({', '.join(different)}); use the same, or another --study"
        raise UserError(f"the study '{name}' in {url} {begun}")
    return study


class KeyedSampler(optuna.samplers.BaseSampler):
    """TPE that starts afresh for every draw, from a seed made of the search's and the trial's."""

    def __init__(self, seed: int):
        self.seed = seed

    def tpe(self, *key) -> optuna.samplers.TPESampler:
        return optuna.samplers.TPESampler(seed=zlib.crc32(repr((self.seed, *key)).encode()))

    def infer_relative_search_space(self, study, trial):
        return self.tpe(trial.number).infer_relative_search_space(study, trial)

    def sample_relative(self, study, trial, search_space):
        return self.tpe(trial.number).sample_relative(study, trial, search_space)

    def sample_independent(self, study, trial, param_name, param_distribution):
        return self.tpe(trial.number, param_name).sample_independent(study, trial, param_name, param_distribution)
