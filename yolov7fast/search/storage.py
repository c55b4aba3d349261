"""The database of a study: opened, waited for, named where it fails; and what draws its trials.

Draws are keyed by (seed, trial number): a search that was killed proposes what it would have proposed.
"""

import contextlib
import itertools
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, ProgrammingError
from tqdm import tqdm

from yolov7fast.core.errors import UserError, one_line

HEARTBEAT_SECONDS, GRACE_SECONDS = 30, 300  # of trials in a shared database; without a beat for so long: retried
PATIENCE_SECONDS, RETRY_SECONDS = 600.0, 1.0  # how long a server that is away is waited for, and between attempts
DRIVERS = ("sqlalchemy", "sqlite3", "optuna.exceptions")  # whose exceptions concern a database
CALLS = ("_create_new_trial", "_get_trials", "_set_trial_param", "record_heartbeat", "_get_stale_trial_ids")

optuna.logging.set_verbosity(optuna.logging.WARNING)
# Optuna warns of what it calls experimental, and of heartbeats outside its own loop; users can do nothing
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", message="Heartbeat of storage")


class PatientStorage(RDBStorage):
    """A database server that machines share: while it is away, as in a restart, every call waits and tries again."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in CALLS and not name.startswith(("get_", "set_")):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            for attempt in itertools.count():
                try:
                    return found(*args, **kwargs)
                except (OperationalError, InterfaceError, optuna.exceptions.StorageInternalError) as error:
                    if attempt * RETRY_SECONDS > PATIENCE_SECONDS:
                        raise
                    if not attempt:
                        tqdm.write(f"the database does not answer ({_reason(error)}); waiting")
                    time.sleep(RETRY_SECONDS)

        return call


def _reason(error: Exception) -> str:
    """What the driver says, below what Optuna wraps it in."""
    return one_line(error.__cause__ if isinstance(error.__cause__, Exception) else error, 200)


@contextlib.contextmanager
def failures_named(url: str, what: str = "of the trials failed", kinds: tuple[str, ...] = DRIVERS) -> Iterator[None]:
    """A database that cannot be opened, or fails as on a full disk, is the user's business: one line.

    kinds: how the modules of such exceptions begin.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not type(error).__module__.startswith(kinds):
            raise
        remedy = "free some space, or start the database, then resume with --resume"
        raise UserError(f"the database {url} {what}: {_reason(error)}; {remedy}") from error


def open_study(
    url: str, retry: Callable[..., None] | None, plan: Mapping[str, Any], *, study_name: str, **parts: Any
) -> optuna.Study:
    """The study, made or joined; one that was begun for other settings is refused.

    retry: trials have a heartbeat, and this is called with those that have lost it; parts: of `optuna.create_study`.
    """
    is_file = url.startswith("sqlite")
    options = {
        "engine_kwargs": {"connect_args": {"timeout": 60}} if is_file else {"pool_pre_ping": True},
        "heartbeat_interval": HEARTBEAT_SECONDS if retry else None,
        "grace_period": GRACE_SECONDS,
        "heartbeat_stale_trial_callback": retry,
    }
    with failures_named(url, "cannot be opened", kinds=("",)):  # any driver's own classes
        kind = RDBStorage if is_file else PatientStorage
        try:
            storage = kind(url, **options)
        except (IntegrityError, ProgrammingError):  # another machine has made the tables at the same moment
            storage = kind(url, **options)
        parts |= {"storage": storage, "study_name": study_name, "direction": "maximize"}
        study = optuna.create_study(**parts, load_if_exists=True)
        if "plan" not in study.user_attrs:
            study.set_metric_names(["mAP@.5:.95"])
            study.set_user_attr("plan", dict(plan))
        stored = study.user_attrs["plan"]
        if different := sorted(key for key in {*stored, *plan} if stored.get(key) != plan.get(key)):
            begun = f"was begun with other settings ({', '.join(different)}); use the same, or another --study"
            raise UserError(f"the study '{study_name}' in {url} {begun}")
    return study


class KeyedSampler(TPESampler):
    """TPE that starts afresh for every draw, from a seed made of the search's and the trial's."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed

    def sample_independent(self, study, trial, param_name, param_distribution):
        seed = zlib.crc32(repr((self.seed, trial.number, param_name)).encode())
        return TPESampler(seed=seed).sample_independent(study, trial, param_name, param_distribution)
