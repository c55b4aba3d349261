"""tools/run_trials.py with fake_train.py in place of train.py: python tests/search/fake_trials.py (its flags)"""

import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from yolov7fast.core.errors import run_command
from yolov7fast.core.process import child
from yolov7fast.search import runner
from yolov7fast.search import trial_options as options
from yolov7fast.search.trial_training import YoloTrialTraining

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests/search/fake_train.py"


class FakeTrainer(YoloTrialTraining):
    def __init__(self, base_config, budget):
        super().__init__(base_config, budget)
        self.command = [sys.executable, str(SCRIPT)]

    def prepare(self):
        """It needs no data set."""


def run(*arguments: str) -> int:
    with mock.patch.object(runner, "training_for", lambda base: FakeTrainer):
        return runner.run_trials(options.parser().parse_args(list(arguments)))[0]


if __name__ == "__main__":
    child.LOOK_SECONDS = 0.02
    run_command(lambda: run(*sys.argv[1:]))
