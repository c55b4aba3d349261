"""Show the progress of runs: one line each, read from their folders, or from folders that --mirror copies to.

yolov7fast status                        all runs below runs/train and outputs
yolov7fast status /mnt/mirrors --watch   all runs below a folder, again every few seconds
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from yolov7fast.core.errors import UserError
from yolov7fast.core.programs import program
from yolov7fast.reports.run_status import run_status, runs_below, status_table

PLACES = ("runs/train", "outputs")
WATCH_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = program("status").parser(__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"folders of runs, or above them: {', '.join(PLACES)}")
    parser.add_argument("--json", action="store_true", help="print a list of objects; unknown values are null")
    parser.add_argument("--watch", action="store_true", help=f"print again every {WATCH_SECONDS:g} s, until Ctrl-C")
    parser.add_argument("--rate", type=float, help="price of the machine per hour; default: that of the run's --rate")
    opt = parser.parse_args(argv)
    if opt.rate is not None and not 0 <= opt.rate < 1e6:
        raise UserError(f"--rate is {opt.rate}; it must be a price")
    places = opt.runs or [place for place in PLACES if Path(place).is_dir()]
    while True:
        rows = [run_status(folder, opt.rate) for folder in runs_below(places)]
        if opt.watch and sys.stdout.isatty():
            print("\033[H\033[2J", end="")
        print(json.dumps(rows, indent=1) if opt.json else status_table(rows) if rows else "no runs")
        if not opt.watch:
            return 0
        time.sleep(WATCH_SECONDS)
