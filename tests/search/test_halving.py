"""Trials that pause at rungs and are promoted: who trains on, what it costs, kills, several machines."""

import signal

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from tests.search.fake_runs import column, in_a_process, searched, table
from tests.search.fake_trials import run
from yolov7fast.search.halving import PAUSED, REDUCTION, RUNG, Halving

NINE = ("--trials", "9", "--first-rung", "1")  # rungs after 1 and 3 of 4 epochs; mAP rises with lr0
THREE = ("--trials", "3", "--first-rung", "1")


def at(rung: int, value: float, state: TrialState = TrialState.PRUNED) -> FrozenTrial:
    """A trial that has reached a rung."""
    attributes = {RUNG: rung} | ({PAUSED: True} if state == TrialState.PRUNED else {})
    ended = {"value": value} if state in (TrialState.PRUNED, TrialState.COMPLETE) else {}
    return optuna.create_trial(state=state, user_attrs=attributes, **ended)


def simulate(halving: Halving, values: list[float], epochs: int) -> tuple[dict[int, int], list[int]]:
    """Trials one after the other, as a machine does them: epochs of each setting, settings in the order they end."""
    history, trained, ended = [], {}, []
    while True:
        found = dict(history)
        to_draw = len(values) - len(found)
        if promotable := halving.promotable(history, to_draw):
            setting, rung = promotable[0], halving.rung(promotable[0], found[promotable[0]]) + 1
        elif to_draw:
            setting = len(found) + 1
            rung = halving.begin(setting)
        else:
            return trained, ended
        trained[setting] = (*halving.rungs, epochs)[rung]
        is_done = rung == len(halving.rungs)
        state = TrialState.COMPLETE if is_done else TrialState.PRUNED
        history.append((setting, at(rung, values[setting - 1], state)))
        ended += [setting] * is_done


@pytest.mark.parametrize("values", [range(27), range(27, 0, -1), [(7 * k) % 27 for k in range(27)]])
def test_27_trials_cost_the_epochs_of_three_and_the_best_comes_to_its_end(values):
    """Also where every draw is better than all before it."""
    trained, ended = simulate(Halving.of("asha", 81, 3), list(values), 81)
    assert sum(trained.values()) == 27 * 3 + 9 * 6 + 3 * 18 + 54 == 3 * 81
    assert ended == [1 + max(range(27), key=lambda k: values[k])]


def test_an_endless_search_ends_a_trial_after_every_group():
    trained, ended = simulate(Halving.of("asha", 9, 1), list(range(90, 0, -1)), 9)
    assert ended[0] == 1 and sum(trained.values()) == 90 + 30 * 2 + 10 * 6
    _, ended = simulate(Halving.of("asha", 9, 1), list(range(90)), 9)
    assert {9, 18, 81, 90} <= set(ended)


def test_a_better_trial_that_comes_late_trains_on():
    """The best third of the first nine have been promoted when the tenth is drawn."""
    assert 10 in simulate(Halving.of("asha", 9, 1), list(range(10)), 9)[1]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_of_fewer_trials_than_a_group_the_best_trains_on(count):
    assert simulate(Halving.of("asha", 9, 1), list(range(count)), 9)[1] == [count]


def test_brackets_give_some_trials_more_epochs_before_they_are_judged():
    halving = Halving.of("hyperband", 27, 1)
    begun = [halving.begin(setting) for setting in range(1, 61)]
    assert set(begun) == {0, 1, 2, 3} and begun.count(0) > begun.count(1) > begun.count(3) > 0
    trained, ended = simulate(halving, list(range(60)), 27)
    assert 60 in ended and sum(trained.values()) < 60 * 27 / 2


def test_a_machine_does_not_wait_for_the_slowest_of_a_rung():
    halving, running = Halving.of("asha", 9, 1), at(0, 0, TrialState.RUNNING)
    history = [*((setting, at(0, setting)) for setting in range(1, 9)), (9, running)]
    assert halving.promotable(history, to_draw=1) == []  # the last ones are drawn first
    assert halving.promotable(history, to_draw=0) == [8, 7]
    assert halving.promotable([(1, at(0, 1)), (2, running)], to_draw=0) == []


def test_a_failed_trial_gives_its_place_to_the_next():
    history = [(1, at(0, 3)), (2, at(0, 2)), (3, at(0, 1)), (1, at(1, 3, TrialState.FAIL))]
    assert Halving.of("asha", 3, 1).promotable(history, to_draw=0) == [2]


def test_checkpoints_are_kept_of_as_many_as_may_train_on():
    halving = Halving.of("asha", 9, 1)
    history = [(setting, at(0, setting)) for setting in range(1, 9)]
    assert halving.out(history, count=9, is_over=False) == [5, 4, 3, 2, 1]
    assert halving.out([*history, (8, at(1, 8))], count=9, is_over=False) == [5, 4, 3, 2, 1]
    assert halving.out(history, count=9, is_over=True) == [8, 7, 6, 5, 4, 3, 2, 1]


# --- with a stand-in for train.py -------------------------------------------------------------------------------------


@pytest.fixture
def paused(quick, fake):
    """Trainings that are no faster than their runner: each is stopped at its first rung."""
    fake(**{"*": "wait"})


def expected_statuses(folder) -> list[tuple[str, str]]:
    """Status and last epoch of each trial by its rank in lr0."""
    order = sorted(table(folder), key=lambda row: -float(row["param_lr0"]))
    return [(row["status"], row["best_epoch"]) for row in order]


NINE_ENDS = [("completed", "3"), *[("pruned", "2")] * 2, *[("pruned", "0")] * 6]


def test_the_best_third_resume_and_only_the_best_weights_are_kept(tmp_path, paused, capsys):
    assert run(*searched(tmp_path, *NINE)) == 0
    assert expected_statuses(tmp_path) == NINE_ENDS
    assert column(tmp_path, "trial_id") == [str(k) for k in range(1, 10)]
    study = optuna.load_study(study_name="trials", storage=f"sqlite:///{tmp_path}/out/study.db")
    states = [trial.state.name for trial in study.trials]
    assert states == ["PRUNED"] * 9 + ["PRUNED"] * 2 + states[11:] and states.count("COMPLETE") == 1
    assert len(states) == 9 + 3 + 1
    printed = capsys.readouterr().out
    assert printed.count("resumes after 1 epoch\n") == 3
    assert "not done" not in printed
    left = {path.name for path in (tmp_path / "out").glob("trial_*/weights/*")}
    assert left == {"best.pt"}


def test_a_promoted_trial_that_is_killed_ends_as_if_it_had_not_been(tmp_path, paused, fake):
    assert run(*searched(tmp_path / "a", *THREE)) == 0
    victim = column(tmp_path / "a", "status").index("completed") + 1
    fake(**{"*": "wait", f"trial_{victim:03d}": "wait, kill runner"})
    assert in_a_process(*searched(tmp_path / "b", *THREE)).returncode == -signal.SIGKILL
    assert column(tmp_path / "b", "status") == ["pruned"] * 3
    assert run("--output-dir", str(tmp_path / "b" / "out"), "--resume") == 0
    assert table(tmp_path / "b") == table(tmp_path / "a")


@pytest.mark.slow
def test_two_jobs_promote_one_in_three(tmp_path, paused):
    assert run(*searched(tmp_path, *NINE, "--jobs", "2", "--devices", "cpu")) == 0
    statuses = column(tmp_path, "status")
    assert len(statuses) == 9 and set(statuses) == {"completed", "pruned"}
    assert expected_statuses(tmp_path)[0] == ("completed", "3")
    assert [epoch for _, epoch in expected_statuses(tmp_path)].count("0") == 6


@pytest.mark.slow
def test_another_machine_promotes_from_scratch_what_is_left(tmp_path, paused, fake, monkeypatch):
    """The first machine ends with its one trial paused; the second draws two worse ones and trains it on."""
    assert run(*searched(tmp_path / "alone", *THREE)) == 0
    assert column(tmp_path / "alone", "status") == ["completed", "pruned", "pruned"]
    shared = ("--storage", f"sqlite:///{tmp_path}/shared.db")
    with monkeypatch.context() as patch:
        patch.setattr(Halving, "promotable", lambda *_: [])
        assert run(*searched(tmp_path / "a", *THREE, "--trials", "1", *shared)) == 0
    fake()
    assert run(*searched(tmp_path / "b", *THREE, *shared)) == 0
    assert table(tmp_path / "b") == table(tmp_path / "alone")
    assert (tmp_path / "b" / "out" / "trial_001" / "weights" / "best.pt").exists()


@pytest.mark.slow
def test_a_larger_search_judges_all_trials_together(tmp_path, quick):
    """Of three the best came to its end; of nine the best third are others, which are promoted, too."""
    assert run(*searched(tmp_path, *THREE)) == 0
    assert column(tmp_path, "status") == ["completed", "pruned", "pruned"]
    assert run("--output-dir", str(tmp_path / "out"), "--resume", "--trials", "9") == 0
    assert expected_statuses(tmp_path)[0] == ("completed", "3")
    ranked = sorted(range(9), key=lambda k: -float(column(tmp_path, "param_lr0")[k]))
    trained_on = {k for k, epoch in enumerate(column(tmp_path, "best_epoch")) if epoch != "0"}
    assert trained_on == {0, *ranked[: 9 // REDUCTION]}


def test_a_smaller_search_trains_on_what_has_paused(tmp_path, quick, monkeypatch):
    """Also settings whose number is beyond the new --trials."""
    with monkeypatch.context() as patch:
        patch.setattr(Halving, "promotable", lambda *_: [])
        assert run(*searched(tmp_path, *NINE)) == 0
    assert run("--output-dir", str(tmp_path / "out"), "--resume", "--trials", "1") == 0
    assert expected_statuses(tmp_path) == NINE_ENDS


def test_all_seeds_of_the_setting_that_comes_to_its_end_are_trained(tmp_path, quick):
    assert run(*searched(tmp_path, *THREE, "--repeat", "2")) == 0
    assert sorted(column(tmp_path, "status")) == ["completed", "completed", "pruned", "pruned"]
