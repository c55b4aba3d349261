"""The page beside a run: written during it and at its end, and never in its way."""

import json
import logging

import pytest

from tests.training.commands import small_run
from yolov7fast.cli.commands.train import run as run_training
from yolov7fast.cli.parser import parser_for
from yolov7fast.training.logging import page as page_module


def start(*arguments: str) -> int:
    return run_training(parser_for("train", "yolo").parse_args(arguments), "yolo")


@pytest.fixture
def undrawn(monkeypatch):
    """Runs without matplotlib's plots, which take most of their time."""
    monkeypatch.setattr("yolov7fast.evaluation.eval_outputs.draw_curves", lambda *_: None)
    monkeypatch.setattr("yolov7fast.training.logging.reporter.plot_results", lambda **_: None)


def test_a_run_has_a_page_and_a_resumed_run_knows_its_past(tmp_path, shapes_small, undrawn):
    flags = small_run(tmp_path, shapes_small, "--epochs", "1", "--seed", "1", "--rate", "2")
    assert start(*flags) == 0
    run = tmp_path / "runs" / "run"
    text, state = (run / "index.html").read_text(), json.loads((run / "page.json").read_text())
    assert "after 1 of 1 epochs" in text and "an hour" in text and "--resume" in text and "train_batch0.jpg" in text
    assert state["validation"]["images"] == 8 and len(state["validation"]["first"]) == 8
    assert state["rate"] == 2
    assert state["settings"]["epochs"] == "1" and state["facts"]["torch"] and state["stages"]["forward"] > 0
    logging.getLogger("yolov7fast.test").warning("after the run")
    assert start("--resume", str(run), "--epochs", "2") == 0
    resumed = json.loads((run / "page.json").read_text())
    assert len(resumed["commands"]) == 2 and resumed["validation"]["epoch"] == 1
    assert not any("after the run" in text for _, text in resumed["warnings"])
    assert "after 2 of 2 epochs" in (run / "index.html").read_text()
    assert not list(run.glob(".*.tmp*"))


def test_a_page_that_cannot_be_made_is_one_warning(tmp_path, shapes_small, monkeypatch, caplog, undrawn):
    def broken(*_):
        raise RuntimeError("no page today")

    monkeypatch.setattr(page_module, "run_page", broken)
    assert start(*small_run(tmp_path, shapes_small, "--epochs", "2")) == 0
    assert len([r for r in caplog.records if "no page today" in r.getMessage()]) == 1
    assert (tmp_path / "runs/run/weights/best.pt").is_file()


@pytest.fixture
def page(tmp_path):
    made = page_module.RunPage(tmp_path)
    yield made
    made.close()


def test_what_is_handed_over_never_raises(page, caplog):
    page.epoch_done(0, {"odd": object()}, {"forward": [1.0]}, "")
    page.write()  # not JSON
    page.progress(None, 0, {}, None)
    page.close()
    page.write()  # after the end
    assert len([r for r in caplog.records if "cannot be written" in r.getMessage()]) == 1


def test_warnings_are_kept_once_and_bounded(page):
    log = logging.getLogger("yolov7fast.somewhere")
    for i in range(300):
        log.warning("slow disk")
        log.warning("number %d \x1b[31m", i)
    found = [text for _, text in page.handler.warnings]
    assert found[0] == "slow disk" and found.count("slow disk") == 1 and len(found) == page_module.MOST_WARNINGS
    assert found[1] == "number 0 \\x1b[31m"
    page.close()
    log.warning("later")
    assert "later" not in [text for _, text in page.handler.warnings]
