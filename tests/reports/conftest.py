"""The recorded study as run folders, as a report, and written to files."""

import pytest

from tests.reports.recorded_study import STUDY, write_run
from yolov7fast.cli.commands.compare_runs import write_report
from yolov7fast.reports.comparison import build_report
from yolov7fast.reports.run_results import read_runs


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [write_run(folder / name, values) for name, values in STUDY.items()]


@pytest.fixture(scope="module")
def report(study):
    return build_report(read_runs(study), 1.5)


@pytest.fixture(scope="module")
def written(report, tmp_path_factory):
    return write_report(report, tmp_path_factory.mktemp("report"))
