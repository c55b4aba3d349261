"""Compare training runs: accuracy, losses, time, cost, settings, and a recommendation by use case.

    yolov7fast compare runs/train/A runs/train/B --rate 1.5

Writes report.html (one page) and report.md (the same without curves) to the output folder.
"""

from pathlib import Path

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import as_user_error, write_atomically
from yolov7fast.core.files.paths import increment_path
from yolov7fast.core.programs import program
from yolov7fast.reports.comparison import build_report
from yolov7fast.reports.html_page import ComparisonReport, section_markdown, to_html, to_markdown
from yolov7fast.reports.run_results import read_runs


def write_report(report: ComparisonReport, folder: Path) -> list[Path]:
    """The files of a report below `folder`, each written atomically; returns Markdown and HTML."""
    folder.mkdir(parents=True, exist_ok=True)
    page, text = folder / "report.html", folder / "report.md"
    write_atomically(text, to_markdown(report))
    write_atomically(page, to_html(report))
    return [text, page]


def main() -> int:
    parser = program("compare").parser("Compare training runs in Markdown and on one HTML page.")
    parser.add_argument("runs", nargs="+", help="run folders, such as runs/train/exp")
    parser.add_argument("--rate", type=float, help="price of the machine per hour, for the costs")
    parser.add_argument("--output", type=Path, help="folder to write to (default: runs/compare/exp, exp2, ...)")
    opt = parser.parse_args()
    if opt.rate is not None and not opt.rate >= 0:
        raise UserError(f"--rate {opt.rate} is out of range: it is a price per hour")
    report = build_report(read_runs(opt.runs), opt.rate)
    folder = opt.output or increment_path(Path("runs/compare/exp"), exist_ok=False)
    with as_user_error(folder):
        written = write_report(report, folder)
    for path in written:
        print(f"written: {path}")
    print("\n" + section_markdown(report.sections[-1]).replace("**", ""))
    return 0
