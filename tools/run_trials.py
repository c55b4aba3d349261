"""Find good settings for little money: many short trainings from a list or a search, ranked in a table.

    python tools/run_trials.py --base-config configs/tiny_smoke.yaml --trials-file experiments/lr_bs.json \
        --output-dir outputs/trials --budget-epochs 5 --budget-subset 1000 --budget-size 320 --early-stop-threshold 0.1
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from engine.trials import options
from utils.errors import run_command


def main() -> int:
    opt = options.parser().parse_args()
    from engine.trials.command import run

    return run(opt)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # what is printed shows at once, also through a pipe or in a log
    run_command(main)
