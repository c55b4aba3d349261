"""Figures of the documents are those of benchmarks/results: none is typed by hand where a file has it."""

import json
import re

import pytest

from benchmarks import tables
from benchmarks.measure import write_json
from tests.conftest import ROOT


def test_documents_and_chart_are_up_to_date(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().out + "run: python -m benchmarks.tables"


def test_every_mark_names_a_known_figure_or_table():
    for path in tables.documents():
        text = path.read_text(encoding="utf-8")
        marks = re.findall(r"<!--= (\S+) -->", text)
        assert len(marks) == text.count("<!--/-->") and set(marks) <= set(tables.FIGURES), path.name
        opened = re.findall(r"<!-- table: (\S+) -->", text)
        assert len(opened) == text.count("<!-- /table -->") and set(opened) <= set(tables.TABLES), path.name


def test_every_file_of_results_is_shown():
    names = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")} - {"recorded", "counted"}
    shown = "".join(path.read_text(encoding="utf-8") for path in tables.documents())
    assert names and names <= set(tables.TABLES) and all(f"<!-- table: {name} -->" in shown for name in names)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """`measured(name, results)` writes a file as a benchmark does; documents are filled from that folder alone."""
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    tables.results.cache_clear()
    yield lambda name, results: write_json(str(tmp_path / f"{name}.json"), results)
    tables.results.cache_clear()


MACHINE = {"cpu": "x", "cores": 2, "python": "3", "torch": "2"}


def test_a_new_measurement_replaces_figure_and_table(measured):
    what = "OTA / plain forward (batch 64, 320, 17 targets)"
    row = {"what": what, "value": 1.234, "must": "<= 2.0", "runs": 11}
    measured("loss", {"machine": MACHINE, "ratios": [row]})
    text = "It takes <!--= ota-forward -->9<!--/--> times.\n<!-- table: loss -->\nold\n<!-- /table -->\n"
    filled = tables.filled(text)
    assert "<!--= ota-forward -->1.23<!--/--> times" in filled and f"| {what} | 1.234 | <= 2.0 | 11 |" in filled
    assert "old" not in filled and tables.filled(filled) == filled


def test_what_was_not_measured_is_said(measured):
    filled = tables.filled("<!-- table: loss -->\n<!-- /table -->\n")
    assert "Not measured on an idle machine yet" in filled and "python -m benchmarks.losses.loss" in filled
    with pytest.raises(LookupError, match=r"loss\.json is missing"):
        tables.filled("<!--= ota-forward -->1<!--/-->")


def test_both_sides_and_their_counts_stand_in_the_table_of_the_reference(measured):
    counts = {"upstream": {"operators": 28691, "host_reads": 4323}, "overlay": {"operators": 245, "host_reads": 0}}
    rows = [
        {"what": "ComputeLossOTA, forward", "upstream": 0.6, "overlay": 0.1, "difference": 1e-7, "counts": counts},
        {"what": "ComputeLossOTA, forward + backward", "upstream": 2.0, "overlay": 1.0, "difference": 0},
        {"what": "loader", "error": "OSError: no images"},
    ]
    measured("reference", {"machine": MACHINE, "rows": rows})
    table = tables.table_text("reference")
    assert "| ComputeLossOTA, forward | 600.0 ms | 100.0 ms | 6.00x | 1.0e-07 |" in table
    assert "| ComputeLossOTA, forward: operators | 28691 | 245 |" in table and "OSError: no images" in table
    recorded = json.loads((ROOT / "benchmarks" / "results" / "recorded.json").read_text())
    chart = tables.iteration(recorded, tables.results("reference"))
    assert "Measured: the loss" in chart and ">2000<" in chart and "1000 (2.0x)" in chart
    assert "Measured" not in tables.iteration(recorded, None)


def test_a_figure_beside_upstream_may_wait_for_its_measurement_in_either_language(measured):
    mark = "<!--= reference-step-upstream -->x<!--/-->"
    assert ">not measured yet<" in tables.filled(mark) and ">尚未量測<" in tables.filled(mark, "尚未量測")
    rows = [{"what": "training step with OTA", "upstream": 2.0, "overlay": 0.8, "difference": 0}]
    measured("reference", {"machine": MACHINE, "rows": rows})
    tables.results.cache_clear()
    assert ">2000<" in tables.filled(mark)
    assert ">2.5<" in tables.filled("<!--= reference-step-faster -->x<!--/-->")
    assert ">not measured yet<" in tables.filled("<!--= reference-loss-here -->x<!--/-->")  # that part was left out


def test_a_row_that_a_benchmark_no_longer_writes_is_named(measured):
    measured("loss", {"machine": MACHINE, "ratios": [{"what": "other", "value": 1, "must": "-", "runs": 1}]})
    with pytest.raises(LookupError, match=r"ota-forward: no row .*there are: 'other'"):
        tables.filled("<!--= ota-forward -->1<!--/-->")


def test_the_table_of_trainers_shows_the_race_and_who_failed(measured):
    row = {"trainer": "this project", "network": "yolov7-tiny", "parameters": 6.01, "gflops": 3.25, "epoch": 12.34}
    row |= {"start": 3.0, "images_per_second": 16.6, "epochs": 20, "minutes": 4.9, "map50": 0.8123}
    rows = [row, {"trainer": "other", "network": "n", "error": "other ended with code 1: a | b"}]
    measured("peers", {"machine": MACHINE, "settings": {"minutes": 5}, "rows": rows})
    table = tables.table_text("peers")
    assert "| this project | yolov7-tiny | 6.01 | 3.25 | 12.3 | 16.6 | 20 | 4.9 | 0.812 |" in table
    assert "| other | n | other ended with code 1: a \\| b |  |" in table
    tables.results.cache_clear()
    measured("peers", {"machine": MACHINE, "settings": {"minutes": 0}, "rows": [row]})
    assert "| 12.3 | 16.6 |\n" in tables.table_text("peers")


MADE = {  # what the benchmarks without a list of ratios write, and a line that it becomes
    "tuning": ({"choice": {"speedup": 1.4, "of_best": 1.02}}, "| tune's choice, times the default's speed | 1.40 |"),
    "slicing": (
        {"recall": {"whole": 0.1, "sliced": 0.8}, "boxes": {"whole": 4, "sliced": 19}, "small": 9},
        "| `--slice` | 0.800 | 19 |",
    ),
    "detr": ({"epochs": 12, "untrained": 0.0, "trained": 0.425, "minutes": 2.2}, "| 12 epochs | 0.425 |"),
}


@pytest.mark.parametrize("name", MADE)
def test_tables_of_other_shapes(name, measured):
    found, line = MADE[name]
    measured(name, {"machine": MACHINE, **found})
    assert line in tables.table_text(name)


def test_every_table_stands_in_a_document():
    shown = "".join(path.read_text(encoding="utf-8") for path in tables.documents())
    assert all(f"<!-- table: {name} -->" in shown for name in tables.TABLES)
