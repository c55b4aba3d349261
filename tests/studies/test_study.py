"""A study: what it plans, that it resumes, what its report says; a stand-in trains."""

import csv
import json
import sys

import pytest

from yolov7fast.commands import study as command
from yolov7fast.core.errors import UserError
from yolov7fast.reports.render import Table
from yolov7fast.studies.figures import Price, Trained, at_minutes, results
from yolov7fast.studies.plan import make_plan, parse_axes
from yolov7fast.studies.recorded import RECORDED
from yolov7fast.studies.report import build_report, recommendation

AXES = ["assigner=plain,tal", "batch=16,64"]
HEADER = "epoch,train/total,metrics/precision,metrics/recall,metrics/mAP_0.5,metrics/mAP_0.5:0.95,seconds"
# writes a results.csv as a training would; `limit` epochs at a time, so that it can be left unfinished
STAND_IN = """
import sys
from pathlib import Path
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert flags["--resume"] == "auto"
folder = Path(flags["--project"]) / flags["--name"]
folder.mkdir(parents=True, exist_ok=True)
table = folder / "results.csv"
rows = table.read_text().splitlines() if table.is_file() else ["%s"]
gain = {"plain": 0.0, "tal": 0.1}[flags["--assigner"]] + 0.001 * int(flags["--seed"])
seconds = int(flags["--batch-size"]) / 8 * {"plain": 1, "tal": 2}[flags["--assigner"]]
with open(folder.parent.parent.parent / "started.txt", "a") as f:
    f.write(folder.name + " " + str(len(rows) - 1) + chr(10))
broken = folder.parent.parent.parent / "broken"
for epoch in range(len(rows) - 1, int(flags["--epochs"])):
    value = 0.3 + gain + 0.01 * epoch
    rows.append(f"{epoch},1,{value},{value},{value},{value / 2},{seconds}")
    table.write_text(chr(10).join(rows) + chr(10))
    if broken.is_file():
        broken.unlink()
        sys.exit("error: the disk is full")
"""


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """The study's folder, its trainings being the stand-in's."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN % HEADER)
    train = command.program("train")
    monkeypatch.setattr(type(train), "child", lambda self: [sys.executable, str(script)])
    monkeypatch.setattr("yolov7fast.core.process.child.LOOK_SECONDS", 0.02)
    return tmp_path


def run(folder, monkeypatch, *flags: str) -> int:
    arguments = ["study", "--data", "data/shapes.yaml", "--cfg", "yolov7-tiny", "--axes", *AXES, "--epochs", "3"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--output", str(folder / "out"), *flags])
    return command.main()


def started(folder) -> list[str]:
    return (folder / "started.txt").read_text().splitlines()


def test_a_study_trains_all_arms_and_reports(trainer, monkeypatch, capsys):
    assert run(trainer, monkeypatch, "--repeat", "2", "--hyp", "small") == 0
    assert len(started(trainer)) == 8
    out = trainer / "out"
    rows = list(csv.DictReader((out / "runs.csv").open()))
    assert len(rows) == 8 and {row["equal"] for row in rows} == {"epochs"}
    best = max(rows, key=lambda row: float(row["map50"]))
    assert (best["assigner"], best["seed"], float(best["map50"])) == ("tal", "1", pytest.approx(0.421))
    page = (out / "report.html").read_text()
    for text in ("Accuracy at equal epochs", "Price", "Spread of the seeds", "RTX 5090", "tal, batch 16"):
        assert text in page
    assert json.loads((out / "results.json").read_text())["price"]["seconds"]["assigner-tal_batch-64"] == 16
    assert "report.html" in capsys.readouterr().out
    assert run(trainer, monkeypatch, "--repeat", "2", "--hyp", "small") == 0
    assert len(started(trainer)) == 8  # nothing is trained twice


def test_equal_minutes_give_each_arm_the_epochs_that_fit(trainer, monkeypatch):
    """Epochs take 2, 4, 8 and 16 seconds; every arm has at least one."""
    assert run(trainer, monkeypatch, "--repeat", "1", "--minutes", "0.2") == 0
    rows = list(csv.DictReader((trainer / "out" / "runs.csv").open()))
    epochs = {(row["assigner"], row["batch"]): int(row["epochs"]) for row in rows if row["equal"] == "minutes"}
    assert epochs == {("plain", "16"): 6, ("tal", "16"): 3, ("plain", "64"): 1, ("tal", "64"): 1}
    assert len(started(trainer)) == 4 + 3  # at batch 16 tal has its three epochs already


def test_a_failed_training_is_named_and_resumed_where_it_was(trainer, monkeypatch):
    (trainer / "broken").touch()
    with pytest.raises(UserError, match=r"assigner-plain_batch-16_3ep_seed0 ended with code 1 .*disk is full"):
        run(trainer, monkeypatch, "--repeat", "1")
    assert run(trainer, monkeypatch, "--repeat", "1") == 0
    assert started(trainer)[:2] == ["assigner-plain_batch-16_3ep_seed0 0", "assigner-plain_batch-16_3ep_seed0 1"]


def test_a_price_measured_apart_takes_the_place_of_the_recorded_one(trainer, monkeypatch):
    assert run(trainer, monkeypatch, "--repeat", "1") == 0
    price = {"assigner-plain_batch-16": 1, "assigner-plain_batch-64": 2, "assigner-tal_batch-16": 3}
    (trainer / "out" / "price.json").write_text(json.dumps(price))
    with pytest.raises(UserError, match="assigner-tal_batch-64 has no price"):
        run(trainer, monkeypatch, "--repeat", "1", "--report-only")
    assert run(trainer, monkeypatch, "--repeat", "1", "--measure-price", "--report-only") == 0
    assert json.loads((trainer / "out" / "price.json").read_text())["assigner-tal_batch-64"] == 16
    assert "measured apart" in (trainer / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--repeat", "0"], "--repeat is 0"),
        (["--epochs", "0"], "--epochs is 0"),
        (["--axes", "assigner"], "NAME=VALUE,VALUE"),
        (["--axes", "assigner=plain,plain"], "stands once"),
        (["--axes", "assigner=plain,atss"], "no assigner 'atss'"),
        (["--axes", "colour=red"], "no flag of training that takes a value"),
        (["--axes", "adam=1"], "no flag of training that takes a value"),
        (["--axes", "seed=1,2"], "the study sets --seed itself"),
        (["--axes", "batch=0,4"], "batch-size is 0"),
        (["--resume", "auto"], "--resume is set by the study itself"),
        (["--batch-size", "4"], "--batch-size is set by the study itself"),
        (["--cfg", "yolov99"], "yolov99"),
        (["--report-only"], "no training of this study is done yet"),
    ],
)
def test_mistakes_are_answered_in_one_line_before_anything_trains(trainer, monkeypatch, flags, message):
    with pytest.raises(UserError, match=message) as error:
        run(trainer, monkeypatch, *flags)
    assert "\n" not in str(error.value) and not (trainer / "started.txt").exists()


def test_a_folder_holds_one_study(trainer, monkeypatch):
    assert run(trainer, monkeypatch, "--repeat", "1") == 0
    with pytest.raises(UserError, match="of a study with epochs 3, not 5: give another --output"):
        run(trainer, monkeypatch, "--repeat", "1", "--epochs", "5")
    (trainer / "out" / "study.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        run(trainer, monkeypatch, "--repeat", "1")


def test_a_study_takes_further_seeds_and_minutes(trainer, monkeypatch):
    assert run(trainer, monkeypatch, "--repeat", "1") == 0
    first = started(trainer)
    assert run(trainer, monkeypatch, "--repeat", "2") == 0
    assert started(trainer)[: len(first)] == first and len(started(trainer)) == 2 * len(first)


# --- figures ----------------------------------------------------------------------------------------------------------


def trained(trainer, monkeypatch, repeat: int) -> tuple:
    assert run(trainer, monkeypatch, "--repeat", str(repeat)) == 0
    plan = make_plan("data/shapes.yaml", "x", AXES, repeat, 3, 0, [])
    folder = trainer / "out" / "runs"
    return plan, [Trained(r, command.read_run(folder / r.name)) for r in plan.equal_epochs()]


def test_the_recommendation_says_how_sure_it_is(trainer, monkeypatch):
    plan, runs = trained(trainer, monkeypatch, 2)
    price = Price({arm.name: 60.0 for arm in plan.arms}, "made up")
    found = results(runs, "epochs", "map50")
    assert [len(r.values) for r in found] == [2] * 4 and found[0].mean == pytest.approx(0.3205)
    (verdict, *_) = recommendation(runs, price)
    assert "tal" in verdict and "not told apart from it by these seeds: tal" in verdict  # both batches score alike
    single, *_ = recommendation([t for t in runs if t.planned.seed == 0], price)
    assert "how much is chance is unknown" in single
    assert at_minutes(runs[0], 2.5, price, "map50") == pytest.approx(0.31)  # two epochs of a minute each
    sections = {s.title: s for s in build_report(plan, runs, price).sections}
    (table,) = (block for block in sections["The recorded study"].blocks if isinstance(block, Table))
    assert ["mAP@.5", "0.385", "0.414"] in [list(row) for row in table.rows]
    assert RECORDED["ota"]["hours"] == 10.65


def test_axes_stand_in_the_order_given():
    assert parse_axes(["size=320,640", "assigner=ota"]) == {"size": ["320", "640"], "assigner": ["ota"]}
    names = [arm.name for arm in make_plan("d", "c", ["size=320,640", "assigner=ota"], 1, 1, 0, []).arms]
    assert names == ["size-320_assigner-ota", "size-640_assigner-ota"]
