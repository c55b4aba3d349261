"""The benchmark of small data sets: its two sets, and that finished runs are kept. Nothing is trained here."""

import json
import subprocess
from pathlib import Path

import yaml

from benchmarks.learning import small_data
from yolov7fast.data.labels import find_images, img2label_paths


def labels(data: Path, split: str = "train") -> list[list[str]]:
    images = find_images(yaml.safe_load(data.read_text())[split])
    return [[line.split()[0] for line in Path(path).read_text().splitlines()] for path in img2label_paths(images)]


def test_both_sets_have_the_promised_images_and_classes(bccd, tmp_path):
    cells, one = (small_data.make_set(kind, tmp_path / kind) for kind in small_data.SETS)
    assert len(labels(cells)) == 205 and {name for rows in labels(cells) for name in rows} == {"0", "1", "2"}
    assert len(labels(one)) == 150 and {name for rows in labels(one) for name in rows} == {"0"}
    assert len(labels(one, "val")) == 87 and yaml.safe_load(one.read_text())["nc"] == 1


def test_runs_are_tabled_by_seed_and_not_done_twice(bccd, tmp_path, monkeypatch, capsys):
    started = []

    def pretend(command, cwd):
        started.append(command)
        folder = Path(command[command.index("--project") + 1]) / command[command.index("--name") + 1]
        folder.mkdir()
        (folder / "results.csv").write_text("epoch,metrics/mAP_0.5\n0,0.1\n1,\n2,0.75\n")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(small_data, "machine", dict)
    monkeypatch.setattr(small_data.subprocess, "run", pretend)
    flags = ["--sets", "one-class", "--json", str(tmp_path / "runs.json")]
    small_data.main([*flags, "--seeds", "0"])
    small_data.main([*flags, "--seeds", "0", "1"])
    assert [command[command.index("--seed") + 1] for command in started] == ["0", "1"]
    assert all(command[command.index("--hyp") + 1] == "small" for command in started)
    assert "mAP@.5 seed 0 0.750, seed 1 0.750; 2 of 2 reach 0.5" in capsys.readouterr().out.splitlines()[-1]
    assert len(json.loads((tmp_path / "runs.json").read_text())["runs"]) == 2
