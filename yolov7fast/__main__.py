"""`yolov7fast COMMAND [flags]`, also as `python -m yolov7fast`: the entry point of all commands in `core.programs`."""

import sys

from yolov7fast import __version__
from yolov7fast.checkpoint.families import FAMILIES
from yolov7fast.core.errors import UserError, run_command
from yolov7fast.core.programs import PACKAGE, PROGRAMS, Program, program_of
from yolov7fast.core.text import nearest

HELP = ("-h", "--help", "help")


def programs() -> list[Program]:
    """The table of commands, with `train-NAME` for each family without a row."""
    return [*PROGRAMS, *(row for row in (program_of("train", name) for name in FAMILIES) if row not in PROGRAMS)]


def overview() -> str:
    width = max(len(row.name) for row in programs()) + 2
    rows = "\n".join(f"  {row.name:{width}}{row.summary}" for row in programs())
    return f"usage: {PACKAGE} COMMAND [flags]\n\n{rows}\n\n{PACKAGE} COMMAND --help shows the flags of a command."


def chosen(name: str) -> Program:
    known = {row.name: row for row in programs()}
    if name in known:
        return known[name]
    suggestion = nearest(name, known)
    raise UserError(f"unknown command '{name}'{suggestion or f' ({PACKAGE} --help lists them)'}")


def run(arguments: list[str]) -> int | None:
    """Run the command named by the first argument; it reads its flags from sys.argv, as a script does."""
    if not arguments or arguments[0] in HELP:
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    row = chosen(arguments[0])
    sys.argv = [f"{PACKAGE} {row.name}", *arguments[1:]]
    return row.run()


def main() -> None:
    run_command(lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    main()
