"""Searches as a user runs them, with a stub for train.py: draws, pruners, kills, machines that share a study."""

import contextlib
import re
import signal
import sqlite3
from pathlib import Path
from typing import NamedTuple

import optuna
import pytest

from tests.search.fake_runs import column, in_a_process, searched, table
from tests.search.fake_trials import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.search.runner import TrialRunner
from yolov7fast.training.hyperparameters import load_hyp

pytestmark = pytest.mark.usefixtures("quick")


def study_of(path, name: str = "study.db") -> optuna.Study:
    return optuna.load_study(study_name="trials", storage=f"sqlite:///{path / name}")


ASHA = ("--trials", "9", "--first-rung", "1")


class Search(NamedTuple):
    folder: Path
    printed: str


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Search:
    """A search that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = in_a_process(*searched(folder, *ASHA))
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    return Search(folder, done.stdout)


def test_a_killed_search_resumes_to_the_same_table(tmp_path, fake, undisturbed):
    """Draws, results, and the trials that are pruned."""
    flags = searched(tmp_path, *ASHA)
    fake(trial_003="kill runner")
    assert in_a_process(*flags).returncode == -signal.SIGKILL
    assert len(table(tmp_path)) == 2
    assert run(*flags, "--resume", "--time-budget", "0.001s") == 0  # ends before it has begun
    assert run("--output-dir", str(tmp_path / "out"), "--resume") == 0
    assert table(tmp_path) == table(undisturbed.folder)


def test_a_trial_drawn_but_not_stored_is_not_lost(tmp_path):
    flags = searched(tmp_path, "--trials", "1")
    assert run(*flags) == 0
    study = study_of(tmp_path / "out")
    study.ask()  # and then the process is killed
    assert run(*flags, "--trials", "2", "--resume") == 0
    assert column(tmp_path, "setting") == ["1", "2"]
    assert all(trial.state.is_finished() for trial in study.trials)


def test_failed_and_repeated_trials_reach_the_study(tmp_path, fake, capsys):
    fake(trial_003="crash", trial_004="crash")
    assert run(*searched(tmp_path, "--trials", "3", "--repeat", "2", "--pruner", "none")) == 0
    study = study_of(tmp_path / "out")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    maps = [float(row["final_map"]) for row in table(tmp_path) if row["setting"] == "1"]
    assert study.trials[0].value == pytest.approx(sum(maps) / 2, rel=1e-5)
    assert column(tmp_path, "setting") == ["1", "1", "2", "3", "3"]  # no second seed of a failed setting
    assert "not done" not in capsys.readouterr().out
    assert run("--output-dir", str(tmp_path / "out"), "--resume") == 0
    assert len(study.trials) == 3  # what has failed is not retried


def test_the_printed_command_trains_with_the_best_settings_of_the_study(undisturbed):
    (printed,) = re.findall(r"python train\.py (--config \S+)", undisturbed.printed)
    opt = parser_for("train").parse_args(printed.split())
    hyp = load_hyp(opt.hyp)
    best = {"lr0": hyp["lr0"], "batch_size": opt.batch_size, "warmup_epochs": hyp["warmup_epochs"]}
    assert best == study_of(undisturbed.folder / "out").best_params
    assert opt.epochs > 4  # the full run's, not the budget's


def test_asha_continues_the_best_third_at_each_rung(undisturbed):
    """mAP rises with lr0 at every epoch; rungs after 1 and 3 of 4 epochs."""
    folder = undisturbed.folder
    reached: dict[int, list[float]] = {1: [], 3: []}
    for row in table(folder):
        lr0, last = float(row["param_lr0"]), 4
        for rung, values in reached.items():
            values.append(lr0)
            if lr0 < sorted(values, reverse=True)[max(1, len(values) // 3) - 1]:
                last = rung
                break
        assert (row["status"], row["best_epoch"]) == ("completed" if last == 4 else "pruned", str(last - 1))
    assert len(set(column(folder, "best_epoch"))) > 1 and len(set(column(folder, "param_lr0"))) == 9
    left = {path.name for path in (folder / "out").glob("trial_*/weights/*")}
    assert left == {"best.pt"}


# --- several machines -------------------------------------------------------------------------------------------------


def test_machines_share_a_study(tmp_path):
    """Two folders, one database: both tables show the trials of all machines."""
    storage = f"sqlite:///{tmp_path}/shared.db"
    assert run(*searched(tmp_path / "a", "--trials", "2", "--storage", storage, "--pruner", "none")) == 0
    assert run(*searched(tmp_path / "b", "--trials", "3", "--storage", storage, "--pruner", "none")) == 0
    assert column(tmp_path / "b", "trial_id") == ["1", "2", "3"]
    assert not (tmp_path / "b" / "out" / "trial_001").exists()
    with pytest.raises(UserError, match=r"began with other settings \(repeat\)"):
        run(*searched(tmp_path / "c", "--storage", storage, "--repeat", "2"))
    with pytest.raises(UserError, match="cannot be opened"):
        run(*searched(tmp_path / "d", "--storage", "nonsense://x"))


def test_a_trial_without_heartbeat_is_retried_by_another_machine(tmp_path, fake, capsys):
    """Until then the other machine leaves it alone and says so."""
    storage = ("--storage", f"sqlite:///{tmp_path}/shared.db", "--pruner", "none")
    fake(trial_001="kill runner")
    assert in_a_process(*searched(tmp_path / "a", "--trials", "2", *storage)).returncode == -signal.SIGKILL
    fake()
    assert run(*searched(tmp_path / "b", "--trials", "2", *storage)) == 0
    assert column(tmp_path / "b", "setting") == ["2"]
    assert "1 trials are running on other machines" in capsys.readouterr().out
    with contextlib.closing(sqlite3.connect(tmp_path / "shared.db")) as database:
        assert database.execute("update trial_heartbeats set heartbeat = '2000-01-01 00:00:00'").rowcount > 0
        database.commit()
    assert run("--output-dir", str(tmp_path / "b" / "out"), "--resume") == 0
    assert column(tmp_path / "b", "setting") == ["1", "2"]
    assert column(tmp_path / "b", "status") == ["completed"] * 2
    states = [trial.state.name for trial in study_of(tmp_path, "shared.db").trials]
    assert sorted(states) == ["COMPLETE", "COMPLETE", "FAIL"]


def test_a_trial_that_another_machine_has_taken_over_ends_this_one_with_a_line(tmp_path, monkeypatch):
    """This machine was silent for too long, as a suspended one: its trial is over when it reports the next epoch."""
    judge = TrialRunner.reason_to_prune

    def lose(self, trial, run, point):
        self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
        return judge(self, trial, run, point)

    monkeypatch.setattr(TrialRunner, "reason_to_prune", lose)
    storage = f"sqlite:///{tmp_path}/shared.db"
    with pytest.raises(UserError, match=r"another machine has taken over a trial .*; continue by --resume"):
        run(*searched(tmp_path, "--trials", "2", "--storage", storage, "--pruner", "none"))


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_that_cannot_go_together_fail_and_the_search_continues(tmp_path):
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
    assert not (tmp_path / "out" / f"trial_{int(impossible[0]['trial_id']):03d}" / "trial.yaml").exists()
