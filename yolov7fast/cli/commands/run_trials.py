"""Search for good settings: many short trainings from a list or a search, ranked in a table.

    python tools/run_trials.py --base-config configs/tiny_smoke.yaml --trials-file experiments/lr_bs.json \
        --output-dir outputs/trials --budget-epochs 5 --budget-subset 1000 --budget-size 320 --early-stop-threshold 0.1
"""

from yolov7fast.search import trial_options as options


def main() -> int:
    opt = options.parser().parse_args()
    from yolov7fast.search.runner import run_trials

    return run_trials(opt)[0]
