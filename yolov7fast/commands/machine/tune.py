"""Which flags are fastest on this machine, with this data? Short interleaved runs; the answer is a run file for
`train.py --config`. Flags that change results are measured and chosen with --allow-changes alone."""

import argparse
import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from yolov7fast.cli.checks import check_limits, check_train
from yolov7fast.cli.flags import Flag, flags_of
from yolov7fast.cli.parser import Parser
from yolov7fast.cli.programs import program
from yolov7fast.cli.run_file import read_run_file
from yolov7fast.cli.values import AUTO
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.process.output import quiet
from yolov7fast.core.process.waiting import wait_briefly

own = partial(Flag, group="tuning")
OUTPUT = "configs/this_machine.yaml"
WAITING_PART = 0.25  # of the time, the longest that one trial of a way in which threads wait may take
WAITING_ROUNDS, CHILD_ITERATIONS = 2, 5
TUNE_FLAGS = [
    own("--minutes", float, 3.0, "about how long it may take", low=0.01),
    own("--allow-changes", bool, False, "measure and choose flags that change results, too: precision, pixels"),
    own("--output", str, OUTPUT, "run file to write"),
    own("--json", str, "", "write the table to this file, too"),
]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser([*flags_of("train").values(), *TUNE_FLAGS], prog=program("tune").invocation, description=__doc__)
    parser.set_defaults(cfg="cfg/training/yolov7-tiny.yaml", hyp="data/hyp.scratch.tiny.yaml", data="")
    opt = parser.parse_args(argv)
    check_train(opt)
    check_limits(opt, {flag.dest: flag for flag in TUNE_FLAGS})
    if not opt.data:
        raise UserError("--data is missing: which flags are fastest depends on the images")
    if opt.batch_size == AUTO:
        raise UserError("--batch-size auto: give the number of images that the run will train with")
    opt.noautoanchor, opt.synthetic = True, False
    return opt


def child_options(opt: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """What a trial in another process is given; all of it can be written as JSON."""
    plain = {name: value for name, value in vars(opt).items() if name != "given"}
    return {**plain, "given": [], "targets": 17, "class_names": list(names), "iterations": CHILD_ITERATIONS}


def main(argv: Sequence[str] | None = None) -> int:
    opt = parse(argv)
    wait_briefly()
    from yolov7fast.core.device import select_device
    from yolov7fast.data.data_yaml import load_data_yaml
    from yolov7fast.data.labels import find_images
    from yolov7fast.families.registry import family_class
    from yolov7fast.tuning import report, waiting
    from yolov7fast.tuning.dimensions import Flags, dimensions
    from yolov7fast.tuning.search import Search, Trial
    from yolov7fast.tuning.trials import ChildTrial, TrainingTrial, ValidationTrial, trial_batch

    family_class("yolo").check_files(opt)
    device = select_device(opt.device)
    data = load_data_yaml(opt.data, allow_download=opt.allow_download)
    until, found, busy = time.monotonic() + opt.minutes * 60, None, waiting.busy_fraction()
    run_batch = opt.batch_size
    opt.test_batch_size = opt.test_batch_size or 2 * run_batch
    with quiet("yolov7fast"):
        opt.batch_size = trial_batch(opt, data, device)
    if opt.batch_size < run_batch:
        print(f"iterations of batch {run_batch} are slow here: trials use batch {opt.batch_size}")
    options = child_options(opt, data.names)
    if device.type == "cpu":
        try:
            found = waiting.measure_waiting(options, WAITING_ROUNDS, max(opt.minutes * 60 * WAITING_PART, 10))
        except TimeoutError as error:
            print(f"ways of waiting are not compared: {error}")

    def make_trial(kind: str, flags: Flags) -> Trial:
        if kind == "compile":
            return ChildTrial(options, flags, max(search.until - search.clock(), 1))
        return (ValidationTrial if kind == "validation" else TrainingTrial)(opt, data, device, flags)

    images = len(find_images(data.split("train"))) * opt.epochs
    search = Search(make_trial, until - time.monotonic(), images, opt.allow_changes)
    questions = dimensions(os.cpu_count() or 1, run_batch, device.type == "cuda", opt.seed is not None)
    with quiet("yolov7fast"):
        chosen = search.run(questions)
    print("\n" + report.table(search.rows))
    if found:
        print(f"\n{report.waiting_table(found)}\n{waiting.verdict(found, busy)}")
    about = f"{Path(opt.cfg or opt.weights).stem}, {opt.img_size[0]} pixels, batch {run_batch}, {opt.data}"
    Path(opt.output).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(opt.output, report.run_file(chosen, about))
    read_run_file(opt.output, flags_of("train"), "yolo")  # what is written can be read
    if opt.json:
        rows = [row._asdict() | {"setting": dict(row.setting), "effect": row.effect.value} for row in search.rows]
        written = {"chosen": chosen, "rows": rows, "busy": busy, "waiting": found.seconds if found else {}}
        write_atomically(opt.json, json.dumps(written, indent=2) + "\n")
    flags = report.setting_text(chosen) or "the defaults"
    use = f"{program('train').invocation} --config {quote(str(opt.output))}"
    print(f"\nfastest: {flags}\nwritten: {opt.output}; use it with: {use}")
    return 0
