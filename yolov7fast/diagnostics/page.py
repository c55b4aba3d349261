"""The report as one page of HTML."""

from yolov7fast.diagnostics.results import FAILED, LEFT_OUT, PASSED, STATUSES, Report
from yolov7fast.pages.render import render


def as_page(report: Report, title: str = "GPU check") -> str:
    red = [(section, line) for section, lines in report.sections.items() for line in lines if line.status == FAILED]
    counts = [(status, report.count(status)) for status in (FAILED, PASSED, LEFT_OUT)]
    return render("check.html", title=title, report=report, red=red, counts=counts, order=STATUSES)
