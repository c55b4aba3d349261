"""Check this machine for training: environment, host syncs, correctness, speed. On a GPU it takes less than 5 minutes.

Prints one line for each check, and writes one page (check.html) and one JSON file (check.json). Exit code 0: nothing is
wrong; 3: nothing is wrong so far, but time ran out; 4: something is wrong. Without a GPU it runs what has a meaning on
a CPU, and says what it left out.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from yolov7fast.cli.programs import program
from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.diagnostics.page import as_page
from yolov7fast.diagnostics.run import run_checks, sections
from yolov7fast.diagnostics.setting import Setting


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = program("check").parser(__doc__)
    parser.add_argument("--device", default="", help="a GPU's number, or cpu; default: the first GPU, else the CPU")
    parser.add_argument("--minutes", type=float, default=5.0, help="begin no check later than this; default: 5")
    parser.add_argument("--only", nargs="+", default=[], metavar="SECTION", help=f"of {', '.join(sections())}")
    parser.add_argument("--output", default="runs/check", help="folder for check.html and check.json")
    opt = parser.parse_args(argv)
    opt.only = [name.replace("-", " ") for name in opt.only]
    unknown = [name for name in opt.only if name not in sections()]
    if unknown:
        known = ", ".join(name.replace(" ", "-") for name in sections())
        raise UserError(f"--only {unknown[0]} is not known: sections are {known}")
    if not opt.minutes > 0:
        raise UserError(f"--minutes is {opt.minutes:g}; it must be above 0")
    return opt


def main(argv: Sequence[str] | None = None) -> int:
    opt = parse(argv)
    output = Path(opt.output)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output: folder {output} cannot be made ({error.strerror}); give another place") from None
    device = select_device(opt.device)
    with tempfile.TemporaryDirectory(prefix="yolov7fast_check_") as scratch:
        report = run_checks(Setting(device, Path(scratch), Path.cwd()), opt.minutes, opt.only)
    write_atomically(output / "check.json", report.as_json())
    write_atomically(output / "check.html", as_page(report))
    print(f"\n{report.verdict}\nwritten: {output / 'check.html'}, {output / 'check.json'}")
    return report.exit_code
