"""The benchmark of validation: which epochs count, in which order the sides run, what is refused."""

import json
from pathlib import Path

import pytest

from benchmarks.training import validation
from yolov7fast.core.errors import UserError

TRAINER = """
import pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = pathlib.Path(given["--project"]) / given["--name"]
folder.mkdir()
with pathlib.Path(__file__).with_name("..").joinpath("order.txt").open("a") as order:
    print(folder.name, given["--epochs"], sep=",", file=order)
rows = [f"{VAL + 9},9,{VAL}" for epoch in range(int(given["--epochs"]) - 1)] + ["1000,1,999"]
(folder / "results.csv").write_text("\\n".join(["seconds,train_seconds,val_seconds", *rows]))
"""


@pytest.fixture
def clones(tmp_path, shapes_small, monkeypatch) -> dict[str, Path]:
    """Two folders with a train.py that takes no time and says that its validations took 3 seconds, or 1."""
    folders = {"before": tmp_path / "earlier", "now": tmp_path / "now"}
    for folder, seconds in zip(folders.values(), (3, 1)):
        folder.mkdir()
        (folder / "train.py").write_text(TRAINER.replace("VAL", str(seconds)))
    monkeypatch.setattr(validation, "ROOT", folders["now"])
    monkeypatch.setattr(validation, "photographs", lambda scratch: shapes_small / "shapes.yaml")
    return folders


def test_sides_run_in_turn_and_the_last_epoch_of_a_run_is_left_out(clones, tmp_path, capsys):
    file = tmp_path / "found.json"
    assert validation.main(["--before", str(clones["before"]), "--json", str(file)]) == 0
    assert (tmp_path / "order.txt").read_text().split() == ["before0,3", "now0,3", "before1,3", "now1,3"]
    found = json.loads(file.read_text())
    assert found["sides"]["before"] == {"seconds": 12, "train_seconds": 9, "val_seconds": 3}
    assert [(row["value"], row["runs"]) for row in found["ratios"]] == [(0.25, 4), (0.1, 4), (3, 4)]
    assert "now: 10.0 s an epoch, 9.0 of training, 1.0 of validation" in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused(clones, tmp_path):
    with pytest.raises(UserError, match="--epochs 1: the last epoch is not counted"):
        validation.main(["--epochs", "1"])
    with pytest.raises(UserError, match=r"there is no train\.py"):
        validation.main(["--before", str(tmp_path)])
    (clones["now"] / "train.py").write_text("raise SystemExit('no room')")
    with pytest.raises(UserError, match=r"train\.py ended with code 1: no room"):
        validation.main([])
