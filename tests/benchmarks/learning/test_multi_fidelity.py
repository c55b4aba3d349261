"""The benchmark of pruning: how its two searches are started, and what it makes of their tables. Nothing is trained."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.learning import multi_fidelity
from yolov7fast.search import options
from yolov7fast.search.settings import read_space
from yolov7fast.search.trainer import Budget, trainer_for

HEAD = "trial_id,status,final_map,wall_time,param_lr0\n"
TABLES = {
    "full": HEAD + "1,completed,0.30,100,0.01\n2,completed,0.20,100,0.02\n",
    "asha": HEAD
    + "1,completed,0.25,60,0.01\n2,pruned,0.90,20,0.03\n3,completed,0.35,30,0.04\n4,completed,0.31,40,0.05\n",
    "confirmed": HEAD + "1,completed,0.30,100,0.01\n",
}
RANKING = "rank,setting,map_mean,map_deviation\n1,2,{asha},0.02\n2,1,0.3,0.01\n"
MEANS = {"asha": 0.31}  # of its best setting, the second of those trained with fresh seeds; the first one's is 0.3
SECONDS = {"full": 200.0, "asha": 120.0, "confirmed": 1000.0}


@pytest.fixture
def started(monkeypatch) -> list[list[str]]:
    """The commands of searches that were started; each one's table is there at once, the clock has gone on."""
    commands, clock = [], [0.0]

    def pretend(command, cwd, env):
        commands.append(command)
        folder = Path(command[command.index("--output-dir") + 1])
        (folder / "trial_001").mkdir(parents=True, exist_ok=True)
        (folder / "trial_001" / "results.csv").write_text("epoch\n0\n1\n")
        (folder / "trials.json").touch()
        (folder / "trials_1.csv").write_text(TABLES[folder.name])
        (folder / "ranking_1.csv").write_text(RANKING.format(asha=MEANS["asha"]))
        clock[0] += SECONDS[folder.name]
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(multi_fidelity, "machine", dict)
    monkeypatch.setattr(multi_fidelity, "IMAGES", {"train": 2, "val": 1})
    monkeypatch.setattr(multi_fidelity.subprocess, "run", pretend)
    monkeypatch.setattr(multi_fidelity.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(multi_fidelity, "children_seconds", lambda: clock[0] / 2)
    return commands


def measured(folder: Path) -> dict:
    multi_fidelity.main(["--folder", str(folder / "f"), "--json", str(folder / "found.json")])
    return json.loads((folder / "found.json").read_text())


def test_a_pruned_trial_is_no_best_and_time_is_that_of_the_whole_search(tmp_path, started, capsys):
    found = measured(tmp_path)
    assert (found["asha"]["best_map"], found["asha"]["best_trial"], found["asha"]["seconds"]) == (0.35, 3, 120)
    assert (found["time_ratio"], found["cpu_ratio"], found["epoch_ratio"], found["holds"]) == (0.6, 0.6, 1.0, True)
    assert "60% of the time, 60% of the CPU time, 100% of the epochs" in capsys.readouterr().out


@pytest.mark.parametrize(("mean", "seconds", "holds"), [(0.3, 120, True), (0.29, 120, False), (0.3, 121, False)])
def test_pruning_holds_where_it_is_short_and_its_setting_as_good(tmp_path, started, monkeypatch, mean, seconds, holds):
    """Whatever single runs say: ASHA's best one is 0.35 in the table, that of the full trials 0.30."""
    monkeypatch.setitem(MEANS, "asha", mean)
    monkeypatch.setitem(SECONDS, "asha", seconds)
    assert measured(tmp_path)["holds"] == holds


def test_the_best_settings_are_trained_with_fresh_seeds_a_common_one_once(tmp_path, started, monkeypatch):
    found = measured(tmp_path)
    assert json.loads((tmp_path / "f" / "best.json").read_text()) == [{"lr0": 0.01}, {"lr0": 0.04}]
    assert (found["full"]["mean_map"], found["asha"]["mean_map"], found["asha"]["deviation"]) == (0.3, 0.31, 0.02)
    opt = options.parser().parse_args(started[-1][2:])
    assert (opt.repeat, opt.seed, opt.trials_file) == (5, 100, str(tmp_path / "f" / "best.json"))
    monkeypatch.setitem(TABLES, "asha", TABLES["full"])
    measured(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "f" / "best.json").read_text()) == [{"lr0": 0.01}]


def test_an_interrupted_search_is_resumed_and_a_finished_one_kept_with_its_time(tmp_path, started):
    first = measured(tmp_path)
    cost = tmp_path / "f" / "asha.json"
    cost.write_text(json.dumps(json.loads(cost.read_text()) | {"ended": False}))
    again = measured(tmp_path)
    assert ["--resume" in command for command in started] == [False, False, False, True]
    assert (again["full"], again["asha"]["seconds"]) == (first["full"], 240)


def test_both_searches_are_possible_as_they_are_started(tmp_path, started, monkeypatch):
    multi_fidelity.main(["--folder", str(tmp_path / "f")])
    monkeypatch.chdir(multi_fidelity.ROOT)
    full, asha, _ = (options.parser().parse_args(command[2:]) for command in started)
    for opt in (full, asha):
        options.check(opt)
    assert (full.trials, full.pruner, asha.trials, asha.pruner) == (9, "none", 27, "asha")
    assert full.budget_epochs == asha.budget_epochs >= 9 * asha.first_rung
    trainer = trainer_for(asha.base_config)(asha.base_config, Budget(asha.budget_epochs))
    assert len(read_space(asha.search, trainer)) == len(multi_fidelity.SPACE)
    assert trainer.base_value("eval_interval") == asha.first_rung  # every rung is validated
