"""Damaged files of every kind that the project reads: each is used rightly, or one line says what is wrong with it."""

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
    block = bytearray(400 << 20)
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


def test_memory_that_malloc_keeps_hides_no_greedy_case(tmp_path):
    def use(folder):  # what the first case frees stays in the heap, as in a process that loads images
        keep_freed_memory()
        blocks = [bytearray(20 << 20) for _ in range(22)]
        for block in blocks:
            block[::4096] = b"x" * len(block[::4096])
        del block, blocks
        greedy(folder)

    files = Files(tmp_path, [Target("kind", "file.txt", (same,), text("file.txt", "content"), use)])
    results = files.run(files.cases([5, 6]), Limits(memory=MEMORY))
    assert all(" MiB" in result.problem for result in results), results
