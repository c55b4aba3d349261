"""Destinations of `--mirror`: a local folder, a folder of another machine (rsync over SSH), or a remote of rclone.

Each destination copies folders: `put` all files of one, `differing` names those that were not copied correctly, `get`
fetches all. A file is replaced as a whole, so an interrupted copy leaves the old content or the new.
"""

import os
import re
import shlex
import shutil
import tempfile
import threading
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_path
from yolov7fast.core.process.background import run_limited
from yolov7fast.core.text import printable

COPY_SECONDS = 3600.0  # after which a copy is stopped and tried again
QUIET_SECONDS = 60  # without a byte from the other side
SSH = f"ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval={QUIET_SECONDS // 3}"
REMOTE = re.compile(r"\w[^/:]*@[^/:]+:.*|\w[\w .+-]*:.*")  # not `:backend,option=...:path`, which can name a command
INSTALL = {
    "rsync": "apt-get install -y rsync openssh-client",
    "ssh": "apt-get install -y rsync openssh-client",
    "rclone": "apt-get install -y rclone, then rclone config",
}


class CopyError(Exception):
    """Why a copy failed, in one line."""


def is_remote(text: str) -> bool:
    """Whether the text names another machine or a remote: `user@host:path`, `remote:path`; a local one: `./a:b`."""
    return bool(REMOTE.fullmatch(text)) and not Path(text).exists()


def destination(text: str) -> "LocalFolder":
    """The destination of --mirror or --resume; a missing program is reported with the command that installs it."""
    if not is_remote(text):
        return LocalFolder(text)
    made = SshFolder(text) if "@" in text.partition(":")[0] else RcloneFolder(text)
    for program in made.programs:
        if shutil.which(program) is None:
            raise UserError(f"--mirror {printable(text, 200)}: {program} is not installed: {INSTALL[program]}")
    return made


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def files_below(folder: Path) -> list[str]:
    """The names of all files in a folder, relative to it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


class LocalFolder:
    """A folder of this machine, such as a mounted disk."""

    programs: Sequence[str] = ()

    def __init__(self, text: str):
        self.text = text
        self.stopped = threading.Event()  # ends a running program

    def put(self, folder: Path) -> None:
        for name in files_below(folder):
            target = Path(self.text) / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(target) as temporary:
                    shutil.copyfile(folder / name, temporary)
            except (OSError, UserError) as error:
                raise CopyError(str(error)) from None

    def differing(self, folder: Path) -> list[str]:
        """The names of files whose size or checksum differs from the copy."""
        there, names = Path(self.text), files_below(folder)
        try:
            return [n for n in names if not (there / n).is_file() or sha256(there / n) != sha256(folder / n)]
        except OSError as error:
            raise CopyError(str(error)) from None

    def get(self, target: Path, only: str = "") -> bool:
        """Copy all files, or one file, into a folder; returns whether there are any."""
        names = [only] if only else files_below(Path(self.text))
        try:
            for name in (found := [name for name in names if (Path(self.text) / name).is_file()]):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(self.text) / name, target / name)
        except OSError as error:
            raise CopyError(str(error)) from None
        return bool(found)

    def _output(self, *command: str, good: Sequence[int] = (0,)) -> tuple[int, str]:
        """Exit code and output of a program; other codes than `good` raise an error with its message."""
        environment = {"LC_ALL": "C", "RSYNC_RSH": os.environ.get("RSYNC_RSH", SSH)}
        with tempfile.TemporaryFile() as output:
            code = run_limited(command, COPY_SECONDS, output, self.stopped, environment)
            output.seek(0)
            text = output.read().decode(errors="replace")
        if code is None:
            raise CopyError(f"{command[0]} was ended after {COPY_SECONDS / 60:g} minutes")
        if code not in good:
            said = [line for line in text.splitlines() if line.strip()] or [f"ended with code {code}"]
            reason = said[0] if command[0] == "rsync" else said[-1]  # rsync prints the message of ssh first
            raise CopyError(f"{command[0]}: {printable(reason, 200)}")
        return code, text


class SshFolder(LocalFolder):
    """`user@host:path`, a folder of another machine; RSYNC_RSH="ssh -p 2222" chooses port and key."""

    programs = ("rsync", "ssh")
    base = ("rsync", "-rt", "-s", f"--timeout={QUIET_SECONDS}")

    def __init__(self, text: str):
        super().__init__(text)
        host, _, path = text.partition(":")
        path = path.removeprefix("~/").rstrip("/") or "."
        self.address = f"{host}:{path}/"
        self.make = f"--rsync-path=mkdir -p {shlex.quote(path)} && rsync"  # --mkpath is unknown to rsync 3.1

    def put(self, folder: Path) -> None:
        self._output(*self.base, "-W", "-I", self.make, f"{folder}/", self.address)

    def differing(self, folder: Path) -> list[str]:
        return self._output("rsync", "-rcns", "--out-format=%n", f"{folder}/", self.address)[1].split("\n")[:-1]

    def get(self, target: Path, only: str = "") -> bool:
        code, text = self._output(*self.base, f"{self.address}{only}", f"{target}/", good=(0, 23))
        if code and "No such file or directory (2)" not in text:
            raise CopyError(f"rsync: {printable(text.splitlines()[0], 200)}")
        return not code


class RcloneFolder(LocalFolder):
    """`remote:path`, with a remote of `rclone config`."""

    programs = ("rclone",)
    limits = ("--retries=1", "--contimeout=20s", f"--timeout={QUIET_SECONDS}s")

    def put(self, folder: Path) -> None:
        self._output("rclone", "copy", "--ignore-times", *self.limits, str(folder), self.text)

    def differing(self, folder: Path) -> list[str]:
        code, text = self._output("rclone", "check", "--one-way", *self.limits, str(folder), self.text, good=(0, 1))
        wrong = [line.partition("ERROR : ")[2] for line in text.splitlines() if "ERROR : " in line]
        return (wrong or ["one of them"]) if code else []

    def get(self, target: Path, only: str = "") -> bool:
        chosen = [f"--include=/{only}"] if only else []
        code, _ = self._output("rclone", "copy", *self.limits, *chosen, self.text, str(target), good=(0, 3))
        return not code and any(target.iterdir())
