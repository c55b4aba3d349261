"""`yolov7fast status`: a line for each run, of any folder it is copied to."""

import json
import os
import re
import socket
import time
from pathlib import Path

import pytest

from yolov7fast.cli.commands import status
from yolov7fast.core.errors import UserError
from yolov7fast.reports.run_status import run_status, runs_below

HEADING = "epoch,train/total,metrics/mAP_0.5:0.95,seconds,train_seconds,iterations,data_wait_share\r\n"
STATE = {
    "progress": {
        **{"status": "running", "epoch": 2, "epochs": 10, "batch": 50, "batches": 100, "step": 250, "waited": 5.0},
        **{"epoch_seconds": 50.0, "losses": {"box": 0.1, "total": 0.5}},
    },
    "rate": 2.0,
    "images_per_epoch": 1600,
    "gpu_use": 87.0,
}


def made(folder: Path, updated: float | None = None, **changes) -> Path:
    """The files of a run of 10 epochs in its third, of which one lasts 100 seconds."""
    folder.mkdir(parents=True)
    rows = "".join(f"{i},{1 - i / 10},{0.1 + i / 10},100,90,100,0.2\r\n" for i in range(2))
    (folder / "results.csv").write_text(HEADING + rows)
    progress = {**STATE["progress"], "updated": time.time() if updated is None else updated, **changes}
    (folder / "page.json").write_text(json.dumps({**STATE, "progress": progress}))
    return folder


def test_a_run_inside_an_epoch(tmp_path):
    found = run_status(made(tmp_path / "run"))
    assert found["state"] == "running" and (found["epoch"], found["epochs"], found["iteration"]) == (2, 10, 250)
    assert found["images_per_second"] == 16 and found["data_wait"] == 0.1 and found["loss"] == 0.5
    assert found["left_seconds"] == 750 and found["best_map"] == pytest.approx(0.2)
    assert found["cost"] == pytest.approx(2 * 250 / 3600) and found["gpu_use"] == 87 and found["copied"] is None
    assert run_status(tmp_path / "run", rate=4)["cost"] == pytest.approx(4 * 250 / 3600)


def test_a_finished_run_of_which_only_tables_are_known(tmp_path):
    (made(tmp_path / "run") / "page.json").unlink()
    (tmp_path / "run" / "results.txt").write_text("1/9 0G 0.1 0.1 0.1 0.9\n")
    found = run_status(tmp_path / "run")
    assert (found["state"], found["epoch"], found["data_wait"], found["cost"]) == ("unknown", 2, 0.2, None)
    assert found["loss"] == pytest.approx(0.9) and found["left_seconds"] is None


def test_a_run_whose_process_is_gone_is_lost(tmp_path):
    assert run_status(made(tmp_path / "silent", updated=1e9))["state"] == "lost"
    killed = made(tmp_path / "killed")
    for pid, state in ((os.getpid(), "running"), (2**22 + 1, "lost")):
        (killed / ".lock").write_text(f"process {pid} on {socket.gethostname()}, since 2026-01-01\n")
        assert run_status(killed)["state"] == state


@pytest.mark.parametrize(
    "state", ["[]", "{", '{"progress": 1}', '{"progress": {"status": []}}', '{"progress": {"batch": {}}}']
)
def test_a_damaged_state_is_no_error(tmp_path, state):
    made(tmp_path / "run")
    (tmp_path / "run" / "page.json").write_text(state)
    assert isinstance(run_status(tmp_path / "run")["state"], str)


def test_the_command_shows_mirrors_of_several_machines(tmp_path, capsys, monkeypatch):
    one, two = made(tmp_path / "a" / "tiny"), made(tmp_path / "b" / "full", status="complete", batch=0, epoch=10)
    (one / "mirror.json").write_text(json.dumps({"copied": time.time() - 120}))
    os.utime(one / "page.json", (1, 1))
    assert runs_below([tmp_path]) == [two, one]
    assert status.main([str(tmp_path)]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert (
        " ".join(heading.split())
        == "run state epoch iteration images/s left loss best mAP data wait GPU cost last copy"
    )
    assert (
        first.split()[:3] == [str(two), "complete", "10/10"]
        and re.search(r" 2\.\d min ago", second)
        and "12.5 min" in second
    )
    assert status.main([str(tmp_path), "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["complete", "running"]

    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        status.main([str(tmp_path), "--watch"])
    assert capsys.readouterr().out.count("images/s") == 2 and looks == [status.WATCH_SECONDS] * 2
    monkeypatch.chdir(tmp_path / "a" / "tiny")
    assert status.main([]) == 0 and capsys.readouterr().out == "no runs\n"
    with pytest.raises(UserError, match="is not a folder"):
        status.main(["nowhere"])
