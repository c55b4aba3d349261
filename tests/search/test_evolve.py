"""Evolution of hyper-parameters: its files, what it keeps, how it stops and resumes. Trainings are pretended."""

from pathlib import Path

import numpy as np
import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.eval_result import SUMMARY
from yolov7fast.search.evolve import evolve, evolve_with_trainings
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.distributed import World
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.trainer import Outcome
from yolov7fast.training.yolo_family import YoloFamily

HYP = load_hyp("data/hyp.small.yaml")


def trained(child: dict, interrupted: int = 0) -> Outcome:
    (Path("runs") / "evolve").mkdir(parents=True, exist_ok=True)  # as a training does
    return Outcome(dict.fromkeys(SUMMARY, child["lr0"]), Progress(), interrupted, 0.0)


@pytest.fixture
def run_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # drawing takes seconds; a real evolution draws in tests/training/test_train_options.py
    monkeypatch.setattr("yolov7fast.search.evolve.plot_evolution", lambda *given: Path(given[-1]).touch())
    return Path("runs") / "evolve"


def test_the_evolved_set_keeps_what_is_no_gene(run_dir, capsys):
    results = iter((0.1, 0.2, 0.3))  # each generation is better than the one before

    def rising(child: dict) -> Outcome:
        return trained(child | {"lr0": next(results)})

    assert evolve(HYP, run_dir, rising, generations=3) == 0
    evolved = load_hyp(run_dir / "hyp_evolved.yaml")
    kept = ("loss_ota", "warmup_min_iters", "nominal_batch")
    assert {name: evolved[name] for name in kept} == {name: HYP[name] for name in kept}
    assert evolved.keys() == HYP.keys() and evolved != HYP
    assert f"--hyp {run_dir / 'hyp_evolved.yaml'}" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"loss_ota": 0}, {"assigner": "tal"}])
def test_the_evolved_set_holds_what_the_command_line_changes(run_dir, monkeypatch, change):
    """The generations are trainings with the options of the command, without checkpoints."""
    config, seen = YoloTrainConfig(hyp="data/hyp.small.yaml", project="runs", **change), []

    def run_training(config, *_):
        seen.append((config.name, config.nosave, config.keep_files))
        return trained(config.hyp)

    monkeypatch.setattr("yolov7fast.search.evolve.run_training", run_training)
    monkeypatch.setattr(evolve, "__defaults__", ("", 2))
    assert evolve_with_trainings(config, YoloFamily, World()) == 0
    assert load_hyp(run_dir / "hyp_evolved.yaml").items() >= change.items() and seen == [("evolve", True, False)] * 2
    with pytest.raises(UserError, match="one process"):
        evolve_with_trainings(config, YoloFamily, World(rank=0, size=2))


def test_stopping_says_how_to_resume_and_the_same_command_does(run_dir, capsys):
    calls = []

    def stopped_in_the_second(child: dict) -> Outcome:
        calls.append(child)
        return trained(child, interrupted=130 if len(calls) == 2 else 0)

    assert evolve(HYP, run_dir, stopped_in_the_second, generations=9) == 130
    said = capsys.readouterr().out.splitlines()[-1]
    assert "stopped in generation 2 of 9; resume with the same command" in said and "1 training" in said
    evolve(HYP, run_dir, trained, generations=1)
    assert len(np.loadtxt(run_dir / "evolve.txt", ndmin=2)) == 2
