"""Runs cases in forked children that are held to 10 seconds and 1 GiB a case, and judges how each one ended."""

import contextlib
import ctypes
import gc
import io
import json
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from tests.fuzz.target import Target
from yolov7fast.core.errors import LONGEST, UserError, one_line

HANGS = 600.0  # seconds on the clock after which a case hangs, however busy the machine is
ADDRESSES = 3 << 30  # bytes of address space, which threads and libraries take generously
SEED = 20261117
AT_ONCE = 100  # cases of one child
ANONYMOUS = ("RssAnon", "RssShmem", "VmSwap")  # memory of the process, as opposed to pages of mapped files
C_LIBRARY = ctypes.CDLL(None)


class Limits(NamedTuple):
    """What a case may take: seconds of CPU time (other work on the machine does not count) and bytes of memory."""

    seconds: float = 10.0
    memory: int = 1 << 30


LIMITS = Limits()


class Result(NamedTuple):
    """How a case ended. problem: why it does not pass; refused: whether one line said that the file cannot be used."""

    case: int
    target: str
    mutation: str
    problem: str
    refused: bool
    seconds: float  # of CPU time
    memory: int  # bytes taken at the peak


@dataclass(frozen=True)
class Case:
    number: int
    target: Target
    path: Path  # the file that is damaged
    original: bytes

    def mutated(self) -> tuple[bytes, str]:
        rng = random.Random(f"{SEED} {self.number}")
        mutation = rng.choice(self.target.mutations)
        return mutation(self.original, rng), mutation.__name__


class Files:
    """Sound files of every kind below a folder, made here; cases damage them, so their content is kept."""

    def __init__(self, folder: Path, targets: Sequence[Target]):
        self.folder, self.targets = folder, targets
        for target in targets:
            (folder / target.name).mkdir()
            target.make(folder / target.name)
        paths = {target.name: target.path(folder) for target in targets}
        self.content = {name: (path, path.read_bytes()) for name, path in paths.items()}
        self.wheel = [target for target in targets for _ in range(target.weight)]
        random.Random(SEED).shuffle(self.wheel)

    def cases(self, numbers: Sequence[int]) -> list[Case]:
        """Case k is of the same target with the same mutation whatever else runs."""
        picked = [(number, self.wheel[number % len(self.wheel)]) for number in numbers]
        return [Case(number, target, *self.content[target.name]) for number, target in picked]

    def sound(self) -> list[Case]:
        """One case for each target that leaves its file as it is."""
        kept = [replace(target, mutations=(same,)) for target in self.targets]
        return [Case(number, target, *self.content[target.name]) for number, target in enumerate(kept)]

    def run(self, todo: Sequence[Case], limits: Limits = LIMITS) -> list[Result]:
        return run_all(todo, self.folder, limits)


def same(content: bytes, rng: random.Random) -> bytes:
    return content


def run_all(todo: Sequence[Case], folder: Path, limits: Limits = LIMITS) -> list[Result]:
    """Every case, in order; a child that hangs or dies costs its case alone."""
    results: list[Result] = []
    while len(results) < len(todo):
        results += [Result(*line) for line in run_child(todo[len(results) : len(results) + AT_ONCE], folder, limits)]
    return results


def run_drawn(name: str, path: Path, draw: Callable[[int], tuple[bytes, Callable]], count: int, folder: Path):
    """Results of `count` cases for the file `path`, below folder/name; draw(number) returns its content and its use."""

    def case(number: int) -> SimpleNamespace:
        content, use = draw(number)
        target = SimpleNamespace(name=name, use=use)
        return SimpleNamespace(number=number, target=target, path=path, mutated=lambda: (content, "drawn"))

    starts = range(0, count, AT_ONCE)
    results = [r for k in starts for r in run_all([case(n) for n in range(k, min(k + AT_ONCE, count))], folder)]
    problems = [f"{r.case}: {r.problem}" for r in results if r.problem]
    print(f"{name}: {len(results)} files, {sum(r.refused for r in results)} refused, {len(problems)} problems")
    assert len(results) == count and not problems, "\n".join(problems[:20])
    return results


def run_child(todo: Sequence[Case], folder: Path, limits: Limits) -> Iterator[list]:
    """The results of the cases up to the first that takes too long or kills its process, that one included."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        child(todo, folder, limits, writer)
    os.close(writer)
    done, text, problem = 0, b"", ""
    try:
        while done < len(todo) and not problem:
            if not select.select([reader], [], [], HANGS)[0]:
                problem = f"hangs for more than {HANGS:g} s"
            elif not (block := os.read(reader, 1 << 16)):
                problem = "its process died"
            else:
                *lines, text = (text + block).split(b"\n")
                for line in lines:
                    yield json.loads(line)
                    done += 1
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)  # of an ended one that was not waited for, this does nothing
        _, status = os.waitpid(pid, 0)
    if problem and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        problem = f"took more than {limits.seconds:g} s"
    if problem:
        case = todo[done]
        yield [case.number, case.target.name, case.mutated()[1], problem, False, limits.seconds, 0]


def child(todo: Sequence[Case], folder: Path, limits: Limits, writer: int) -> None:
    """Never returns: the process belongs to the cases."""
    import torch

    torch.set_num_threads(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - what a test runner put in their place is not for a child
    limit = memory("VmSize") + ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    gc.freeze()
    for case in todo:
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, limits.seconds)  # its signal ends the process, whatever it is in
        try:
            mutation, problem, refused, taken = judge(case, folder)
        except BaseException as error:
            mutation, problem, refused, taken = "", f"{type(error).__name__}: {error}"[:500], False, 0
        if not problem and taken > limits.memory:
            problem = f"took {taken >> 20} MiB"
        seconds = time.process_time() - started
        result = Result(case.number, case.target.name, mutation, problem, refused, seconds, taken)
        os.write(writer, json.dumps(result).encode() + b"\n")
    os._exit(0)


def judge(case: Case, folder: Path) -> tuple[str, str, bool, int]:
    """(mutation, problem, refused, bytes taken): write the file, use it, look at what came of it."""
    content, mutation = case.mutated()
    path = case.path
    path.write_bytes(content)
    gc.collect()
    C_LIBRARY.malloc_trim(0)  # freed memory that malloc keeps would hide what the case takes
    forget_peak()
    before, files, problem, refused = memory(*ANONYMOUS), memory("RssFile"), "", False
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            case.target.use(folder / case.target.name)
    except UserError as error:
        refused, problem = True, fault_of(f"error: {one_line(error)}", path, folder)
    except SystemExit:  # a parser of flags has printed the line itself
        refused, problem = True, fault_of(printed.getvalue().strip(), path, folder)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[:-6:-1])
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]} [{place}]"
    # pages of mapped files that the kernel took back in the meantime would hide as many that the case took
    peak = memory("VmHWM", "VmSwap") - min(files, memory("RssFile"))
    return mutation, problem, refused, max(peak, memory(*ANONYMOUS)) - before


def fault_of(line: str, path: Path, folder: Path) -> str:
    """What is wrong with the line that refuses a file, or nothing."""
    if not line.startswith("error: ") or len(line) > LONGEST or not line.isprintable():
        return f"no line of at most {LONGEST} characters: {line[:300]!r}"
    named = path.name in line or str(path.relative_to(folder).parts[0]) in line
    return "" if named else f"the message does not name the file: {line}"


def memory(*fields: str) -> int:
    """The sum in bytes, of VmSize, VmHWM (the peak of VmRSS), its parts RssAnon, RssShmem and RssFile, or VmSwap."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(lines[field].split()[0]) for field in fields) << 10


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
