"""The benchmark of pruning: how its two searches are started, and what it makes of their tables. Nothing is trained."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.learning import multi_fidelity
from yolov7fast.search import options
from yolov7fast.search.families import trainer_for
from yolov7fast.search.settings import read_space
from yolov7fast.search.trainer import Budget

HEAD = "trial_id,status,final_map,wall_time\n"
TABLES = {
    "full": HEAD + "1,completed,0.30,100\n2,completed,0.20,100\n",
    "asha": HEAD + "1,completed,0.25,60\n2,pruned,0.90,20\n3,completed,0.35,30\n4,completed,0.31,40\n",
}


@pytest.fixture
def started(monkeypatch) -> list[list[str]]:
    """The commands of searches that were started; each one's table is there at once."""
    commands = []

    def pretend(command, cwd, env):
        commands.append(command)
        folder = Path(command[command.index("--output-dir") + 1])
        folder.mkdir(exist_ok=True)
        (folder / "trials.json").touch()
        (folder / "trials_1.csv").write_text(TABLES[folder.name])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(multi_fidelity, "machine", dict)
    monkeypatch.setattr(multi_fidelity, "IMAGES", {"train": 2, "val": 1})
    monkeypatch.setattr(multi_fidelity.subprocess, "run", pretend)
    return commands


def test_a_pruned_trial_is_no_best_and_time_is_that_of_all(tmp_path, started, capsys):
    multi_fidelity.main(["--folder", str(tmp_path / "f"), "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["asha"]["best_map"], found["asha"]["best_trial"], found["asha"]["seconds"]) == (0.35, 3, 150)
    assert (found["time_ratio_until_as_good"], found["holds_until_as_good"]) == (0.55, True)
    assert (found["time_ratio"], found["holds"]) == (0.75, False)
    assert "55% (at most 60%: yes)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("second", "until", "holds"),
    [("completed,0.30,50", 0.3, [True, True]), ("completed,0.29,20", None, [False, False])],
)
def test_pruning_holds_where_it_is_short_and_as_good(tmp_path, started, monkeypatch, second, until, holds):
    monkeypatch.setitem(TABLES, "asha", f"{HEAD}1,pruned,0.30,10\n2,{second}\n")
    multi_fidelity.main(["--folder", str(tmp_path / "f"), "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["time_ratio_until_as_good"] == until
    assert [found["holds_until_as_good"], found["holds"]] == holds


def test_searches_that_are_there_are_resumed(tmp_path, started):
    for _ in range(2):
        multi_fidelity.main(["--folder", str(tmp_path / "f")])
    assert ["--resume" in command for command in started] == [False, False, True, True]


def test_both_searches_are_possible_as_they_are_started(tmp_path, started, monkeypatch):
    multi_fidelity.main(["--folder", str(tmp_path / "f")])
    monkeypatch.chdir(multi_fidelity.ROOT)
    full, asha = (options.parser().parse_args(command[2:]) for command in started)
    for opt in (full, asha):
        options.check(opt)
    assert (full.trials, full.pruner, asha.trials, asha.pruner) == (9, "none", 27, "asha")
    assert full.budget_epochs == asha.budget_epochs >= 9 * asha.first_rung
    trainer = trainer_for(asha.base_config)(asha.base_config, Budget(asha.budget_epochs))
    assert len(read_space(asha.search, trainer)) == len(multi_fidelity.SPACE)
    assert trainer.base_value("eval_interval") == asha.first_rung  # every rung is validated
