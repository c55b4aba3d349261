"""Searches as a user runs them, with a stand-in for train.py: draws, pruning, kills, machines that share a study."""

import contextlib
import re
import shutil
import signal
import sqlite3
import statistics

import optuna
import pytest

from tests.search.fake_runs import column, in_a_process, searched, table
from tests.search.fake_trials import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.search.runner import Runner
from yolov7fast.search.study import Trials
from yolov7fast.training.hyperparameters import load_hyp

pytestmark = pytest.mark.usefixtures("quick")


def test_a_killed_search_goes_on_to_the_same_table(tmp_path, fake):
    """Draws, pruning and results."""
    undisturbed = tmp_path / "a"
    assert run(*searched(undisturbed)) == 0
    assert {"completed", "pruned"} == set(column(undisturbed, "status"))
    assert len(set(column(undisturbed, "param_lr0"))) == 6
    flags = searched(tmp_path / "b")
    victim = column(undisturbed, "status").index("completed", 1)  # a trial with a second epoch
    fake(**{f"trial_{victim + 1:03d}": "kill runner"})
    assert in_a_process(*flags).returncode == -signal.SIGKILL
    assert run(*flags, "--resume", "--time-budget", "0.001s") == 0  # ends before it has begun
    assert run("--output-dir", str(tmp_path / "b" / "out"), "--resume") == 0
    assert table(tmp_path / "b") == table(undisturbed)


def test_a_trial_drawn_but_not_written_down_is_not_lost(tmp_path):
    flags = searched(tmp_path, "--trials", "1")
    assert run(*flags) == 0
    study = optuna.load_study(study_name="trials", storage=f"sqlite:///{tmp_path}/out/study.db")
    study.ask()  # and then the process is killed
    assert run(*flags, "--trials", "2", "--resume") == 0
    assert column(tmp_path, "setting") == ["1", "2"]
    assert all(trial.state.is_finished() for trial in study.trials)


def test_failed_and_repeated_trials_reach_the_study(tmp_path, fake, capsys):
    fake(trial_003="crash", trial_004="crash")
    assert run(*searched(tmp_path, "--trials", "3", "--repeat", "2", "--pruner", "none")) == 0
    study = optuna.load_study(study_name="trials", storage=f"sqlite:///{tmp_path}/out/study.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    maps = [float(row["final_map"]) for row in table(tmp_path) if row["setting"] == "1"]
    assert study.trials[0].value == pytest.approx(sum(maps) / 2, rel=1e-5)
    assert column(tmp_path, "setting") == ["1", "1", "2", "3", "3"]  # the second seed of a failed setting is saved
    assert "not done" not in capsys.readouterr().out


@pytest.mark.parametrize("pruner", ["asha", "none"])
def test_the_printed_command_trains_with_the_best_settings_of_the_study(tmp_path, capsys, pruner):
    """With ASHA the best one was paused and promoted."""
    assert run(*searched(tmp_path, "--trials", "3", "--pruner", pruner)) == 0
    (printed,) = re.findall(r"python train\.py (--config \S+)", capsys.readouterr().out)
    opt = parser_for("train").parse_args(printed.split())
    best = optuna.load_study(study_name="trials", storage=f"sqlite:///{tmp_path}/out/study.db").best_params
    hyp = load_hyp(opt.hyp)
    assert {"lr0": hyp["lr0"], "batch_size": opt.batch_size, "warmup_epochs": hyp["warmup_epochs"]} == best
    assert opt.epochs > 4  # the full run's, not the budget's


def test_hyperband(tmp_path):
    assert run(*searched(tmp_path, "--pruner", "hyperband", "--trials", "3")) == 0
    assert len(table(tmp_path)) == 3


def test_median_prunes_what_is_below_the_median_of_those_that_ended(tmp_path):
    """mAP rises with lr0 at every epoch; three trials come to their end before any is judged, from epoch 3 on."""
    assert run(*searched(tmp_path, "--pruner", "median", "--first-rung", "3", "--trials", "5")) == 0
    completed: list[float] = []
    for row in table(tmp_path):
        lr0 = float(row["param_lr0"])
        is_below = len(completed) >= 3 and lr0 < statistics.median(completed)
        assert row["status"] == ("pruned" if is_below else "completed")
        assert row["best_epoch"] == ("2" if is_below else "3")
        if not is_below:
            completed.append(lr0)
    assert len(completed) == 4


@pytest.mark.parametrize("first", [1, 3])
def test_the_first_rung_says_after_how_many_epochs_trials_are_judged(tmp_path, first):
    """By default it would be 2 of these 4; of two trials the better one trains on."""
    assert run(*searched(tmp_path, "--first-rung", str(first), "--trials", "2")) == 0
    assert column(tmp_path, "status") == ["completed", "pruned"]
    assert table(tmp_path)[1]["reason"] == f"paused after epoch {first - 1}: one in 3 trains on"


def test_machines_share_a_study(tmp_path):
    """Two folders, one database: trials are shared out, both tables show all of them."""
    storage = f"sqlite:///{tmp_path}/shared.db"
    assert run(*searched(tmp_path / "a", "--trials", "2", "--storage", storage, "--pruner", "none")) == 0
    assert run(*searched(tmp_path / "b", "--trials", "3", "--storage", storage, "--pruner", "none")) == 0
    assert column(tmp_path / "b", "trial_id") == ["1", "2", "3"]
    assert not (tmp_path / "b" / "out" / "trial_001").exists()
    with pytest.raises(UserError, match=r"begun with other settings \(repeat\)"):
        run(*searched(tmp_path / "c", "--storage", storage, "--repeat", "2"))
    with pytest.raises(UserError, match="cannot be opened"):
        run(*searched(tmp_path / "d", "--storage", "nonsense://x"))


def test_machines_with_the_same_path_do_not_take_each_others_trials(tmp_path, fake):
    """The folder of the first is moved away while its trial runs: as on two machines, the second's path is equal."""
    storage = f"sqlite:///{tmp_path}/shared.db"
    flags = searched(tmp_path, "--trials", "2", "--storage", storage, "--pruner", "none")
    fake(trial_001="kill runner")
    assert in_a_process(*flags).returncode == -signal.SIGKILL
    shutil.move(tmp_path / "out", tmp_path / "first")
    fake()
    assert run(*flags) == 0
    assert column(tmp_path, "setting") == ["2"]
    shutil.move(tmp_path / "out", tmp_path / "second")
    shutil.move(tmp_path / "first", tmp_path / "out")
    assert run(*flags, "--resume") == 0
    assert column(tmp_path, "setting") == ["1", "2"]
    assert (tmp_path / "out" / "trial_001").exists() and not (tmp_path / "out" / "trial_002").exists()


def test_a_machine_does_not_take_its_own_trials_for_lost(tmp_path, fake):
    """Resumed long after its last heartbeat: the second job looks for lost trials when the first has taken its own."""
    flags = searched(tmp_path, "--trials", "2", "--storage", f"sqlite:///{tmp_path}/shared.db", "--pruner", "none")
    fake(trial_001="kill runner")
    assert in_a_process(*flags).returncode == -signal.SIGKILL
    with contextlib.closing(sqlite3.connect(tmp_path / "shared.db")) as database:
        assert database.execute("update trial_heartbeats set heartbeat = '2000-01-01 00:00:00'").rowcount == 1
        database.commit()
    assert run(*flags, "--resume", "--jobs", "2", "--devices", "cpu") == 0
    study = optuna.load_study(study_name="trials", storage=f"sqlite:///{tmp_path}/shared.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2


def test_a_machine_that_is_gone_is_told_of(tmp_path, fake, capsys):
    storage = f"sqlite:///{tmp_path}/shared.db"
    fake(trial_001="kill runner")
    assert in_a_process(*searched(tmp_path / "a", "--storage", storage)).returncode == -signal.SIGKILL
    fake()
    assert run(*searched(tmp_path / "b", "--trials", "2", "--storage", storage, "--pruner", "none")) == 0
    assert "settings 1 of the study are still with other machines" in capsys.readouterr().out
    assert run("--output-dir", str(tmp_path / "b" / "out"), "--resume", "--trials", "3") == 0
    assert column(tmp_path / "b", "setting") == ["2", "3"]


def test_a_trial_that_another_machine_has_taken_over_is_left_to_it(tmp_path, monkeypatch, capsys):
    """This machine was silent for too long, as a suspended one: its trial is over when it reports the next epoch."""
    judge = Trials.judge

    def lose(self, trial, run, point):
        if run.setting == 1:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
        return judge(self, trial, run, point)

    monkeypatch.setattr(Trials, "judge", lose)
    storage = f"sqlite:///{tmp_path}/shared.db"
    assert run(*searched(tmp_path, "--trials", "2", "--storage", storage, "--pruner", "none")) == 0
    assert column(tmp_path, "setting") == ["2"]
    assert "trial_001: another machine has taken it over" in capsys.readouterr().out


def test_a_storage_that_fails_without_a_word_is_told(tmp_path, monkeypatch):
    flags = searched(tmp_path, "--storage", f"sqlite:///{tmp_path}/x")

    def fail(**_):
        raise RuntimeError

    monkeypatch.setattr(optuna, "create_study", fail)
    with pytest.raises(UserError, match="cannot be opened: RuntimeError"):
        run(*flags)


@pytest.mark.slow
def test_the_pruners_verdict_outlives_a_kill(tmp_path, monkeypatch):
    """Killed when it is decided that a trial pauses, before its record says so."""
    undisturbed = tmp_path / "a"
    assert run(*searched(undisturbed)) == 0
    victim = column(undisturbed, "status").index("pruned")
    judge = Trials.judge

    def judge_and_die(self, trial, run, point):
        found = judge(self, trial, run, point)
        if found and run.setting == victim + 1:
            raise SystemExit(9)  # like a kill, nothing behind it is done
        return found

    flags = searched(tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr(Trials, "judge", judge_and_die)
        patch.setattr(Runner, "clear", lambda self: None)
        with pytest.raises(SystemExit):
            run(*flags)
    assert run(*flags, "--resume") == 0
    assert table(tmp_path / "b") == table(undisturbed)


def test_settings_that_cannot_go_together_fail_and_the_search_goes_on(tmp_path):
    """Each is possible alone; both above 0 are not."""
    flags = searched(tmp_path, "--base-config", "configs/shapes.yaml", "--pruner", "none")
    (tmp_path / "s.yaml").write_text("overfit: {choice: [0, 10]}\nsubset_size: {choice: [0, 100]}\n")
    assert run(*flags) == 0
    rows = table(tmp_path)
    impossible = [row for row in rows if (row["param_overfit"], row["param_subset_size"]) == ("10", "100")]
    assert len(rows) == 6 and 0 < len(impossible) < 6
    for row in rows:
        assert row["status"] == ("failed" if row in impossible else "completed")
    assert "--overfit 10 and --subset-size 100 name different" in impossible[0]["reason"]
    assert not (tmp_path / "out" / f"trial_{int(impossible[0]['trial_id']):03d}").exists()


def test_a_search_that_has_drawn_nothing_can_be_gone_on_with(tmp_path):
    flags = searched(tmp_path, "--trials", "1", "--time-budget", "0.001s")
    assert run(*flags) == 0
    assert run("--output-dir", str(tmp_path / "out"), "--resume") == 0
    assert column(tmp_path, "status") == ["completed"]
