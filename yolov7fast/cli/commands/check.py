"""Check this machine for training: environment, host syncs, correctness against the CPU, speed, exact resume.

Takes less than 5 minutes on a GPU. Prints one line for each check and writes the same to check.md, which can be pasted
into an issue. Exit code 0: every check passed; 4: a check failed. Checks that need a GPU are skipped without one.
"""

import argparse
import logging
import os
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from yolov7fast.core.device import select_device
from yolov7fast.core.errors import one_line
from yolov7fast.core.files.atomic import as_user_error, write_atomically
from yolov7fast.core.process.output import logging_at
from yolov7fast.core.programs import program
from yolov7fast.core.text import printable
from yolov7fast.machine import gpu_check
from yolov7fast.machine.gpu_check import FAILED, CheckLine
from yolov7fast.machine.speed_check import check_speed
from yolov7fast.training.logging.page import machine_facts

SECTIONS = {
    "environment": gpu_check.check_environment,
    "host-syncs": gpu_check.check_host_syncs,
    "correctness": gpu_check.check_correctness,
    "speed": check_speed,
    "resume": gpu_check.check_resume,
}
EXIT_FAILED = 4  # 1 is Python's own, 2 a mistake in the command, 3 a warning


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = program("check").parser(__doc__)
    parser.add_argument("--device", default="", help="a GPU's number, or cpu; default: the first GPU, else the CPU")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--output", default="runs/check", help="folder for check.md")
    return parser.parse_args(argv)


def run_section(name: str, device: torch.device, folder: Path) -> list[CheckLine]:
    """Print and return the lines of a section; an exception becomes a failed line and stops this section only."""
    lines = []

    def add(line: CheckLine) -> None:
        lines.append(line)
        remedy = f"\n        -> {line.remedy}" if line.remedy else ""
        tqdm.write(f"{line.status:>7} {line.name}: {printable(line.text)}{remedy}")

    try:
        for line in SECTIONS[name](device, folder):
            add(line)
    except Exception as error:  # a broken driver may raise any exception; the other sections still run
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {one_line(error, 300)} ({Path(frame.filename).name}:{frame.lineno})"
        add(CheckLine(name, FAILED, text, "report this line in an issue"))
    return lines


def markdown(facts: Mapping[str, str], sections: Mapping[str, Sequence[CheckLine]], verdict: str) -> str:
    """The report as Markdown for an issue."""
    rows = [f"## YOLOv7 Fast: check of a machine\n\n{verdict}\n", "| machine | |", "| --- | --- |"]
    rows += [f"| {name} | {_cell(value)} |" for name, value in facts.items() if name != "Machine"]  # without host name
    for name, lines in sections.items():
        rows += [f"\n| {name} | | |", "| --- | --- | --- |"]
        for line in lines:
            remedy = f" -> {line.remedy}" if line.remedy else ""
            rows.append(f"| {line.status} | {line.name} | {_cell(line.text + remedy)} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("<", "&lt;")


def main(argv: Sequence[str] | None = None) -> int:
    opt = parse(argv)
    output = Path(opt.output)
    with as_user_error(output):
        output.mkdir(parents=True, exist_ok=True)
    if not opt.device:  # one GPU, in this process and in its children
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    # a GPU that torch cannot use is reported as a line, not as an error
    device = select_device(opt.device) if opt.device or torch.cuda.is_available() else torch.device("cpu")
    sections = {}
    with tempfile.TemporaryDirectory(prefix="yolov7fast_check_") as scratch, logging_at(logging.WARNING, "yolov7fast"):
        for name in tqdm(opt.only, desc="checking"):
            sections[name] = run_section(name, device, Path(scratch))
    states = [line.status for lines in sections.values() for line in lines]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    verdict = f"{device.type}: {counts}"
    write_atomically(output / "check.md", markdown(machine_facts(device), sections, verdict))
    print(f"\n{verdict}\nwritten: {output / 'check.md'}")
    return EXIT_FAILED if FAILED in states else 0
