"""Train with each combination of some settings, at equal epochs and equal time, and report what came out.

    yolov7fast study --data D --cfg C --axes assigner=plain,ota,tal batch=16,64 --repeat 2 --epochs 30 --minutes 10

Flags that are not listed below go to every training, such as --hyp small --device cpu. The same command resumes a study
that was stopped. Writes report.html, report.md, runs.csv and results.json to the output folder.
"""

import argparse
import json
from collections.abc import Collection, Sequence
from pathlib import Path

from yolov7fast.cli.checks import check_train
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.programs import program
from yolov7fast.commands.compare_runs import write_report
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.files.paths import check_file
from yolov7fast.reports.runs import read_run
from yolov7fast.studies.figures import Price, Trained, read_price, recorded_price
from yolov7fast.studies.plan import Plan, StudyRun, flag_of, make_plan
from yolov7fast.studies.report import build_report, run_rows, to_csv
from yolov7fast.studies.runner import Stopped, StudyFolder, run_all

PRICE = "price.json"
PRICE_EPOCHS = 3  # of a training that measures a price: the median leaves the first, slower one out
# what the study sets itself
OWN = ("data", "cfg", "epochs", "seed", "project", "name", "exist_ok", "resume", "evolve", "config", "notest")


def parser() -> argparse.ArgumentParser:
    own = program("study").parser(__doc__, allow_abbrev=False)
    own.add_argument("--data", required=True, help="data yaml")
    own.add_argument("--cfg", required=True, help="network yaml")
    own.add_argument(
        "--axes", nargs="+", required=True, help="NAME=VALUE,VALUE: assigner, batch, size, or another flag"
    )
    own.add_argument("--repeat", type=int, default=2, help="seeds of every arm (default: %(default)s)")
    own.add_argument("--epochs", type=int, default=30, help="epochs at equal epochs (default: %(default)s)")
    text = "train every arm again, for the epochs that fit into so many minutes; 0: do not (default)"
    own.add_argument("--minutes", type=float, default=0.0, help=text)
    own.add_argument("--output", type=Path, default=Path("runs/study/exp"), help="folder (default: %(default)s)")
    text = f"measure the price of an epoch anew, all arms in turn, for {PRICE}; then report. On an idle machine"
    own.add_argument("--measure-price", action="store_true", help=text)
    own.add_argument("--report-only", action="store_true", help="train nothing: report what is there")
    return own


def train_flags(plan: Plan, run: StudyRun) -> list[str]:
    """Of a training, but for the folder that it writes to."""
    known = ["--data", plan.data, "--cfg", plan.cfg, *plan.flags, *run.arm.flags()]
    return [*known, "--epochs", str(run.epochs), "--seed", str(run.seed)]


def check(plan: Plan, given: Collection[str]) -> None:
    """Refuse what no training could start with, before the first one does. given: names of the further flags."""
    flags = parser_for("train").flags
    for axis in plan.axes:
        name = flag_of(axis).removeprefix("--").replace("-", "_")
        if name in OWN:
            raise UserError(f"--axes {axis}: the study sets --{name.replace('_', '-')} itself")
        if name not in flags or flags[name].is_switch:
            raise UserError(f"--axes {axis}: no flag of training that takes a value; such are assigner, batch and size")
    for name in (*OWN, *(flag_of(axis).removeprefix("--").replace("-", "_") for axis in plan.axes)):
        if name in given:
            raise UserError(f"--{name.replace('_', '-')} is set by the study itself: leave it out")
    for run in plan.equal_epochs():
        check_train(parser_for("train").parse_args(train_flags(plan, run)))
    if "assigner" in plan.axes:
        from yolov7fast.losses.assigners import find_assigner  # loads torch, which takes seconds

        for name in plan.axes["assigner"]:
            find_assigner(name)


def command(plan: Plan):
    """What trains a run into its folder, or resumes it there."""
    start = program("train").child()
    return lambda run, folder: [
        *start,
        *train_flags(plan, run),
        *("--project", str(folder.parent), "--name", folder.name, "--resume", "auto"),
    ]


def measure_price(plan: Plan, output: Path) -> None:
    """Short trainings of all arms, two rounds in opposite order; the lower median of an arm counts."""
    seconds: dict[str, list[float]] = {}
    for turn, arms in enumerate((plan.arms, plan.arms[::-1])):
        runs = [StudyRun(arm, turn, PRICE_EPOCHS, "epochs") for arm in arms]
        folder = StudyFolder(output / "price" / str(turn), plan).open()
        run_all(folder, runs, command(plan), f"price, round {turn + 1} of 2")
        for run in runs:
            found = Trained(run, read_run(folder.folder(run))).seconds_an_epoch
            seconds.setdefault(run.arm.name, []).append(found)
    write_atomically(output / PRICE, json.dumps({name: min(values) for name, values in seconds.items()}, indent=1))


def collect(study: StudyFolder, runs: Sequence[StudyRun]) -> list[Trained]:
    """Of the runs that are done; one that serves at equal epochs and equal minutes stands there twice."""
    return [Trained(run, read_run(study.folder(run))) for run in runs if run.name in study.done]


def price_of(plan: Plan, output: Path, trained: Sequence[Trained]) -> Price:
    return read_price(output / PRICE, plan) if (output / PRICE).is_file() else recorded_price(plan, trained)


def run_study(plan: Plan, output: Path, report_only: bool) -> list[Path]:
    """Train what is missing, then write the report; returns its files."""
    study, first = StudyFolder(output, plan).open(), plan.equal_epochs()
    if not report_only:
        run_all(study, first, command(plan), "equal epochs")
    trained = collect(study, first)
    if not trained:
        raise UserError(f"{output}: no training of this study is done yet; run it without --report-only")
    price = price_of(plan, output, trained)
    if plan.minutes and len(price.seconds) == len(plan.arms):
        second = plan.equal_minutes(price.seconds)
        if not report_only:
            run_all(study, second, command(plan), "equal minutes")
        trained += collect(study, second)
    written = write_report(build_report(plan, trained, price), output)
    rows = run_rows(trained)
    write_atomically(output / "runs.csv", to_csv(rows))
    content = {"plan": plan.to_dict(), "price": price._asdict(), "runs": rows}
    write_atomically(output / "results.json", json.dumps(content, indent=1) + "\n")
    return [*written, output / "runs.csv", output / "results.json"]


def main() -> int:
    opt, further = parser().parse_known_args()
    given = parser_for("train").parse_args(further).given
    data, cfg = check_file(opt.data, "data"), check_file(opt.cfg, "cfg")
    plan = make_plan(data, cfg, opt.axes, opt.repeat, opt.epochs, opt.minutes, further)
    check(plan, given)
    try:
        if opt.measure_price:
            measure_price(plan, opt.output)
        written = run_study(plan, opt.output, opt.report_only)
    except Stopped as stopped:
        print(f"stopped; the same command resumes the study in {opt.output}")
        return stopped.code
    print("written: " + ", ".join(map(str, written)))
    return 0
