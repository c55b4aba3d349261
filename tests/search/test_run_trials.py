"""Trials as a user runs them, with a stub of train.py: how each kind of end is recorded, kills, resuming."""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import sqlite3
import statistics
from itertools import count
from pathlib import Path

import pytest

from tests.search.fake_runs import SIX, column, in_a_process, listed, table
from tests.search.fake_trials import ROOT, run
from yolov7fast.core.errors import UserError, one_line, run_command
from yolov7fast.core.process import child
from yolov7fast.search.runner import TrialRunner

pytestmark = pytest.mark.usefixtures("quick")


# --- how trials end ---------------------------------------------------------------------------------------------------


def test_trials_that_fail_are_recorded_and_do_not_stop_the_others(tmp_path, fake, capsys):
    fake(trial_002="crash", trial_003="nan", trial_004="out of memory")
    assert run(*listed(tmp_path, SIX)) == 0
    assert column(tmp_path, "status") == ["completed", "failed", "failed", "failed", "completed", "completed"]
    reasons = column(tmp_path, "reason")
    assert reasons[1] == "RuntimeError: the network fell over"
    assert reasons[2].startswith("the loss of batch 3 (epoch 1) is not finite")
    assert "SIGKILL" in reasons[3] and "out of memory" in reasons[3]
    printed = capsys.readouterr().out
    assert printed.index("0.1227") < printed.index("0.0307")  # the ranking: lr0 0.04 before 0.01
    assert f"python train.py --config {tmp_path}/out/best.yaml" in printed
    assert list((tmp_path / "out").glob("ranking_*.txt"))
    assert "lr0: 0.04" in (tmp_path / "out" / "best.yaml").read_text()
    assert [p.name for p in (tmp_path / "out" / "trial_001" / "weights").iterdir()] == ["best.pt"]


def test_a_full_disk_ends_the_trials_with_one_line_and_no_child_left(tmp_path, monkeypatch, capsys):
    """After the first trial has begun nothing more can be written; with room again, --resume does the rest."""
    writes, others = count(), running_children()

    def full(path):
        if next(writes) > 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("yolov7fast.core.files.atomic._flush", full)
        patch.setattr("yolov7fast.core.process.signals.end_on_signals", lambda: None)
        with pytest.raises(SystemExit) as ended:
            run_command(lambda: run(*listed(tmp_path, SIX[:2])))
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: cannot write {tmp_path}/out/") and "No space left" in last
    assert not running_children() - others
    assert run("--output-dir", str(tmp_path / "out"), "--resume") == 0
    assert column(tmp_path, "status") == ["completed", "completed"]


def running_children() -> set[str]:
    """Processes that this one has started and that still run; other tests may have left some, such as a fork server."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_database_that_fails_in_the_midst_of_a_search_is_named(tmp_path):
    from yolov7fast.search.database import failures_named

    complaint = r"the database sqlite:///x.db of the trials failed: database or disk is full"
    with pytest.raises(UserError, match=complaint), failures_named("sqlite:///x.db"):
        raise sqlite3.OperationalError("database or disk is full")
    with pytest.raises(KeyError), failures_named("sqlite:///x.db"):  # a fault of the program stays one
        raise KeyError


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """The output folder of a trial that has ended."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(child, "LOOK_SECONDS", 0.02)
        assert run(*listed(folder, SIX[:1])) == 0
    return folder / "out"


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan.update(trials=None),
        lambda plan: plan.update(timestamp="../../x"),
        lambda plan: plan["options"].pop("repeat"),
        lambda plan: plan["options"].update(early_stop_threshold=7.0),
        lambda plan: plan["options"].update(trials_file=""),
        lambda plan: plan.update(version=1, runs=[]),
    ],
)
def test_a_damaged_record_of_trials_is_named_in_one_line(tmp_path, recorded, change):
    (tmp_path / "out").mkdir()
    path, plan = tmp_path / "out" / "trials.json", json.loads((recorded / "trials.json").read_text())
    change(plan)
    path.write_text(json.dumps(plan))
    with pytest.raises(UserError, match=re.escape(str(path))) as caught:
        run("--output-dir", str(tmp_path / "out"), "--resume")
    assert len(one_line(caught.value)) < 500


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.update(curve=[[0, "low"]]),
        lambda run: run.update(status="lost"),
    ],
)
def test_a_damaged_study_is_named_in_one_line(tmp_path, recorded, change):
    shutil.copytree(recorded, tmp_path / "out")
    with contextlib.closing(sqlite3.connect(tmp_path / "out" / "study.db")) as database:
        ((text,),) = database.execute("select value_json from trial_user_attributes where key = 'run 0'")
        change(values := json.loads(text))
        database.execute("update trial_user_attributes set value_json = ? where key = 'run 0'", [json.dumps(values)])
        database.commit()
    with pytest.raises(UserError, match=r"the study in .*study\.db is damaged in trial 0"):
        run("--output-dir", str(tmp_path / "out"), "--resume")


@pytest.mark.parametrize(
    ("content", "complaint"), [(b"no database", "cannot be opened"), (None, "is missing; restore")]
)
def test_a_study_that_is_no_database_is_named(tmp_path, recorded, content, complaint):
    shutil.copytree(recorded, tmp_path / "out")
    (tmp_path / "out" / "study.db").unlink()
    if content:
        (tmp_path / "out" / "study.db").write_bytes(content * 1000)
    with pytest.raises(UserError, match=rf"study\.db.*{complaint}"):
        run("--output-dir", str(tmp_path / "out"), "--resume")


def test_a_trial_under_the_threshold_is_pruned_once_another_has_passed_it(tmp_path):
    """mAP@.5 after 2 of 4 epochs: 0.19 for lr0 0.05, 0.004 for 0.001; the first trial has nothing to compare with."""
    assert run(*listed(tmp_path, [SIX[4], SIX[2], SIX[4], SIX[2]], "--early-stop-threshold", "0.1")) == 0
    assert column(tmp_path, "status") == ["completed", "completed", "pruned", "completed"]
    pruned = table(tmp_path)[2]
    assert "under 0.1" in pruned["reason"] and pruned["best_epoch"] == "1"
    (tmp_path / "again").mkdir()
    assert run(*listed(tmp_path / "again", [SIX[4], SIX[0]], "--early-stop-threshold", "0.5")) == 0
    assert column(tmp_path / "again", "status") == ["completed", "completed"]


def test_trials_that_are_pruned_are_validated_often_enough_for_it(tmp_path, capsys):
    """The base has eval_interval 10: of 10 epochs none but the last would be validated."""
    flags = listed(tmp_path, [SIX[2], SIX[4]], "--early-stop-threshold", "0.1")
    assert run(*flags, "--base-config", "configs/shapes.yaml", "--budget-epochs", "10") == 0
    assert column(tmp_path, "status") == ["completed", "pruned"]
    assert "validated every 2 epochs" in capsys.readouterr().out
    assert "eval_interval" not in (tmp_path / "out" / "best.yaml").read_text()


def test_repeated_settings_are_ranked_by_their_mean(tmp_path, capsys):
    assert run(*listed(tmp_path, [SIX[0], SIX[1]], "--repeat", "3", "--seed", "5")) == 0
    assert column(tmp_path, "seed") == ["5", "6", "7"] * 2
    assert column(tmp_path, "setting") == ["1"] * 3 + ["2"] * 3
    assert len(set(column(tmp_path, "final_map"))) == 6
    assert "more than the noise" in capsys.readouterr().out
    (ranking,) = (tmp_path / "out").glob("ranking_*.txt")
    heads, best, *_ = (line.split() for line in ranking.read_text().splitlines())
    found = dict(zip(heads, best))
    maps = [float(row["final_map"]) for row in table(tmp_path) if row["setting"] == "2"]
    assert (found["rank"], found["setting"], found["seeds"], found["param_lr0"]) == ("1", "2", "3", "0.02")
    assert float(found["map_mean"]) == pytest.approx(statistics.fmean(maps), abs=1e-4)
    assert float(found["map_deviation"]) == pytest.approx(statistics.stdev(maps), rel=0.02)


def test_jobs_share_devices_and_cores(tmp_path, fake, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    fake(trial_001="talk", trial_002="talk")
    assert run(*listed(tmp_path, SIX[:3], "--devices", "0,1")) == 0
    said = [(tmp_path / "out" / f"trial_00{i}" / "output.txt").read_text() for i in (1, 2)]
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


@pytest.mark.parametrize(
    ("kind", "code", "left"),
    [
        ("kill runner", -signal.SIGKILL, ["completed"] * 2),
        ("interrupt runner", 130, ["completed"] * 2 + ["interrupted"]),
    ],
)
def test_stopped_trials_go_on_to_the_same_table(tmp_path, fake, undisturbed, kind, code, left):
    """SIGKILL or SIGINT of the runner, in the middle of the third trial: its child ends with it."""
    fake(trial_003=kind)
    flags = listed(tmp_path, SIX, "--early-stop-threshold", "0.08")
    stopped = in_a_process(*flags)
    assert stopped.returncode == code and column(tmp_path, "status") == left, stopped.stderr
    assert code < 0 or f"--output-dir {tmp_path}/out --resume" in stopped.stdout
    with (tmp_path / "out" / "held").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # the child had it: granted only when the kernel has ended it
    assert run("--output-dir", str(tmp_path / "out"), "--resume") == 0
    assert table(tmp_path) == undisturbed
    assert {"completed", "pruned"} == set(column(tmp_path, "status"))


def test_the_time_budget_ends_what_runs_also_what_does_not_listen(tmp_path, fake, monkeypatch, capsys):
    """The clock of this test jumps when both trials hang."""
    hanging = [tmp_path / "out" / name / "hanging" for name in ("trial_001", "trial_002")]
    monkeypatch.setattr(child.time, "monotonic", lambda: 1e6 * all(path.exists() for path in hanging))
    monkeypatch.setattr(child, "GRACE_SECONDS", -1.0)
    fake(trial_001="hang", trial_002="deaf")
    assert run(*listed(tmp_path, SIX[:3], "--devices", "cpu,cpu", "--time-budget", "1h")) == 0
    assert column(tmp_path, "status") == ["interrupted", "interrupted"]
    assert set(column(tmp_path, "reason")) == {"the time budget is used up"}
    assert "3 of 3 trials are not done" in capsys.readouterr().out


def test_the_second_ctrl_c_kills_what_does_not_stop(tmp_path, fake, monkeypatch):
    read, hanging = TrialRunner.read_epochs, tmp_path / "out" / "trial_001" / "hanging"
    others = running_children()

    def interrupted(self, trial, run):
        read(self, trial, run)
        if hanging.exists():
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrialRunner, "read_epochs", interrupted)
        fake(trial_001="deaf")
        assert run(*listed(tmp_path, SIX[:2])) == 130
    assert not running_children() - others and not list((tmp_path / "out").glob("trials_*.csv"))
    fake()
    assert run("--output-dir", str(tmp_path / "out"), "--resume") == 0
    assert column(tmp_path, "status") == ["completed"] * 2


def test_trials_may_be_added_to_the_list_and_other_changes_are_refused(tmp_path):
    hyp, base = tmp_path / "hyp.yaml", tmp_path / "base.yaml"
    hyp.write_text(Path("data/hyp.small.yaml").read_text())
    base.write_text(f"base: {Path('configs/tiny_smoke.yaml').resolve()}\nhyp: {hyp}\n")
    flags = listed(tmp_path, SIX[:1], "--base-config", str(base))
    with pytest.raises(UserError, match="no trials to resume"):
        run(*flags, "--resume")
    assert run(*flags) == 0
    with pytest.raises(UserError, match="holds trials already: --resume"):
        run(*flags)
    with pytest.raises(UserError, match="--budget-epochs cannot change"):
        run(*flags, "--budget-epochs", "5", "--resume")
    assert run(*listed(tmp_path, SIX[:2], "--base-config", str(base)), "--resume") == 0
    assert column(tmp_path, "status") == ["completed", "completed"]
    with pytest.raises(UserError, match="has changed since these trials began"):
        run(*listed(tmp_path, SIX[1:2], "--base-config", str(base)), "--resume")
    hyp.write_text(hyp.read_text() + "\n# momentum, too, matters\n")
    with pytest.raises(UserError, match=r"hyp\.yaml has changed since these trials began"):
        run(*listed(tmp_path, SIX[:2], "--base-config", str(base)), "--resume")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--trials-file", "x.json"], "--base-config"),
        (["--base-config", "configs/tiny_smoke.yaml"], "either --trials-file FILE"),
        (["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "x.json"], "x.json does not exist"),
        (["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "x", "--trials", "3"], "belongs to --search"),
        (["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "x", "--time-budget", "2"], "--time-budget '2'"),
        (["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "x", "--early-stop-threshold", "5"], "an mAP"),
    ],
)
def test_mistakes_are_named(tmp_path, flags, complaint):
    with pytest.raises(UserError, match=complaint):
        run(*flags, "--output-dir", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").touch()
    with pytest.raises(UserError, match=r"cannot write .*out.below: Not a directory"):
        run(*listed(tmp_path, SIX[:1]), "--output-dir", str(tmp_path / "out" / "below"))
