"""The table of losses and samples beside other trainers: stand-ins for the sides, and this project's own for real."""

import json

import pytest

from benchmarks.measure import as_text
from benchmarks.side_by_side import pieces
from benchmarks.side_by_side.piece_process import Request
from yolov7fast.core.errors import UserError

ROWS = {"a loss": Request("ota", "forward", 3, 2), "a sample": Request("default", "sample", size=320)}


class StandIn:
    """Takes 1, 2, 3, ... seconds; has no samples; fails at one wish."""

    def __init__(self, name: str, fails: str = ""):
        self.name, self.fails, self.asked = name, fails, []

    def ask(self, request: Request) -> dict[str, float] | None:
        self.asked.append(request.wish)
        if request.wish == self.fails:
            raise UserError(f"{self.name}: no memory left")
        if request.wish == "count":
            return {"operators": 1234, "host_reads": 0}
        return {"seconds": float(len(self.asked))} if request.wish == "forward" else None


def test_figures_are_medians_after_a_warm_up_and_what_a_side_lacks_is_left_out():
    table = pieces.measure([StandIn("one"), StandIn("other")], ROWS, runs=3)
    assert table["a loss"] == {"one": 3000.0, "other": 3000.0}, "turns 2, 3 and 4: the first warms up"
    assert table["a sample"] == {}
    assert pieces.count([StandIn("one")], 2)["OTA loss, 17 boxes an image, forward: operators"] == {"one": 1234}


def test_a_side_that_fails_is_reported_and_not_asked_again():
    good, bad = StandIn("good"), StandIn("bad", fails="sample")
    table = pieces.measure([good, bad], ROWS, runs=3)
    assert table["a sample"] == {"bad": "bad: no memory left"} and bad.asked.count("sample") == 1
    assert pieces.failures(table) == {"bad: no memory left"}
    assert [as_text(x) for x in (1234, 3.14159, 213.9, None, "why")] == ["1,234", "3.14", "213.9", "-", "failed"]


def test_this_project_alone(tmp_path, capsys):
    file = tmp_path / "pieces.json"
    flags = [
        "--only",
        "plain loss, 17 boxes an image, forward",
        "--batch-size",
        "1",
        "--runs",
        "1",
        "--json",
        str(file),
    ]
    assert pieces.main(flags) == 0
    found = json.loads(file.read_text())
    assert found["sides"] == ["yolov7fast"] and "yolov7fast" in capsys.readouterr().out
    times = [row["yolov7fast"] for name, row in found["rows"].items() if name.startswith("plain loss")]
    assert len(times) == len(found["rows"]) == 2 and min(times) > 0


def test_an_interpreter_that_cannot_answer_is_named(tmp_path):
    images = tmp_path / "images" / "train"
    images.mkdir(parents=True)
    side = pieces.Side("upstream", "/bin/false", images)
    with pytest.raises(UserError, match="upstream did not answer"):
        side.ask(ROWS["a loss"])
    side.close()


def test_rows_that_do_not_exist_are_refused():
    with pytest.raises(UserError, match="--only nothing of the kind: no row"):
        pieces.main(["--only", "nothing of the kind"])
