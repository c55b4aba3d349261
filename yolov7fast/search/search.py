"""Trials that Optuna draws: TPE proposes settings, successive halving or Hyperband ends what falls behind.

Draws are keyed by (seed, number of the trial), so a search that was killed and goes on proposes what it would have
proposed. The study lives in a database; several machines can work on one.
"""

import contextlib
import statistics
import zlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from yolov7fast.core.errors import UserError
from yolov7fast.search.ledger import COMPLETED, ENDED, FAILED, PRUNED, Ledger, Point, Run, run_from
from yolov7fast.search.space import Dimension
from yolov7fast.search.trainer import Trainer

if TYPE_CHECKING:
    import optuna
else:
    try:
        import optuna
    except ImportError:  # the list mode needs nothing extra
        optuna = None

REDUCTION = 3  # of those that reach a rung, one in so many goes on
PRUNERS = ("asha", "hyperband", "none")
VERDICT = "verdict {step}"  # an attribute of a trial: whether its pruner wants it ended after so many epochs


def require_optuna() -> None:
    if optuna is None:
        raise UserError("--search needs Optuna: .venv/bin/pip install -r requirements-search.txt")
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Place:
    """Where the study is: its database and name. shared: other machines may work on it."""

    url: str
    name: str
    shared: bool


def open_study(place: Place, pruner: str, epochs: int, seed: int, plan: Mapping[str, Any]) -> "optuna.Study":
    """The study, made or joined; one that was begun for other settings is refused."""
    try:
        study = optuna.create_study(
            storage=place.url,
            study_name=place.name,
            direction="maximize",
            load_if_exists=True,
            sampler=_keyed_sampler(seed),
            pruner=_pruner(pruner, epochs),
        )
    except Exception as error:  # any driver's own classes: the address is wrong, the database away or foreign
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"--storage {place.url} cannot be opened: {reason}") from None
    stored = study.user_attrs.get("plan")
    if stored is None:
        study.set_user_attr("plan", dict(plan))
    elif stored != plan:
        different = sorted(key for key in {*stored, *plan} if stored.get(key) != plan.get(key))
        raise UserError(
            f"the study '{place.name}' in {place.url} was begun with other settings ({', '.join(different)}); "
            "use the same, or another --study"
        )
    return study


def _pruner(kind: str, epochs: int) -> "optuna.pruners.BasePruner":
    first = max(1, min(2, epochs // 2), epochs // REDUCTION**2)  # before that, an mAP is mostly chance
    if kind == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION)
    if kind == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=first, max_resource=epochs, reduction_factor=REDUCTION)
    return optuna.pruners.NopPruner()


def _keyed_sampler(seed: int) -> "optuna.samplers.BaseSampler":
    """TPE that starts afresh for every draw, from a seed made of the search's and the trial's."""

    def tpe(*key) -> optuna.samplers.TPESampler:
        return optuna.samplers.TPESampler(seed=zlib.crc32(repr((seed, *key)).encode()))

    class Keyed(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study, trial):
            return tpe(trial.number).infer_relative_search_space(study, trial)

        def sample_relative(self, study, trial, search_space):
            return tpe(trial.number).sample_relative(study, trial, search_space)

        def sample_independent(self, study, trial, param_name, param_distribution):
            return tpe(trial.number, param_name).sample_independent(study, trial, param_name, param_distribution)

    return Keyed()


def suggest(trial: "optuna.trial.Trial", name: str, dimension: Dimension) -> Any:
    """The trial's value of this setting: drawn once, then the same at every call, also in a later process."""
    if dimension.kind == "choice":
        return trial.suggest_categorical(name, dimension.choices)
    if dimension.kind == "int":
        return trial.suggest_int(name, int(dimension.low), int(dimension.high), step=dimension.step)
    return trial.suggest_float(name, dimension.low, dimension.high, log=dimension.kind == "log_uniform")


class Search:
    """The source of a search: `trials` settings in all, each with every seed; the first seed decides about pruning."""

    def __init__(
        self,
        ledger: Ledger,
        study: "optuna.Study",
        trainer: Trainer,
        space: Mapping[str, Dimension],
        seeds: Sequence[int],
        trials: int,
        shared: bool,
    ):
        self.ledger, self.study, self.trainer, self.seeds, self.trials = ledger, study, trainer, list(seeds), trials
        self.space = space
        self.owner = ledger.plan["id"]
        self.first = ledger.first  # the number of a setting is that of its trial in the study, and so much
        ledger.save()  # before anything is drawn: whoever draws in its name must be found again by --resume
        self.handles: dict[int, optuna.trial.Trial] = {}
        self.waiting: deque[Run] = deque()
        self.asked = len(study.get_trials(deepcopy=False))  # settings drawn so far, on all machines
        self.take_up(shared)

    @property
    def total(self) -> int:
        """Runs of this machine, begun or to come; a setting that was pruned or failed saves its other seeds."""
        seeds = Counter(run.setting for run in self.ledger.ordered)
        going_on = {run.setting for run in self.ledger.ordered if run.status not in (PRUNED, FAILED)}
        known = sum(len(self.seeds) if setting in going_on else count for setting, count in seeds.items())
        return known + len(self.seeds) * max(0, self.trials - self.asked)

    def take_up(self, shared: bool) -> None:
        """What an earlier process left: unfinished runs, results not yet told, a trial drawn but not written down."""
        settings = {run.setting for run in self.ledger.ordered}
        running = self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        for frozen in running:
            own = frozen.user_attrs.get("owner") == self.owner or not shared
            setting = self.first + frozen.number
            if setting in settings or own:
                self.handles[setting] = optuna.trial.Trial(self.study, frozen._trial_id)
            if setting not in settings and own:
                self.draw(self.handles[setting])
        for run in self.ledger.ordered:
            if run.status in ENDED:
                self.ended(run)
        self.waiting = deque(run for run in self.ledger.ordered if run.status not in ENDED)

    def next(self) -> Run | None:
        if not self.waiting and self.asked < self.trials:
            self.asked = len(self.study.get_trials(deepcopy=False))
        while not self.waiting and self.asked < self.trials:  # what is drawn may be impossible: then the next one
            trial = self.study.ask()
            self.asked += 1
            trial.set_user_attr("owner", self.owner)
            self.handles[self.first + trial.number] = trial
            self.draw(trial)
        return self.waiting.popleft() if self.waiting else None

    def draw(self, trial: "optuna.trial.Trial") -> None:
        """Settings for a trial of the study; its first run waits to be started, or has failed if it cannot be."""
        drawn = {name: suggest(trial, name, dimension) for name, dimension in self.space.items()}
        try:  # each setting's range was checked by itself, but not what may come together
            params = {name: self.trainer.value(name, value, "drawn") for name, value in drawn.items()}
            self.trainer.check(params, "drawn")
        except UserError as error:
            self.add(self.first + trial.number, 0, drawn, str(error))
        else:
            self.add(self.first + trial.number, 0, params)

    def add(self, setting: int, k: int, params: Mapping[str, Any], impossible: str = "") -> None:
        """A new run, which waits to be started; impossible: why it cannot be."""
        key = self.first + (setting - self.first) * len(self.seeds) + k
        if key in self.ledger.runs:
            return
        run = self.ledger.runs[key] = Run(key, setting, self.seeds[k], dict(params))
        if impossible:
            run.status, run.reason = FAILED, impossible
        self.ledger.save()
        if impossible:
            self.ended(run)
        else:
            self.waiting.append(run)

    def judge(self, run: Run, point: Point) -> str:
        trial = self.handles.get(run.setting)
        if run.seed != self.seeds[0] or trial is None or point.map is None:
            return ""
        step = point.epoch + 1
        if step not in self.study.get_trials(deepcopy=False)[run.setting - self.first].intermediate_values:
            trial.report(point.map, step)
        return f"the search's pruner ended it after epoch {point.epoch}" if self.prunes(trial, step) else ""

    def prunes(self, trial: "optuna.trial.Trial", step: int) -> bool:
        """Whether the pruner ends the trial after so many epochs; asked again after a kill, it says the same.

        A pruner notes in the study what it has judged and lets it pass the second time. So the first time it judges
        a copy; the verdict is written down, and only then does the pruner make its notes.
        """
        name = VERDICT.format(step=step)
        if name not in trial.user_attrs:
            copy = optuna.create_study(
                study_name=self.study.study_name, direction=self.study.direction, pruner=self.study.pruner
            )
            copy.add_trials(self.study.get_trials())
            same = copy.get_trials(deepcopy=False)[trial.number]
            trial.set_user_attr(name, optuna.trial.Trial(copy, same._trial_id).should_prune())
        trial.should_prune()
        return trial.user_attrs[name]

    def ended(self, run: Run) -> None:
        """Tell the study when all runs of a setting have ended; until then, start the next seed's."""
        runs = [other for other in self.ledger.ordered if other.setting == run.setting]
        first = runs[0]
        if first.status == COMPLETED and len(runs) < len(self.seeds):
            self.add(run.setting, len(runs), run.params)
            return
        trial = self.handles.get(run.setting)
        if trial is None or any(other.status not in ENDED for other in runs):
            return
        del self.handles[run.setting]
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):  # told before, or by someone else
            trial.set_user_attr("runs", [asdict(other) for other in runs])
        maps = [other.final_map for other in runs if other.status == COMPLETED and other.final_map is not None]
        if first.status == PRUNED:
            self.study.tell(trial, state=optuna.trial.TrialState.PRUNED, skip_if_finished=True)
        elif maps:
            self.study.tell(trial, statistics.fmean(maps), skip_if_finished=True)
        else:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)

    def elsewhere(self) -> list[Run]:
        """Runs of the same study that other machines have ended."""
        stored = [trial.user_attrs.get("runs", []) for trial in self.study.get_trials(deepcopy=False)]
        return [run for runs in stored for run in map(run_from, runs) if run.id not in self.ledger.runs]

    def left_elsewhere(self) -> list[int]:
        """Settings whose trials are not ended and not this machine's: drawn by others, at work or gone."""
        running = self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        own = {run.setting for run in self.ledger.ordered}
        return [number for number in (self.first + trial.number for trial in running) if number not in own]
