"""All checks in order, each within its section; what fails by itself is a red line and stops nothing else."""

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from tqdm import tqdm

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.process.output import quiet
from yolov7fast.diagnostics import batches, correctness, environment, host_syncs, resuming, speed
from yolov7fast.diagnostics.results import FAILED, LEFT_OUT, Line, Report, line_text
from yolov7fast.diagnostics.setting import Setting
from yolov7fast.diagnostics.steps import KINDS
from yolov7fast.training.reporting.facts import machine_facts


class Check(NamedTuple):
    section: str
    name: str
    run: Callable[[Setting], Line | list[Line]]


def all_checks() -> list[Check]:
    """The machine first, then what is quick; the longest last."""
    found = [Check("environment", _name(run), run) for run in environment.CHECKS]
    found += [Check("host syncs", kind.name, partial(host_syncs.check_steps, kind)) for kind in KINDS]
    found += [Check("correctness", _name(run), run) for run in correctness.CHECKS]
    found.append(Check("correctness", "shared batches", batches.check_shared_batches))
    found.append(Check("speed", "speed", speed.check_speed))
    found.append(Check("correctness", "kill and resume", resuming.check_resume))
    return found


def _name(run: Callable) -> str:
    return run.__name__.removeprefix("check_").replace("_", " ")


def sections() -> list[str]:
    return list(dict.fromkeys(check.section for check in all_checks()))


def run_checks(setting: Setting, minutes: float, wanted: Iterable[str] = (), checks: Sequence[Check] = ()) -> Report:
    """Run and print them. minutes: no check begins later; wanted: sections, all if empty."""
    start, chosen = time.monotonic(), set(wanted) or set(sections())
    report = Report(setting.device.type, machine_facts(setting.device))
    begun = tqdm([c for c in checks or all_checks() if c.section in chosen], desc="checking", mininterval=1)
    with quiet("yolov7fast"), begun as bar:  # what networks and optimizers are made of is no news here
        for check in bar:
            bar.set_postfix_str(check.name, refresh=False)
            if time.monotonic() - start > 60 * minutes:
                report.out_of_time += 1
                report.add(check.section, Line(check.name, LEFT_OUT, f"no time left (--minutes {minutes:g})"))
                continue
            for line in outcome(check, setting):
                report.add(check.section, line)
                tqdm.write(line_text(line))
    report.seconds = time.monotonic() - start
    return report


def outcome(check: Check, setting: Setting) -> list[Line]:
    """The lines of a check; whatever it raises is its red line, with the place."""
    try:
        found = check.run(setting)
    except UserError as error:
        return [Line(check.name, FAILED, one_line(error))]
    except Exception as error:  # a broken driver raises anything; the other checks say more
        frames = traceback.extract_tb(error.__traceback__)
        places = tuple(f"{frame.filename}:{frame.lineno} ({frame.name})" for frame in reversed(frames[-3:]))
        text = f"{type(error).__name__}: {one_line(error, 300)}"
        return [Line(check.name, FAILED, text, "report this line with the JSON file", places)]
    return found if isinstance(found, list) else [found]
