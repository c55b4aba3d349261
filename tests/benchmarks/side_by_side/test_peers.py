"""The race beside other trainers: small scripts stand for them."""

import json
import os
import sys
from types import SimpleNamespace

import pytest
import yaml

from benchmarks.side_by_side import peers, trainers
from benchmarks.side_by_side.trainers import Race, Trainer, entered, last

# writes as many rows as epochs; the last validation of each epoch is epoch / 10
SCRIPT = """
import pathlib, sys
epochs, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
if epochs > 90:
    sys.exit("no memory left")
folder.mkdir()
rows = [f"{e},{(e + 1) / 10}" for e in range(epochs)]
(folder / "results.csv").write_text("epoch,map\\n" + "\\n".join(rows) + "\\n7,\\n")
"""


def trainer(name: str = "stand-in", times: int = 1) -> Trainer:
    def command(race: Race, epochs: int, run: str) -> list[str]:
        return [sys.executable, "-S", "-c", SCRIPT, str(epochs * times), str(race.folder / run)]

    map50, size = lambda run: last(run / "results.csv", "map"), lambda race, run: {"gflops": 2.0}
    return Trainer(name, "net", command, "results.csv", map50, size)


@pytest.fixture
def clock(monkeypatch):
    """Every epoch takes 5 seconds, but the first of each run 8 and every fourth 7; starting up takes 10."""
    lengths, watched = {}, trainers.watched

    def watch(command, cwd, log, results):
        code, _, grown = watched(command, cwd, log, results)
        epochs = lengths[results.parent.name] = len(grown) - 2  # but the heading and the line without a figure
        ends = [18.0 + 5 * e + 2 * (e // 4) for e in range(epochs)]
        return code, ends[-1] + 1 if ends else 0.0, [3.0, *ends]

    monkeypatch.setattr(trainers, "watched", watch)
    return lengths


def options(tmp_path, *arguments: str):
    opt = peers.parse(["--json", str(tmp_path / "figures.json"), *arguments])
    opt.images = 20
    return opt


def test_start_up_does_not_count_and_the_race_fits_the_minutes(tmp_path, clock):
    race = Race(tmp_path / "data.yaml", 320, 16, 2, tmp_path)
    (row,) = peers.measure({trainer(): race}, options(tmp_path, "--minutes", "0.75"))
    assert (row["epoch"], row["start"], row["images_per_second"]) == (5.0, 13.0, 4.0)
    assert clock["0_race"] == row["epochs"] == 6, "13 s of starting up and 6 epochs of 5 s fit into 45 s"
    assert row["epochs_measured"] == 2 + 5 and row["minutes"] == (18 + 25 + 2 + 1) / 60
    assert row["map50"] == 0.6 and row["gflops"] == 2.0
    assert json.loads((tmp_path / "figures.json").read_text())["rows"] == [row]


def test_a_trainer_that_fails_is_reported_in_its_row(tmp_path, clock):
    race = Race(tmp_path / "data.yaml", 320, 16, 2, tmp_path)
    rows = peers.measure({trainer("bad", times=91): race, trainer("good"): race}, options(tmp_path, "--minutes", "0"))
    assert rows[0]["error"] == "bad ended with code 1: no memory left" and "map50" not in rows[1]
    for row in rows:
        row.setdefault("parameters", 1.0)
    assert "no memory left" in peers.table(rows, 0) and "4.0" in peers.table(rows, 0).splitlines()[2]


def test_the_lines_of_a_table_are_timed_as_they_come(tmp_path, monkeypatch):
    """A process that writes a line a second, three in all; the table is looked at twice a second."""
    table, now = tmp_path / "table", [0.0]

    def sleep(_):
        now[0] += 0.5
        table.write_text("\n" * min(int(now[0]), 3))

    process = SimpleNamespace(poll=lambda: 0 if now[0] > 3 else None, wait=lambda: 0, kill=lambda: None)
    monkeypatch.setattr(trainers, "time", SimpleNamespace(sleep=sleep, perf_counter=lambda: now[0]))
    monkeypatch.setattr(trainers, "subprocess", SimpleNamespace(Popen=lambda *_, **__: process, STDOUT=None))
    assert trainers.watched([], tmp_path, tmp_path / "log", table) == (0, 3.5, [1.0, 2.0, 3.0])


def test_only_the_trainers_that_the_user_has_are_entered(tmp_path):
    assert [t.name for t in entered(options(tmp_path))] == ["yolov7fast", "yolov7fast, fast flags"]
    given = ["--reference", str(tmp_path), "--ultralytics", "py", "--libreyolo", "py"]
    found = entered(options(tmp_path, *given))
    assert [t.name for t in found][2:] == ["WongKinYiu/yolov7", "ultralytics", "libreyolo"]
    race = Race(tmp_path / "data.yaml", 320, 16, 2, tmp_path)
    for one in found:
        command = one.command(race, 4, "run")
        assert str(race.data) in " ".join(command) and "320" in " ".join(command) and "4" in " ".join(command)


def test_no_trainer_finds_the_label_caches_of_another(tmp_path, bccd):
    ours, theirs = (yaml.safe_load(peers.writable_copy(tmp_path / name).read_text()) for name in ("ours", "theirs"))
    for split in ("train", "val"):
        assert ours[split].startswith(str(tmp_path / "ours")) and theirs[split].startswith(str(tmp_path / "theirs"))
        labels = [path.replace("/images/", "/labels/") for path in (ours[split], theirs[split])]
        assert len({*map(os.path.realpath, labels)}) == 2 and all(map(os.listdir, labels))
