"""Damaged files of every kind that the project reads: each is used rightly, or one line says what is wrong with it."""

import mmap
import os
import sys
from collections import Counter

import pytest

from tests.fuzz.runner import Files, Limits, Result, same
from tests.fuzz.target import Target, text
from tests.fuzz.targets import DETR, TARGETS
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.core.errors import UserError
from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.nn import detr_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="holds cases to limits by Linux's means")
QUICK, ALL, AT_A_TIME = 200, 5000, 500
MEMORY = 100 << 20  # bytes that a greedy case may take
TAKEN: list = []  # by greedy cases, each in its own process


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("fuzz"), TARGETS)


def listed(results: list[Result]) -> str:
    kinds = Counter(result.problem for result in results if result.problem)
    held = sum(not result.problem for result in results)
    lines = [
        f"{result.case} {result.target} ({result.mutation}): {result.problem}" for result in results if result.problem
    ]
    return f"{held} of {len(results)} cases held, {len(kinds)} kinds of problems:\n" + "\n".join(lines[:40])


def check(numbers: range, files: Files) -> None:
    results = files.run(files.cases(numbers))
    assert [result.case for result in results] == list(numbers)
    assert not any(result.problem for result in results), listed(results)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", range(0, QUICK, 100))
def test_damaged_files_are_used_rightly_or_refused_in_one_line(files, start):
    check(range(start, start + 100), files)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", range(0, ALL, AT_A_TIME))
def test_many_damaged_files(files, start):
    check(range(start, start + AT_A_TIME), files)


@needs_transformers
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_damaged_checkpoints_of_detr(tmp_path):
    assert detr_model.transformers().AutoConfig  # loaded here, once for all children
    check(range(200), Files(tmp_path, DETR))


def test_sound_files_are_used_without_complaint(files):
    results = files.run(files.sound())
    assert [result.target for result in results] == [target.name for target in TARGETS]
    complaints = [result for result in results if result.problem or result.refused]
    assert not complaints


# --- what the cases are held to ---------------------------------------------------------------------------------------


def endless(folder):
    while True:
        pass


def greedy(folder):
    """New pages that stay in use: neither the state of the heap nor a machine that swaps makes a difference."""
    TAKEN.append(mmap.mmap(-1, 400 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    fill(TAKEN[-1])


def fill(block):
    block[::4096] = b"x" * len(block[::4096])


def broken(folder):
    raise KeyError("name")


def talkative(folder):
    raise UserError("a file is wrong")


def silent(folder):
    raise UserError("file.txt is wrong")


@pytest.mark.parametrize(
    "use, problem",
    [
        (endless, "took more than"),
        (greedy, " MiB"),
        (broken, "KeyError: 'name'"),
        (talkative, "does not name the file"),
        (silent, ""),
    ],
)
def test_a_case_fails_by_time_memory_tracebacks_and_messages_that_name_no_file(tmp_path, use, problem):
    files = Files(tmp_path, [Target("kind", "file.txt", (same,), text("file.txt", "content"), use)])
    (result,) = files.run(files.cases([5]), Limits(1.0 if use is endless else 10.0, MEMORY))
    assert (result.case, result.target, result.refused) == (5, "kind", use in (talkative, silent))
    assert problem in result.problem and bool(problem) == bool(result.problem), result


def free_in_the_heap(folder):
    """As in a process that loads images: malloc keeps what is freed."""
    keep_freed_memory()
    blocks = [bytearray(20 << 20) for _ in range(22)]
    for block in blocks:
        fill(block)


def map_a_file(folder):
    file = folder / "large"
    file.touch()
    os.truncate(file, 400 << 20)
    with open(file, "rb") as opened:
        TAKEN.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    assert not any(TAKEN[-1][::4096])


def take_from_the_heap(folder):
    TAKEN.append(bytearray(400 << 20))
    fill(TAKEN[-1])


def take_as_a_file_leaves(folder):
    TAKEN.pop().close()
    greedy(folder)


@pytest.mark.parametrize("hide, take", [(free_in_the_heap, take_from_the_heap), (map_a_file, take_as_a_file_leaves)])
def test_no_memory_of_earlier_cases_hides_a_greedy_one(tmp_path, hide, take):
    """What malloc keeps is used again, and mapped pages of files leave the process: neither lowers what was taken."""
    uses = iter((hide, take))
    target = Target("kind", "file.txt", (same,), text("file.txt", "content"), lambda folder: next(uses)(folder))
    files = Files(tmp_path, [target])
    _, greedy_one = files.run(files.cases([5, 6]), Limits(memory=MEMORY))
    assert " MiB" in greedy_one.problem, greedy_one
