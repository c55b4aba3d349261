"""Evolution of hyper-parameters: its files, what it keeps, how it stops and resumes. Trainings are pretended."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.eval_result import SUMMARY
from yolov7fast.search.evolve import evolve
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.distributed import World
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.trainer import Outcome
from yolov7fast.training.yolo_family import YoloFamily

HYP, RUN_DIR = load_hyp("data/hyp.small.yaml"), Path("runs") / "evolve"


@pytest.fixture
def evolved(tmp_path, monkeypatch) -> Callable[..., int]:
    """`evolved(result, generations, **flags)`: result(config) -> fitness, exit code of a generation's training."""
    config = YoloTrainConfig(hyp=str(Path("data/hyp.small.yaml").resolve()), project="runs")
    monkeypatch.chdir(tmp_path)
    # drawing takes seconds; a real evolution draws in tests/training/test_train_options.py
    monkeypatch.setattr("yolov7fast.search.evolve.plot_evolution", lambda *given: Path(given[-1]).touch())

    def run(result: Callable, generations: int, size: int = 1, **flags) -> int:
        def run_training(generation, *_) -> Outcome:
            RUN_DIR.mkdir(parents=True, exist_ok=True)  # as a training does
            fitness, code = result(generation)
            return Outcome(dict.fromkeys(SUMMARY, fitness), Progress(), code, 0.0)

        monkeypatch.setattr("yolov7fast.search.evolve.run_training", run_training)
        changed = YoloTrainConfig(**{**vars(config), **flags})
        return evolve(changed, YoloFamily, World(rank=0, size=size) if size > 1 else World(), generations)

    return run


def test_the_evolved_set_keeps_what_is_no_gene(evolved, capsys):
    results = iter((0.1, 0.2, 0.3))  # each generation is better than the one before
    assert evolved(lambda generation: (next(results), 0), 3) == 0
    found = load_hyp(RUN_DIR / "hyp_evolved.yaml")
    kept = ("loss_ota", "warmup_min_iters", "nominal_batch")
    assert {name: found[name] for name in kept} == {name: HYP[name] for name in kept}
    assert found.keys() == HYP.keys() and found != HYP
    assert f"--hyp {RUN_DIR / 'hyp_evolved.yaml'}" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"loss_ota": 0}, {"assigner": "tal"}])
def test_the_evolved_set_holds_what_the_command_line_changes(evolved, change):
    """The generations are trainings with the options of the command, without checkpoints."""
    seen = []
    assert evolved(lambda c: seen.append((c.name, c.nosave, c.keep_files)) or (c.hyp["lr0"], 0), 2, **change) == 0
    assert load_hyp(RUN_DIR / "hyp_evolved.yaml").items() >= change.items() and seen == [("evolve", True, False)] * 2
    with pytest.raises(UserError, match="one process"):
        evolved(None, 2, size=2)


def test_stopping_says_how_to_resume_and_the_same_command_does(evolved, capsys):
    codes = iter((0, 130, 0))
    assert evolved(lambda c: (c.hyp["lr0"], next(codes)), 9) == 130
    said = capsys.readouterr().out.splitlines()[-1]
    assert "stopped in generation 2 of 9; resume with the same command" in said and "1 training" in said
    evolved(lambda c: (c.hyp["lr0"], next(codes)), 1)
    assert len(np.loadtxt(RUN_DIR / "evolve.txt", ndmin=2)) == 2
