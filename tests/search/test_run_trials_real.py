"""Trials with the real train.py, on a small network and the project's own data set."""

import csv
import json
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.training.commands import small_network, train

SPACE = "lr0: {log_uniform: [0.003, 0.03]}\nbatch_size: {choice: [4, 8]}\nmomentum: {uniform: [0.8, 0.95]}\n"


def base_config(folder: Path, shapes: Path) -> str:
    values = {
        "cfg": small_network(folder), "data": str(shapes / "shapes.yaml"), "hyp": "data/hyp.small.yaml",
        "img_size": 64, "batch_size": 4, "workers": 0, "device": "cpu", "noautoanchor": True, "seed": 3,
    }  # fmt: skip
    path = folder / "base.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def trials(*flags: str, script: str = "tools/run_trials.py", **environment: str) -> subprocess.CompletedProcess:
    return train(*flags, script=script, **environment)


def table(folder: Path) -> list[dict[str, str]]:
    (path,) = folder.glob("trials_*.csv")
    with path.open() as f:
        return [{key: value for key, value in row.items() if key != "wall_time"} for row in csv.DictReader(f)]


@pytest.mark.slow
def test_real_trials_complete_and_fail_as_they_should(tmp_path, shapes_small):
    """The second one's loss is infinite at its first batch."""
    listed = tmp_path / "t.json"
    listed.write_text(json.dumps([{"lr0": 0.02, "training.batch_size": 8}, {"hyp.box": 1e39}]))
    flags = ("--base-config", base_config(tmp_path, shapes_small), "--trials-file", str(listed))
    budget = ("--budget-epochs", "1", "--budget-subset", "8", "--budget-size", "96", "--jobs", "2")
    done = trials(*flags, *budget, "--output-dir", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    good, bad = table(tmp_path / "out")
    assert (good["status"], good["param_lr0"], good["param_training.batch_size"], good["seed"]) == (
        "completed",
        "0.02",
        "8",
        "3",
    )
    assert float(good["final_map"]) >= 0 and 0 < float(good["final_loss"]) < 10
    assert bad["status"] == "failed" and "not finite" in bad["reason"]
    stored = yaml.safe_load((tmp_path / "out" / "trial_001" / "opt.yaml").read_text())
    assert (stored["epochs"], stored["subset_size"], stored["img_size"], stored["batch_size"]) == (1, 8, [96], 8)
    assert yaml.safe_load((tmp_path / "out" / "trial_001" / "hyp.yaml").read_text())["lr0"] == 0.02
    assert f"python train.py --config {tmp_path}/out/best.yaml" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_search_of_six_killed_once_ends_with_the_same_table(tmp_path, shapes_small):
    (tmp_path / "space.yaml").write_text(SPACE)
    flags = ("--base-config", base_config(tmp_path, shapes_small), "--search", str(tmp_path / "space.yaml"))
    flags = (*flags, "--trials", "6", "--budget-epochs", "3")
    whole = trials(*flags, "--output-dir", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    expected = table(tmp_path / "whole")
    assert len(expected) == 6
    victim = max(i for i, row in enumerate(expected) if row["status"] == "completed")
    broken = tmp_path / "broken"
    script = {"script": "tests/search/fake_trials.py", "TRAIN": "tests/search/killing_train.py"}
    killed = trials(*flags, "--output-dir", str(broken), **script, VICTIM=f"trial_{victim + 1:03d} 1")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = trials("--output-dir", str(broken), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "Resuming" in (broken / f"trial_{victim + 1:03d}" / "output.txt").read_text()
    assert table(broken) == expected
