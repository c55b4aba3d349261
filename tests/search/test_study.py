"""A study: its configurations, its two parts, that it resumes, and its report. A stub trains."""

import json
import re
import sys

import pytest

from tests.search.fake_trials import ROOT
from yolov7fast.cli.commands import study as command
from yolov7fast.core.errors import UserError
from yolov7fast.core.process import child
from yolov7fast.search.trial_training import TrialTraining

AXES = ["assigner=plain,tal", "batch=16,64"]
# writes a results.csv as a training does: an epoch takes 2, 4, 8 and 16 seconds
STUB = """
import sys
from pathlib import Path
import yaml
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert flags["--resume"] == "auto"
config = Path(flags["--config"])
opt = yaml.safe_load(config.read_text())
opt = yaml.safe_load((config.parent / opt["base"]).read_text()) | opt
table = Path(opt["project"]) / opt["name"] / "results.csv"
rows = table.read_text().splitlines() if table.is_file() else [
    "epoch,train/total,metrics/precision,metrics/recall,metrics/mAP_0.5,metrics/mAP_0.5:0.95,seconds"]
value = 0.3 + {"plain": 0.0, "tal": 0.1}[opt["assigner"]] + 0.001 * opt["seed"]
seconds = opt["batch_size"] // 8 * {"plain": 1, "tal": 2}[opt["assigner"]]
with open(LOG, "a") as log:
    log.write(f"{opt['assigner']} {opt['batch_size']} {opt['seed']} {len(rows) - 1} {opt['hyp']}" + chr(10))
for epoch in range(len(rows) - 1, opt.get("epochs", 3)):
    now = value + 0.01 * epoch
    rows.append(f"{epoch},1,{now},{now},{now},{now / 2},{seconds}")
    table.write_text(chr(10).join(rows) + chr(10))
    if BROKEN.is_file():
        BROKEN.unlink()
        sys.exit(143)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the study, whose trainings are the stub's."""
    script = tmp_path / "stub.py"
    log, broken = tmp_path / "started.txt", tmp_path / "broken"
    script.write_text(f"from pathlib import Path\nLOG, BROKEN = {str(log)!r}, Path({str(broken)!r})\n{STUB}")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(type(command.program("train")), "child", lambda self: [sys.executable, str(script)])
    monkeypatch.setattr(TrialTraining, "prepare", lambda self: None)
    monkeypatch.setattr(child, "LOOK_SECONDS", 0.02)
    return tmp_path


def run(folder, monkeypatch, *flags: str) -> int:
    arguments = ["study", "--data", "data/shapes.yaml", "--cfg", "yolov7-tiny", "--axes", *AXES, "--epochs", "3"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--output", str(folder / "out"), "--hyp", "small", *flags])
    return command.main()


def started(folder) -> list[str]:
    return (folder / "started.txt").read_text().splitlines()


def test_a_study_trains_all_configurations_and_reports(folder, monkeypatch, capsys):
    assert run(folder, monkeypatch, "--repeat", "2") == 0
    assert len(started(folder)) == 8 and all(line.endswith(" small") for line in started(folder))
    text = (folder / "out" / "report.md").read_text()
    assert (
        "| 2 | assigner plain, batch_size 64 |" in text and "assigner tal, batch_size 16, seed 1 (equal epochs)" in text
    )
    assert "Within the noise of configuration 3" in text and "configuration 4" in text  # both batches score alike
    assert (folder / "out" / "report.html").is_file() and "report.html" in capsys.readouterr().out
    assert "| 3 | assigner tal, batch_size 16 | 3 | 0.4205 |" in text
    assert run(folder, monkeypatch, "--repeat", "2") == 0
    assert len(started(folder)) == 8  # nothing is trained twice
    with pytest.raises(UserError, match="--repeat cannot change"):
        run(folder, monkeypatch, "--repeat", "3")


def test_equal_minutes_give_each_configuration_the_epochs_that_fit(folder, monkeypatch):
    """At least one epoch each."""
    assert run(folder, monkeypatch, "--repeat", "1", "--minutes", "0.2") == 0
    settings = json.loads((folder / "out" / "equal_minutes_0.2" / "trials_file.json").read_text())
    assert [setting["epochs"] for setting in settings] == [6, 1, 3, 1]
    text = (folder / "out" / "report.md").read_text()
    (found,) = re.findall(r"\| 1 \| assigner plain, batch_size 16, epochs 6 \| 6 \| ([\d.]+) \|", text)
    assert float(found) == pytest.approx(0.35)


def test_a_stopped_study_resumes_where_it_was(folder, monkeypatch, capsys):
    (folder / "broken").touch()
    assert run(folder, monkeypatch, "--repeat", "1") == 0  # the training was stopped from outside, not the study
    assert run(folder, monkeypatch, "--repeat", "1") == 0
    calls = [line.split()[:4] for line in started(folder)]
    assert calls[0] == ["plain", "16", "0", "0"] and ["plain", "16", "0", "1"] in calls
    assert "| 1 | assigner plain, batch_size 16 | 3 |" in (folder / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--repeat", "0"], "--repeat is 0"),
        (["--minutes", "-1"], "--minutes is -1"),
        (["--axes", "assigner"], "NAME=VALUE,VALUE"),
        (["--axes", "assigner=plain,plain"], "give an axis, and each value of it, once"),
        (["--axes", "assigner=plain,atss"], "unknown assigner 'atss'"),
        (["--axes", "colour=red"], "unknown setting 'colour'"),
        (["--axes", "epochs=1,2"], "'epochs' is set for all trials by the budget"),
        (["--resume", "auto"], "'resume' cannot be in the base configuration of trials"),
        (["--batch-size", "4"], "--batch-size is one of --axes"),
        (["--cfg", "yolov99"], "yolov99"),
    ],
)
def test_mistakes_are_named_in_one_line_before_anything_trains(folder, monkeypatch, flags, message):
    with pytest.raises(UserError, match=message) as error:
        run(folder, monkeypatch, *flags)
    assert "\n" not in str(error.value) and not (folder / "started.txt").exists()
