"""The database of a study: opened, waited for, named where it fails; what draws its trials and what prunes them.

Draws are keyed by (seed, trial number): a search that was killed proposes what it would have proposed.
"""

import contextlib
import functools
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, ProgrammingError
from tqdm import tqdm

from yolov7fast.core.errors import UserError, one_line

REDUCTION = 3  # of those that reach a rung, one in so many continues
HEARTBEAT_SECONDS, GRACE_SECONDS = 30, 300  # of trials in a shared database; without a beat for so long: retried
PATIENCE_SECONDS, RETRY_SECONDS = 600.0, 1.0  # how long a server that is away is waited for, and between attempts
DRIVERS = ("sqlalchemy", "sqlite3", "optuna.exceptions")  # whose exceptions concern a database
AWAY = (OperationalError, InterfaceError, optuna.exceptions.StorageInternalError)
RETRY_OF = "retry of"  # attribute of a trial: the number of the one whose machine is gone

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


class PatientStorage(optuna.storages.RDBStorage):
    """A database server that machines share: while it is away, as in a restart, every call waits and tries again."""


def _patient(name: str):
    method = getattr(optuna.storages.RDBStorage, name)

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        deadline = time.monotonic() + PATIENCE_SECONDS
        for attempt in range(1 << 30):
            try:
                return method(self, *args, **kwargs)
            except AWAY as error:
                if time.monotonic() > deadline:
                    raise
                if not attempt:
                    tqdm.write(f"the database does not answer ({_reason(error)[:100]}); waiting")
                time.sleep(RETRY_SECONDS)

    return call


for _name in (
    *("_create_new_trial", "_get_trials", "get_trial", "get_trial_id_from_study_id_trial_number", "_get_best_trial_id"),
    *("_set_trial_param", "set_trial_state_values", "set_trial_intermediate_value", "set_trial_user_attr"),
    *("set_trial_system_attr", "set_study_user_attr", "set_study_system_attr", "get_study_user_attrs"),
    *("get_study_system_attrs", "record_heartbeat", "_get_stale_trial_ids"),
):
    setattr(PatientStorage, _name, _patient(_name))


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
        raise UserError(
            f"the database {url} of the trials failed: {_reason(error)[:200]}; free some space, or "
            "start the database, then resume with --resume"
        ) from error


@dataclass(frozen=True)
class Place:
    """Where the study is: its database and name. shared: other machines may work on it."""

    url: str
    name: str
    shared: bool

    def open(self) -> optuna.storages.RDBStorage:
        if self.url.startswith("sqlite"):
            kind, engine = optuna.storages.RDBStorage, {"connect_args": {"timeout": 60}}
        else:
            kind, engine = PatientStorage, {"pool_pre_ping": True}
        return kind(
            self.url,
            engine_kwargs=engine,
            heartbeat_interval=HEARTBEAT_SECONDS if self.shared else None,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=_retry,
        )


def _retry(study: optuna.Study, trial: FrozenTrial) -> None:
    """Enqueue a drawn trial whose machine is gone, without its progress: that is on the machine.

    Optuna's RetryHeartbeatStaleTrialCallback would copy the pruner's notes of rungs that are trained anew.
    """
    origin = {RETRY_OF: trial.user_attrs.get(RETRY_OF, trial.number)}
    study.add_trial(waiting(trial.params, trial.distributions, origin))


def waiting(params: dict[str, Any], ranges: dict[str, BaseDistribution], attributes: dict[str, Any]) -> FrozenTrial:
    """A trial that the next machine without work takes."""
    return optuna.create_trial(state=TrialState.WAITING, params=params, distributions=ranges, user_attrs=attributes)


def open_study(place: Place, pruner: optuna.pruners.BasePruner, seed: int, plan: Mapping[str, Any]) -> optuna.Study:
    """The study, made or joined; one that was begun for other settings is refused."""
    try:
        try:
            storage = place.open()
        except (IntegrityError, ProgrammingError):  # another machine has made the tables at the same moment
            storage = place.open()
        study = optuna.create_study(
            storage=storage,
            study_name=place.name,
            direction="maximize",
            load_if_exists=True,
            sampler=KeyedSampler(seed),
            pruner=pruner,
        )
    except Exception as error:  # any driver's own classes: the address is wrong, the database away or foreign
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"--storage {place.url} cannot be opened: {reason}") from None
    stored = study.user_attrs.get("plan")
    if stored is None:
        study.set_metric_names(["mAP@.5:.95"])
        study.set_user_attr("plan", dict(plan))
    elif stored != plan:
        different = sorted(key for key in {*stored, *plan} if stored.get(key) != plan.get(key))
        raise UserError(
            f"the study '{place.name}' in {place.url} was begun with other settings ({', '.join(different)}); "
            "use the same, or another --study"
        )
    return study


# --- what draws and what prunes ---------------------------------------------------------------------------------------


def make_pruner(kind: str, epochs: int, first: int | None) -> optuna.pruners.BasePruner:
    """first: epochs before the first decision; before a few, an mAP is mostly chance."""
    first = first or max(1, min(2, epochs // 2), epochs // REDUCTION**2)
    if kind == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION)
    if kind == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=first, max_resource=epochs, reduction_factor=REDUCTION)
    if kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=first)
    return optuna.pruners.NopPruner()


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
