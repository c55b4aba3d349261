"""The shell of the documents: every ```bash block as commands, and which program and flags each of them names.

A block with a line `<!-- not run: WHY -->` above it is parsed like the others, but no test runs it.
"""

import argparse
import contextlib
import importlib
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from yolov7fast.core.programs import PROGRAMS, Program

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "VAST_SETUP.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
)
BLOCK = re.compile(r"(?:^ *<!-- not run: (?P<why>[^\n]+?) -->\n)?^ *```bash\n(?P<text>.*?)^ *```$", re.S | re.M)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.S)
REDIRECTION = re.compile(r"[<>]+&?")
KEYWORDS = {"time", "nohup", "until", "do", "done", "while", "then", "fi"}
# programs of the system: that they exist is not this project's business
SYSTEM = {"pip", ".venv/bin/pip", "git", "cd", "ssh", "tmux", "rsync", "export", "touch", "sleep", "command", "apt-get"}
SYSTEM |= {"[", "{", "}", "]", "source", "optuna-dashboard", "ssh-keygen", "vastai", "tr", "grep", "sed"}
MODULES = {"pip", "http.server", "venv", "pytest", "torch.distributed.launch"}
MODULES |= {"models.yolo"}  # run by tests/nn/test_summary.py
ONSTART = "vast_onstart.sh"  # takes the flags of train.py
ALONE = ("docs/detect_onnx.py",)  # a program for readers to copy, without a parser
MADE_THERE = {"docs/extending.md": ["train-spots"]}  # commands that a page teaches to make


class Command(NamedTuple):
    """One simple command: `A=1 python train.py --img 320`."""

    document: str
    environment: dict[str, str]
    words: list[str]

    def __str__(self) -> str:
        return shlex.join(self.words)


class Block(NamedTuple):
    document: str
    why: str  # why it is not run; empty if it is
    commands: list[Command]


def blocks_of(document: str) -> list[Block]:
    found = BLOCK.finditer((ROOT / document).read_text(encoding="utf-8"))
    return [Block(document, block["why"] or "", list(commands(document, block["text"]))) for block in found]


def commands(document: str, text: str) -> Iterator[Command]:
    """Simple commands of a block: separators, redirections and the words of loops are the shell's."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
        lexer.commenters, lexer.whitespace_split = "#", True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word and set(word) <= set(";&|()"):
                command = simple(document, words)
                if command:
                    yield command
                words = []
            else:
                words.append(word)


def simple(document: str, words: list[str]) -> Command | None:
    words = words[: next((i for i, word in enumerate(words) if REDIRECTION.fullmatch(word)), len(words))]
    environment = {}
    while words and (words[0] in KEYWORDS or ASSIGNMENT.fullmatch(words[0])):
        name, sign, value = words[0].partition("=")
        environment |= {name: value} if sign else {}
        words = words[1:]
    return Command(document, environment, words) if words else None


class Parsed(Exception):
    """A parser has understood its command line: all that was asked."""


@contextlib.contextmanager
def only_parsing() -> Iterator[None]:
    """Inside, a program ends as soon as its flags are understood."""
    whole = argparse.ArgumentParser.parse_args

    def parse_args(self, args=None, namespace=None):
        whole(self, args, namespace)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        with contextlib.suppress(Parsed):
            yield


def program_of_script(script: str) -> Program:
    program = next((row for row in PROGRAMS if row.script == script), None)
    assert program, f"no program has the script {script}"
    return program


def program_of_name(name: str) -> Program:
    program = next((row for row in PROGRAMS if row.name == name), None)
    assert program, f"yolov7fast {name} does not exist"
    return program


def check(command: Command) -> None:
    """Assert that program, script and flags of a command exist."""
    first, *rest = command.words
    if first == "torchrun":
        rest = launched(rest)
        first = "python"
    if first in ("python", "python3"):
        check_python(rest)
    elif first == "yolov7fast":
        if rest[0] not in ("--help", *MADE_THERE.get(command.document, ())):
            check_flags(program_of_name(rest[0]), rest[1:])
    elif first == "make":
        check_make(rest)
    elif first == "bash" or first.startswith("scripts/"):
        script, *flags = rest if first == "bash" else [first, *rest]
        assert (ROOT / script).is_file(), script
        if Path(script).name == ONSTART:
            check_flags(program_of_script("train.py"), flags)
    else:
        assert first in SYSTEM, f"{command.document}: unknown program {first}"


def launched(words: Sequence[str]) -> list[str]:
    """What torchrun starts: from the script or -m on."""
    start = next(i for i, word in enumerate(words) if word.endswith(".py") or word == "-m")
    return list(words[start:])


def check_python(words: list[str]) -> None:
    script, *flags = words
    if script == "-m":
        module, *flags = flags
        if module == "yolov7fast":
            check_flags(program_of_name(flags[0]), flags[1:])
        elif module not in MODULES:
            parse_by(program_of_module(module).main, module, flags)
        return
    assert (ROOT / script).is_file(), f"{script} does not exist"
    if script not in ALONE:
        check_flags(program_of_script(script), flags)


def program_of_module(name: str) -> ModuleType:
    """What `python -m NAME` runs: the module, or a package's __main__."""
    module = importlib.import_module(name)
    return importlib.import_module(f"{name}.__main__") if hasattr(module, "__path__") else module


def check_flags(program: Program, flags: list[str]) -> None:
    flags = [flag for flag in flags if flag != "..."]
    if program.name == "overlay":  # behind -- stands a script of the checkout, with upstream's flags
        flags = flags[: flags.index("--")] if "--" in flags else flags
    parse_by(program.run, program.name, flags)


def parse_by(main, name: str, flags: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *flags])
        try:
            with only_parsing():
                main()
        except SystemExit as end:
            assert not end.code, f"{name} {shlex.join(flags)}: {end.code}"
        else:
            return
        assert {"-h", "--help"} & set(flags), f"{name} took no flags from its command line"


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for word in words:
        name, sign, value = word.partition("=")
        if name == "ARGS":
            check_flags(program_of_script("train.py"), shlex.split(value))
        elif not sign:
            assert word in targets, f"make {word} does not exist"
