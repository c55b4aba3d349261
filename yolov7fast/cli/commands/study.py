"""Compare settings: train every combination with several seeds, at equal epochs and equal minutes, and report.

    yolov7fast study --data D --cfg C --axes assigner=plain,ota,tal batch=16,64 --repeat 2 --epochs 30 --minutes 10

Flags that are not listed below are passed to every training, such as --hyp small --device cpu. The same command resumes
a study that was stopped. Writes report.html and report.md to the output folder.
"""

import argparse
from pathlib import Path

from yolov7fast.cli.commands.compare_runs import write_report
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.programs import program


def parser() -> argparse.ArgumentParser:
    own = program("study").parser(__doc__, allow_abbrev=False)
    own.add_argument("--data", required=True, help="data yaml")
    own.add_argument("--cfg", required=True, help="network yaml")
    text = "NAME=VALUE,VALUE: assigner, batch, size, another flag of training, or a hyper-parameter"
    own.add_argument("--axes", nargs="+", required=True, help=text)
    own.add_argument("--repeat", type=int, default=2, help="seeds of every configuration (default: %(default)s)")
    own.add_argument("--epochs", type=int, default=30, help="epochs at equal epochs (default: %(default)s)")
    text = "train every configuration again, for the epochs that fit into so many minutes; 0: do not (default)"
    own.add_argument("--minutes", type=float, default=0.0, help=text)
    own.add_argument("--output", type=Path, default=Path("runs/study/exp"), help="folder (default: %(default)s)")
    return own


def main() -> int:
    opt, further = parser().parse_known_args()
    flags = parser_for("train").parse_args(further)
    from yolov7fast.losses.assigners import find_assigner  # slow to import
    from yolov7fast.search.studies import configurations, run_study

    if not 0 <= opt.minutes < 1e6:
        raise UserError(f"--minutes is {opt.minutes:g}; it must be at least 0")
    settings = configurations(opt.axes)
    for name in (setting["assigner"] for setting in settings if "assigner" in setting):
        find_assigner(name)
    if set_twice := sorted({*settings[0]} & {*flags.given}):
        raise UserError(f"--{set_twice[0].replace('_', '-')} is one of --axes: leave out one of the two")
    base = {name: getattr(flags, name) for name in sorted(flags.given)}
    base |= {"data": check_file(opt.data, "data"), "cfg": check_file(opt.cfg, "cfg")}
    report = run_study(base, settings, opt.repeat, opt.epochs, opt.minutes, opt.output)
    if isinstance(report, int):
        print(f"not finished; the same command resumes the study in {opt.output}")
        return report
    print("written: " + ", ".join(map(str, write_report(report, opt.output))))
    return 0
