"""Trials as a user runs them, with a stand-in for train.py: how each kind of end is recorded, kills, going on."""

import csv
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.trials import picture, runner
from tests.tools.fake_trials import ROOT, run
from utils.errors import UserError

CLOCK = ("wall_time",)  # the only column that may differ between two runs of the same trials
SIX = [{"lr0": 0.01}, {"lr0": 0.02}, {"lr0": 0.05, "batch_size": 8}, {"lr0": 0.03}, {"lr0": 0.001}, {"lr0": 0.04}]
SPACE = "lr0: {log_uniform: [0.001, 0.1]}\nbatch_size: {choice: [8, 16]}\nwarmup_epochs: {int: [1, 3]}\n"


@pytest.fixture(autouse=True)
def quick_and_from_the_project_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(picture, "draw", lambda path, *_: path.touch())  # drawn in tests/engine/test_trials.py


@pytest.fixture
def fake(monkeypatch):
    """`fake(trial_002="crash")` makes trials misbehave; see fake_train.py."""
    return lambda **kinds: monkeypatch.setenv("FAKE", json.dumps(kinds))


def listed(folder: Path, trials: list[dict], *extra: str) -> list[str]:
    """Arguments that try these settings, in 4 epochs each."""
    folder.mkdir(exist_ok=True)
    (folder / "t.json").write_text(json.dumps(trials))
    return arguments(folder, "--trials-file", str(folder / "t.json"), *extra)


def searched(folder: Path, *extra: str) -> list[str]:
    pytest.importorskip("optuna", reason="--search needs the optional package of requirements-search.txt")
    folder.mkdir(exist_ok=True)
    (folder / "s.yaml").write_text(SPACE)
    return arguments(folder, "--search", str(folder / "s.yaml"), "--trials", "6", *extra)


def arguments(folder: Path, *extra: str) -> list[str]:
    base = ("--base-config", "configs/tiny_smoke.yaml", "--budget-epochs", "4", "--output-dir", str(folder / "out"))
    return [*base, *extra]


def table(folder: Path) -> list[dict[str, str]]:
    (path,) = (folder / "out").glob("trials_*.csv")
    with path.open() as f:
        return [{key: value for key, value in row.items() if key not in CLOCK} for row in csv.DictReader(f)]


def column(folder: Path, name: str) -> list[str]:
    return [row[name] for row in table(folder)]


def in_a_process(*flags: str) -> subprocess.CompletedProcess:
    """The same in a process of its own, which a trial may kill."""
    script = str(ROOT / "tests" / "tools" / "fake_trials.py")
    return subprocess.run([sys.executable, script, *flags], cwd=ROOT, capture_output=True, text=True, timeout=120)


# --- how trials end ---------------------------------------------------------------------------------------------------


def test_trials_that_fail_are_recorded_and_do_not_stop_the_others(tmp_path, fake, capsys):
    fake(trial_001="crash", trial_002="nan", trial_003="out of memory")
    assert run(*listed(tmp_path, SIX)) == 0
    assert column(tmp_path, "status") == ["completed", "failed", "failed", "failed", "completed", "completed"]
    reasons = column(tmp_path, "reason")
    assert reasons[1] == "RuntimeError: the network fell over"
    assert reasons[2].startswith("the loss of batch 3 (epoch 1) is not finite")
    assert "SIGKILL" in reasons[3] and "out of memory" in reasons[3]
    printed = capsys.readouterr().out
    assert printed.index("0.1227") < printed.index("0.0307")  # the ranking: lr0 0.04 before 0.01
    assert f"python tests/tools/fake_train.py --config {tmp_path}/out/best.yaml" in printed
    assert list((tmp_path / "out").glob("ranking_*.png")) and list((tmp_path / "out").glob("ranking_*.txt"))
    assert "lr0: 0.04" in (tmp_path / "out" / "best.yaml").read_text()
    assert [p.name for p in (tmp_path / "out" / "trial_000" / "weights").iterdir()] == ["best.pt"]


def test_trials_that_all_fail_are_an_error(tmp_path, fake):
    fake(trial_000="crash")
    assert run(*listed(tmp_path, SIX[:1])) == 1


def test_a_trial_under_the_threshold_is_pruned_once_another_has_passed_it(tmp_path):
    """mAP@.5 after 2 of 4 epochs: 0.19 for lr0 0.05, 0.004 for 0.001; the first trial has nothing to compare with."""
    assert run(*listed(tmp_path, [SIX[4], SIX[2], SIX[4], SIX[2]], "--early-stop-threshold", "0.1")) == 0
    assert column(tmp_path, "status") == ["completed", "completed", "pruned", "completed"]
    pruned = table(tmp_path)[2]
    assert "under 0.1" in pruned["reason"] and pruned["best_epoch"] == "1"
    (tmp_path / "again").mkdir()
    assert run(*listed(tmp_path / "again", [SIX[4], SIX[0]], "--early-stop-threshold", "0.5")) == 0
    assert column(tmp_path / "again", "status") == ["completed", "completed"]


def test_repeated_settings_are_ranked_by_their_mean(tmp_path, capsys):
    assert run(*listed(tmp_path, [SIX[0], SIX[1]], "--repeat", "3", "--seed", "5")) == 0
    assert column(tmp_path, "seed") == ["5", "6", "7"] * 2
    assert column(tmp_path, "setting") == ["0"] * 3 + ["1"] * 3
    assert len(set(column(tmp_path, "final_map"))) == 6
    printed = capsys.readouterr().out
    assert "±" in printed and "(3)" in printed and "more than the noise" in printed


def test_jobs_share_devices_and_cores(tmp_path, fake, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    fake(trial_000="talk", trial_001="talk")
    assert run(*listed(tmp_path, SIX[:3], "--devices", "0,1")) == 0
    said = [(tmp_path / "out" / f"trial_00{i}" / "output.txt").read_text() for i in (0, 1)]
    assert all("environment 4 arguments --config" in text for text in said)
    assert sorted(text.split()[-2:] for text in said) == [["--device", "0"], ["--device", "1"]]


# --- ends before the end ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[dict[str, str]]:
    """The table of six trials from a list that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = in_a_process(*listed(folder, SIX, "--early-stop-threshold", "0.08"))
    assert done.returncode == 0, done.stderr
    return table(folder)


def test_killed_trials_go_on_to_the_same_table(tmp_path, fake, undisturbed):
    """SIGKILL of the runner, in the middle of the third trial: its child dies with it."""
    fake(trial_002="kill runner")
    flags = listed(tmp_path, SIX, "--early-stop-threshold", "0.08")
    assert in_a_process(*flags).returncode == -signal.SIGKILL
    assert column(tmp_path, "status") == ["completed", "completed"]
    with (tmp_path / "out" / "held").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # the child had it: granted only when the kernel has ended it
    assert run("--output-dir", str(tmp_path / "out"), "--resume") == 0
    assert table(tmp_path) == undisturbed
    assert {"completed", "pruned"} == set(column(tmp_path, "status"))


def test_ctrl_c_ends_children_keeps_the_table_and_resume_goes_on(tmp_path, fake, undisturbed):
    fake(trial_001="interrupt runner")
    flags = listed(tmp_path, SIX, "--early-stop-threshold", "0.08")
    stopped = in_a_process(*flags)
    assert stopped.returncode == 130, stopped.stderr
    assert f"--output-dir {tmp_path}/out --resume" in stopped.stdout
    assert column(tmp_path, "status") == ["completed", "interrupted"]
    with (tmp_path / "out" / "held").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
    assert run(*flags, "--resume") == 0
    assert table(tmp_path) == undisturbed


def test_the_time_budget_ends_what_runs_also_what_does_not_listen(tmp_path, fake, monkeypatch, capsys):
    """The clock of this test jumps when both trials hang."""
    hanging = [tmp_path / "out" / name / "hanging" for name in ("trial_000", "trial_001")]
    monkeypatch.setattr(runner.time, "monotonic", lambda: 1e6 * all(path.exists() for path in hanging))
    monkeypatch.setattr(runner, "GRACE_SECONDS", -1.0)
    fake(trial_000="hang", trial_001="deaf")
    assert run(*listed(tmp_path, SIX[:3], "--jobs", "2", "--devices", "cpu", "--time-budget", "1h")) == 0
    assert column(tmp_path, "status") == ["interrupted", "interrupted"]
    assert set(column(tmp_path, "reason")) == {"the time budget is used up"}
    assert "3 of 3 trials are not done" in capsys.readouterr().out


def test_more_trials_can_be_added_at_the_end_of_the_list(tmp_path):
    assert run(*listed(tmp_path, SIX[:1])) == 0
    assert run(*listed(tmp_path, SIX[:2]), "--resume") == 0
    assert column(tmp_path, "status") == ["completed", "completed"]


def test_what_cannot_be_gone_on_with_is_refused(tmp_path):
    flags = listed(tmp_path, SIX[:1])
    with pytest.raises(UserError, match="no trials to go on with"):
        run(*flags, "--resume")
    assert run(*flags) == 0
    with pytest.raises(UserError, match="holds trials already: --resume"):
        run(*flags)
    with pytest.raises(UserError, match="--budget-epochs cannot change"):
        run(*flags, "--budget-epochs", "5", "--resume")
    with pytest.raises(UserError, match="has changed since these trials began"):
        run(*listed(tmp_path, [SIX[1]]), "--resume")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--trials-file", "x.json"], "--base-config"),
        (["--base-config", "configs/tiny_smoke.yaml"], "either --trials-file FILE"),
        (["--base-config", "nowhere.yaml", "--trials-file", "x.json"], "nowhere.yaml does not exist"),
        (["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "x.json"], "x.json does not exist"),
        (["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "x", "--repeat", "0"], "--repeat is 0"),
        (["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "x", "--trials", "3"], "belongs to --search"),
        (["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "x", "--time-budget", "2"], "--time-budget '2'"),
        (["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "x", "--early-stop-threshold", "5"], "an mAP"),
    ],
)
def test_mistakes_are_named(tmp_path, flags, complaint):
    with pytest.raises(UserError, match=complaint):
        run(*flags, "--output-dir", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


# --- search -----------------------------------------------------------------------------------------------------------


def test_a_killed_search_goes_on_to_the_same_table(tmp_path, fake):
    """Draws, pruning and results."""
    undisturbed = tmp_path / "a"
    assert run(*searched(undisturbed)) == 0
    assert {"completed", "pruned"} == set(column(undisturbed, "status"))
    assert len(set(column(undisturbed, "param_lr0"))) == 6
    flags = searched(tmp_path / "b")
    victim = column(undisturbed, "status").index("completed", 1)  # a trial with a second epoch
    fake(**{f"trial_{victim:03d}": "kill runner"})
    assert in_a_process(*flags).returncode == -signal.SIGKILL
    assert run(*flags, "--resume", "--time-budget", "0.001s") == 0  # ends before it has begun
    assert run("--output-dir", str(tmp_path / "b" / "out"), "--resume") == 0
    assert table(tmp_path / "b") == table(undisturbed)


def test_a_trial_drawn_but_not_written_down_is_not_lost(tmp_path):
    flags = searched(tmp_path, "--trials", "1")
    assert run(*flags) == 0
    import optuna

    study = optuna.load_study(study_name="trials", storage=f"sqlite:///{tmp_path}/out/study.db")
    study.ask()  # and then the process is killed
    assert run(*flags, "--trials", "2", "--resume") == 0
    assert column(tmp_path, "setting") == ["0", "1"]
    assert all(trial.state.is_finished() for trial in study.trials)


def test_failed_and_repeated_trials_reach_the_study(tmp_path, fake, capsys):
    fake(trial_002="crash", trial_003="crash")
    assert run(*searched(tmp_path, "--trials", "3", "--repeat", "2", "--pruner", "none")) == 0
    import optuna

    study = optuna.load_study(study_name="trials", storage=f"sqlite:///{tmp_path}/out/study.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    maps = [float(row["final_map"]) for row in table(tmp_path) if row["setting"] == "0"]
    assert study.trials[0].value == pytest.approx(sum(maps) / 2, rel=1e-5)
    assert column(tmp_path, "setting") == ["0", "0", "1", "2", "2"]  # the second seed of a failed setting is saved
    assert "not done" not in capsys.readouterr().out


def test_hyperband(tmp_path):
    assert run(*searched(tmp_path, "--pruner", "hyperband", "--trials", "3")) == 0
    assert len(table(tmp_path)) == 3


def test_machines_share_a_study(tmp_path):
    """Two folders, one database: trials are shared out, both tables show all of them."""
    storage = f"sqlite:///{tmp_path}/shared.db"
    assert run(*searched(tmp_path / "a", "--trials", "2", "--storage", storage, "--pruner", "none")) == 0
    assert run(*searched(tmp_path / "b", "--trials", "3", "--storage", storage, "--pruner", "none")) == 0
    assert column(tmp_path / "b", "trial_id") == ["0", "1", "2"]
    assert not (tmp_path / "b" / "out" / "trial_000").exists()
    with pytest.raises(UserError, match=r"begun with other settings \(repeat\)"):
        run(*searched(tmp_path / "c", "--storage", storage, "--repeat", "2"))
    with pytest.raises(UserError, match="cannot be opened"):
        run(*searched(tmp_path / "d", "--storage", "nonsense://x"))


def test_without_optuna_the_search_says_what_to_install(tmp_path, monkeypatch):
    from engine.trials import search

    monkeypatch.setattr(search, "optuna", None)
    (tmp_path / "s.yaml").write_text(SPACE)
    with pytest.raises(UserError, match="requirements-search"):
        run(*arguments(tmp_path, "--search", str(tmp_path / "s.yaml")))
    assert run(*listed(tmp_path, SIX[:1])) == 0
