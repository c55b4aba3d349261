"""How a user's mistake is told: one sentence, no traceback, exit code 2."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """Something the user can mend. The message names the file, line, key or flag, and the remedy."""


def run_command(main: Callable[[], int | None]) -> None:
    """Run a command's `main` and exit with its code; a `UserError` becomes one line on stderr and exit code 2."""
    try:
        sys.exit(main() or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
