"""How a user's mistake is reported: one sentence, no traceback, exit code 2."""

import io
import signal
import sys
from collections.abc import Callable


class UserError(Exception):
    """Something the user can fix. The message names the file, line, key or flag, and the remedy."""


def run_command(main: Callable[[], int | None]) -> None:
    """Run a command's `main` and exit with its code; a `UserError` becomes one line on stderr and exit code 2.

    Ctrl-C, where nothing else takes care of it, ends with the conventional 130. Printed lines show at once, also
    through a pipe or in a log.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        sys.exit(main() or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
