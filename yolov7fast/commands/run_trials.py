"""Find good settings for little money: many short trainings from a list or a search, ranked in a table.

    python tools/run_trials.py --base-config configs/tiny_smoke.yaml --trials-file experiments/lr_bs.json \
        --output-dir outputs/trials --budget-epochs 5 --budget-subset 1000 --budget-size 320 --early-stop-threshold 0.1
"""

import sys

from yolov7fast.search import options


def main() -> int:
    opt = options.parser().parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # what is printed shows at once, also through a pipe or in a log
    from yolov7fast.search.command import run

    return run(opt)
