"""What tools/run_trials.py does after parsing: check everything, run the trials, tell what they found."""

import json
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from yolov7fast.checkpoint.family import FAMILIES
from yolov7fast.cli.programs import program
from yolov7fast.cli.run_file import family_of_run_file
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.files.file_lock import exclusive
from yolov7fast.search import options
from yolov7fast.search.keys import read_trials
from yolov7fast.search.ledger import ENDED, FAILED, FILE, FIRST, Ledger, Run
from yolov7fast.search.listed import Listed
from yolov7fast.search.runner import Runner, Settings, Source
from yolov7fast.search.space import read_space
from yolov7fast.search.table import (
    ORDER,
    best_settings,
    rank,
    ranking_text,
    verdict,
    write_csv,
    write_ranking,
    write_ranking_csv,
)
from yolov7fast.search.trainer import Budget, FlagTrainer, Trainer, UnknownSetting
from yolov7fast.search.yolo import YoloTrainer

LOCK = ".lock"
JUDGED_BY = 3  # what is pruned is judged by its validations: so many at least


def run(opt: Namespace, make_trainer: Callable[[str, Budget], Trainer] | None = None) -> int:
    """Run the trials that the options describe; returns the exit code."""
    folder = Path(opt.output_dir)
    check_folder(folder)
    stored = Ledger.read(folder) if opt.resume else None
    if stored:
        opt = options.resumed(opt, stored.plan["options"])
    options.check(opt)
    prunes = bool(opt.early_stop_threshold) or (opt.search and opt.pruner != "none")
    budget = Budget(opt.budget_epochs, opt.budget_subset, opt.budget_size, JUDGED_BY if prunes else 0)
    trainer = (make_trainer or trainer_for(opt.base_config))(opt.base_config, budget)
    plan = make_plan(opt, trainer)
    if stored:
        check_unchanged(stored.plan, plan, opt)
    else:
        check_unused(folder)
    trainer.prepare(plan["trials"])
    make_folder(folder)
    with exclusive(folder / LOCK, f"waiting for another run_trials.py that works in {folder}"):
        if stored:  # read again: another process may have worked here until it let go of the lock
            ledger = Ledger.read(folder)
            kept = {"timestamp": ledger.plan["timestamp"], "id": ledger.plan.get("id", str(folder.resolve()))}
            ledger.plan = plan | kept | {"first": ledger.first}
        else:
            check_unused(folder)
            ledger = Ledger(folder, plan)
        with database_failures_named(opt):
            return work(opt, trainer, ledger)


def trainer_for(base_config: str) -> type[FlagTrainer]:
    """The trainer of the family that a base configuration is for."""
    return trainer_class(family_of_run_file(base_config))


def trainer_class(family: str) -> type[FlagTrainer]:
    if family == "yolo":
        return YoloTrainer
    if family == "detr":
        from yolov7fast.search.detr import DetrTrainer

        return DetrTrainer
    from yolov7fast.families.registry import family_class

    known = family_class(family)
    parts = {"family": family, "suffix": known.checkpoint_suffix, "weights": known.weights_folder}
    return type("FamilyTrainer", (FlagTrainer,), parts)


def check_folder(folder: Path) -> None:
    """Before anything is read: --output-dir must not be, nor lie below, a file."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"--output-dir {folder}: {there} is a file; choose a folder, or a name that is free")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output-dir {folder} cannot be made: {error.strerror or error}") from None


def check_unused(folder: Path) -> None:
    if (folder / FILE).exists():
        raise UserError(f"{folder} holds trials already: --resume goes on with them, another --output-dir begins anew")


def make_plan(opt: Namespace, trainer: Trainer) -> dict[str, Any]:
    """What these trials are, in plain values: written down, and compared when they are gone on with."""
    plan: dict[str, Any] = {
        "timestamp": datetime.now().strftime("%Y%m%d_%H%M%S"),
        "first": FIRST,
        "id": uuid.uuid4().hex,  # by which a search knows what it has drawn from a study that others share
        "options": {name: getattr(opt, name) for name in (*options.fixed(), "trials")},
        "base": trainer.base_content(),
        "trials": [],
        "space": {},
        "files": {},
    }
    settings: list[dict[str, Any]] = []
    if opt.trials_file:
        with wrong_family_named(opt.trials_file, trainer):
            plan["trials"] = settings = read_trials(opt.trials_file, trainer)
    else:
        from yolov7fast.search.search import require_optuna

        require_optuna()
        with wrong_family_named(opt.search, trainer):
            space = read_space(opt.search, trainer)
        plan["space"] = {name: str(dimension) for name, dimension in space.items()}
        settings = [{name: choice} for name, dimension in space.items() for choice in dimension.choices]
    plan["files"] = trainer.files(settings)
    return json.loads(json.dumps(plan, default=str))  # as it will be read back


@contextmanager
def wrong_family_named(path: str, trainer: Trainer) -> Iterator[None]:
    """Let the complaint about a setting that another family has name that family."""
    try:
        yield
    except UnknownSetting as error:
        own = getattr(trainer, "family", "")
        for family in (name for name in FAMILIES if name != own):
            if trainer_class(family).knows(error.key):
                raise UserError(
                    f"{error}; '{error.key}' is a setting of the {family} family, so {path} seems to be for that one, "
                    f"but {trainer.base_config} is a run file of the {own} family"
                ) from None
        raise


def check_unchanged(stored: dict[str, Any], plan: dict[str, Any], opt: Namespace) -> None:
    """Going on needs the same base and the same settings; more trials at the end of a list are welcome."""
    if plan["trials"][: len(stored["trials"])] != stored["trials"]:
        raise UserError(f"{opt.trials_file} has changed since these trials began; only add new ones at its end")
    for part, file in (("base", opt.base_config), ("space", opt.search)):
        if plan[part] != stored[part]:
            raise UserError(f"{file} has changed since these trials began; choose another --output-dir to begin anew")
    for file, digest in stored.get("files", {}).items():
        if plan["files"].get(file) != digest:
            raise UserError(f"{file} has changed since these trials began; choose another --output-dir to begin anew")


def work(opt: Namespace, trainer: Trainer, ledger: Ledger) -> int:
    first = trainer.seed if opt.seed is None else opt.seed
    seeds = [first + k for k in range(opt.repeat)]
    source: Source = (
        open_search(opt, trainer, ledger, seeds) if opt.search else Listed(ledger, ledger.plan["trials"], seeds)
    )
    for note in trainer.notes():
        print(f"note: {note}")
    limit = options.seconds(opt.time_budget)
    settings = Settings(
        devices=devices_of(opt),
        threshold=opt.early_stop_threshold,
        deadline=None if limit is None else time.monotonic() + limit,
    )

    def begun() -> list[Run]:
        runs = ledger.ordered + source.elsewhere()
        return sorted((run for run in runs if run.status in ORDER), key=lambda run: run.id)

    table = ledger.folder / f"trials_{ledger.plan['timestamp']}.csv"
    runner = Runner(trainer, ledger, source, settings, note=lambda: write_csv(table, begun(), trainer))
    try:
        code = runner.run()
    except KeyboardInterrupt:
        code = 130
    runs = begun()
    tell(runs, trainer, table)
    left = source.total - sum(run.status in ENDED for run in ledger.ordered)
    if left:
        print(f"{runner.stopping or 'interrupted'}: {left} of {source.total} trials are not done.")
        print(f"Resume with: {program('trials').invocation} --output-dir {ledger.folder} --resume")
    if others := source.left_elsewhere():
        listed = ", ".join(map(str, others))
        print(
            f"note: settings {listed} of the study are still with other machines; if one of those is gone for good, "
            f"--resume --trials {opt.trials + len(others)} draws as many anew"
        )
    return code or int(bool(runs) and all(run.status == FAILED for run in runs))


def database_failures_named(opt: Namespace) -> AbstractContextManager:
    """Where the trials are those of a search: what its database raises becomes one line."""
    if not opt.search:
        return nullcontext()
    from yolov7fast.search.search import failures_named

    return failures_named(opt.storage or f"in {opt.output_dir}")


def open_search(opt: Namespace, trainer: Trainer, ledger: Ledger, seeds: list[int]):
    from yolov7fast.search import search

    url = opt.storage or f"sqlite:///{ledger.folder.resolve() / 'study.db'}"
    place = search.Place(url, opt.study, shared=bool(opt.storage))
    plan = {key: ledger.plan[key] for key in ("base", "space")}
    plan |= {name: ledger.plan["options"][name] for name in ("budget_epochs", "budget_subset", "budget_size", "repeat")}
    study = search.open_study(place, opt.pruner, trainer.epochs({}), seeds[0], plan)
    space = read_space(opt.search, trainer)
    return search.Search(ledger, study, trainer, space, seeds, opt.trials, place.shared)


def devices_of(opt: Namespace) -> list[str | None]:
    """One entry for each place; several places share the devices in turn."""
    named: list[str | None] = [part.strip() for part in opt.devices.split(",") if part.strip()]
    jobs = opt.jobs or max(1, len(named))
    if not named and jobs > 1:
        import torch  # only here: it takes seconds to load

        named = [str(i) for i in range(torch.cuda.device_count())]
    return [named[i % len(named)] if named else None for i in range(jobs)]


def tell(runs: list[Run], trainer: Trainer, table: Path) -> None:
    """Ranking, what is noise, the picture, and the command that the best settings deserve."""
    if not runs:
        return
    write_csv(table, runs, trainer)
    places = rank(runs)
    text = "\n\n".join(filter(None, [ranking_text(places, trainer), verdict(places)]))
    stamp = table.stem.removeprefix("trials_")
    ranking, figures, picture = (table.with_name(f"ranking_{stamp}{end}") for end in (".txt", ".csv", ".png"))
    write_ranking(ranking, text)
    write_ranking_csv(figures, places, trainer)
    from yolov7fast.search.picture import draw  # matplotlib takes a second to load

    draw(picture, runs, trainer)
    print(f"\n{text}\n\nwritten: {table}, {ranking.name}, {figures.name}, {picture.name}")
    best, path = best_settings(places), table.with_name("best.yaml")
    if best is None:
        path.unlink(missing_ok=True)  # of an earlier part of these trials
    else:
        content, arguments = trainer.full_run(best, path)
        write_atomically(path, yaml.safe_dump(content, sort_keys=False))
        print(f"A full run with the best settings ({content.get('epochs')} epochs):\n  {' '.join(arguments)}")
