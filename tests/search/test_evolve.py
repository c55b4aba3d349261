"""Evolution of hyper-parameters: its files, what it keeps, how it stops and resumes. Trainings are pretended."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from yolov7fast.cli.flags import flags_of
from yolov7fast.evaluation.result import SUMMARY
from yolov7fast.search.evolve import GENERATIONS, RESULTS, evolve
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.distributed import World
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.trainer import Outcome


def options(folder: Path, **changes) -> Namespace:
    settings = {
        "project": str(folder / "runs"),
        "hyp": "data/hyp.small.yaml",
        "loss_ota": None,
        "assigner": "",
        "bucket": "",
    }
    return Namespace(**settings | changes)


def run_folder(opt: Namespace) -> Path:
    folder = Path(opt.project) / "evolve"
    folder.mkdir(parents=True, exist_ok=True)  # as a training makes it
    return folder


def trained(opt: Namespace, interrupted: int = 0) -> Outcome:
    run_folder(opt)
    return Outcome(dict.fromkeys(SUMMARY, opt.hyp["lr0"]), Progress(), interrupted, 0.0)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # drawing takes seconds; a real evolution draws in tests/training/test_train_options.py
    monkeypatch.setattr("yolov7fast.search.evolve.plot_evolution", lambda *given: Path(given[-1]).touch())
    return tmp_path


def test_the_evolved_set_keeps_what_is_no_gene(elsewhere, capsys):
    opt, fitness = options(elsewhere), iter((0.1, 0.2, 0.3))  # each generation is better than the one before

    def rising(opt: Namespace) -> Outcome:
        run_folder(opt)
        return Outcome(dict.fromkeys(SUMMARY, next(fitness)), Progress(), 0, 0.0)

    assert evolve(opt, World(), rising, generations=3) == 0
    evolved, begun = load_hyp(run_folder(opt) / "hyp_evolved.yaml"), load_hyp("data/hyp.small.yaml")
    kept = ("loss_ota", "warmup_min_iters", "nominal_batch")
    assert {name: evolved[name] for name in kept} == {name: begun[name] for name in kept}
    assert evolved.keys() == begun.keys() and evolved != begun
    assert f"--hyp {run_folder(opt) / 'hyp_evolved.yaml'}" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"hyp": "tiny.noota"}, {"loss_ota": 0}])
def test_an_evolution_with_the_plain_loss_says_so_in_its_set(elsewhere, change):
    opt = options(elsewhere, **change)
    evolve(opt, World(), trained, generations=1)
    assert load_hyp(run_folder(opt) / "hyp_evolved.yaml")["loss_ota"] == 0


def test_an_evolved_set_names_the_assigner_of_the_command_line(elsewhere):
    opt = options(elsewhere, assigner="tal")
    evolve(opt, World(), trained, generations=2)
    assert load_hyp(run_folder(opt) / "hyp_evolved.yaml")["assigner"] == "tal"


def test_its_files_stay_in_the_run_folder(elsewhere):
    opt = options(elsewhere)
    evolve(opt, World(), trained, generations=2)
    assert [path.name for path in elsewhere.iterdir()] == ["runs"]
    assert {path.name for path in run_folder(opt).iterdir()} == {"evolve.txt", "evolve.png", "hyp_evolved.yaml"}


def test_stopping_says_how_to_resume_and_the_same_command_does(elsewhere, capsys):
    opt, calls = options(elsewhere), []

    def stopped_in_the_second(generation: Namespace) -> Outcome:
        calls.append(generation)
        return trained(generation, interrupted=130 if len(calls) == 2 else 0)

    assert evolve(opt, World(), stopped_in_the_second, generations=9) == 130
    said = capsys.readouterr().out.splitlines()[-1]
    assert "stopped in generation 2 of 9; resume with the same command" in said and "1 training" in said
    evolve(opt, World(), trained, generations=1)
    assert len(np.loadtxt(run_folder(opt) / "evolve.txt", ndmin=2)) == 2


def test_a_table_of_the_working_folder_is_taken_over(elsewhere, capsys):
    opt = options(elsewhere)
    evolve(opt, World(), trained, generations=1)
    (run_folder(opt) / "evolve.txt").rename(elsewhere / "evolve.txt")
    evolve(opt, World(), trained, generations=1)
    assert np.loadtxt(run_folder(opt) / "evolve.txt", ndmin=2).shape == (2, RESULTS + 29)
    assert "resuming the evolution of" in capsys.readouterr().out


def test_the_help_says_how_many_trainings_it_takes():
    assert f"{GENERATIONS} generations" in flags_of("train")["evolve"].help
