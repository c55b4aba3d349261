"""`--mirror`: copies of a run at a destination, from which it can be resumed on another machine.

The destination has the layout of the run's folder, and `mirror.json` in it lists the verified checksum of every file.
The last checkpoint is copied after all other files: if a copy is interrupted, the best weights there belong to that
checkpoint or a later one, and a run resumed from it writes the same best weights again.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from uuid import uuid4

from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.files.atomic import atomic_folder, write_atomically
from yolov7fast.core.files.settings_files import MOST_BYTES
from yolov7fast.core.text import printable
from yolov7fast.reports.run_status import MANIFEST, MIRROR_FOLDER, STATE, VERIFIED
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.hooks.destinations import CopyError, LocalFolder, destination, files_below, is_remote, sha256

COPIED = ("*.yaml", "results.*", "*.log", STATE, "index.html")  # in the run's folder, besides checkpoints
RUN = "run"  # in MIRROR_FOLDER: the identity of the run
MOST_BEGUN = 50  # copies that were started since the last verified one


class TakenOver(CopyError):
    """The destination belongs to another run, or to another process of this run."""


@dataclass(frozen=True)
class Manifest:
    """The content of a mirror. files: checksums by name, of the last verified copy; coming: of copies that were started
    after it; last: the name of the last checkpoint; holder: the process that writes it."""

    run: str
    holder: str = ""
    name: str = ""
    last: str = ""
    copied: float = 0.0
    epoch: int = 0
    step: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    coming: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, place: LocalFolder) -> "Manifest | None":
        """The manifest at a destination; None if there is none."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / MANIFEST
            if not place.get(Path(folder), MANIFEST) or not path.is_file():
                return None
            try:
                values = json.loads(path.read_bytes()[:MOST_BYTES])
                manifest = cls(**{name: values[name] for name in (each.name for each in fields(cls)) if name in values})
                texts = (manifest.run, manifest.holder, manifest.name, manifest.last)
                names = [*manifest.files, *manifest.coming]
                inside = all(not PurePosixPath(n).is_absolute() and ".." not in PurePosixPath(n).parts for n in names)
                if inside and all(isinstance(text, str) for text in texts) and 0 <= manifest.copied < 1e11:
                    return manifest
            except (ValueError, TypeError):
                pass
            raise UserError(f"{place.text}: its {MANIFEST} is damaged; choose another destination")

    def write(self, place: LocalFolder) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / MANIFEST).write_text(json.dumps(asdict(self)))
            place.put(Path(folder))


def check_mirror(text: str, is_fresh: bool) -> None:
    """Refuse an unusable destination before anything is built: a fresh run needs an empty one."""
    place = destination(text)
    try:
        there = Manifest.read(place) if is_fresh else None
    except CopyError as error:
        raise UserError(f"--mirror {text} cannot be read: {error}") from None
    if there is not None and (there.files or there.coming):
        held = printable(there.name, 60)
        raise UserError(
            f"--mirror {text} holds the run {held}: choose another destination, or resume that run: --resume {text}"
        )


class Mirror:
    """Copies one run to one destination."""

    def __init__(self, text: str, run_dir: Path, last: Path):
        """text: of --mirror; last: the run's last checkpoint."""
        self.place, self.run_dir, self.last = destination(text), run_dir, last
        if not is_remote(text) and Path(text).resolve() == run_dir.resolve():
            raise UserError(f"--mirror {text} is the run's own folder: choose another one")
        self.own = run_dir / MIRROR_FOLDER
        self.manifest = Manifest(identity(run_dir), uuid4().hex, run_dir.name, last.relative_to(run_dir).as_posix())
        self.arrived: Mapping[str, str] = {}  # checksums that this process has verified
        self.claimed = False

    def claim(self) -> None:
        """Claim the destination for this run; that of another run is refused."""
        there = Manifest.read(self.place)
        if there is not None and there.run != self.manifest.run and (there.files or there.coming):
            raise TakenOver(f"{self.place.text} holds the run {printable(there.name, 60)}")
        known = ("files", "coming", "copied", "epoch", "step") if there and there.run == self.manifest.run else ()
        self.manifest = replace(self.manifest, **{name: getattr(there, name) for name in known})
        self.manifest.write(self.place)
        self.arrived, self.claimed = {}, True

    def snapshot(self, progress: Progress) -> tuple[Path, Progress]:
        """Links to the current files, to be copied later: a checkpoint, and the tables and options that belong to
        it."""
        self.own.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="copy", dir=self.own))
        checkpoints = [path for path in (self.last, self.last.with_stem("best")) if path.is_file()]
        for path in (*checkpoints, *(path for pattern in COPIED for path in self.run_dir.glob(pattern))):
            link(path, folder / path.relative_to(self.run_dir))
        return folder, replace(progress)

    def copy(self, folder: Path, progress: Progress) -> None:
        """Copy the changed files of a snapshot, verify them and update the manifest; raises `CopyError`."""
        there = Manifest.read(self.place)
        if there is not None and self.claimed and there.holder != self.manifest.holder:
            raise TakenOver(f"{self.place.text} is written by another process now")
        if there is None or not self.claimed:
            self.claim()
        sums = {name: sha256(folder / name) for name in files_below(folder)}
        coming = {name: [*self.manifest.coming.get(name, [])[-MOST_BEGUN:], value] for name, value in sums.items()}
        self.manifest = replace(self.manifest, coming=coming)
        self.manifest.write(self.place)
        changed = {name for name, value in sums.items() if self.arrived.get(name) != value}
        last = changed & {self.manifest.last}
        for names in (changed - last, last):
            with tempfile.TemporaryDirectory(dir=self.own) as part:
                for name in names:
                    link(folder / name, Path(part) / name)
                if names:
                    self.place.put(Path(part))
        if wrong := self.place.differing(folder):
            self.arrived = {}
            raise CopyError(f"the copy of {printable(wrong[0], 200)} differs")
        done = {"epoch": progress.epoch, "step": progress.global_step, "copied": time.time()}
        self.manifest = replace(self.manifest, files=sums, coming={}, **done)
        self.manifest.write(self.place)
        self.arrived = sums
        if (folder / self.manifest.last).is_file():  # the file has the time of the checkpoint: vast_onstart.sh compares
            write_atomically(self.own / VERIFIED, json.dumps({"to": self.place.text, "copied": self.manifest.copied}))
            os.utime(self.own / VERIFIED, ns=(0, (folder / self.manifest.last).stat().st_mtime_ns))


def link(path: Path, target: Path) -> None:
    """A hard link to a file that is only replaced as a whole; a copy of others, such as logs."""
    target.parent.mkdir(exist_ok=True)
    try:
        if path.suffix == ".log":
            raise OSError
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)


def identity(run_dir: Path) -> str:
    """The identity of a run, which is the same on every machine."""
    path = run_dir / MIRROR_FOLDER / RUN
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, uuid4().hex)
    return path.read_text().strip()


def is_mirror(text: object) -> bool:
    """Whether --resume names a mirror instead of a run's folder or a checkpoint."""
    return isinstance(text, str) and (is_remote(text) or (Path(text) / MANIFEST).is_file())


def fetch(text: str, project: Path, name: str = "") -> Path | None:
    """Fetch a mirrored run into a folder of its name, or of the given one; None: the mirror is empty. A run that
    already exists there is kept, if it is the mirrored one.
    """
    try:
        place = destination(text)
        manifest = Manifest.read(place)
        if manifest is None or not manifest.files:
            return None
        if name and manifest.name != name:
            held = printable(manifest.name, 60)
            raise UserError(f"{text} holds the run {held}: give --name {held}, or another destination than for {name}")
        if not manifest.name or manifest.name in (".", "..") or "/" in manifest.name:
            raise UserError(f"{text}: {shown(manifest.name)} is not the name of a run")
        folder = project / manifest.name
        last = folder / manifest.last
        if last.is_file():
            if not (folder / MIRROR_FOLDER / RUN).is_file() or identity(folder) != manifest.run:
                raise UserError(f"{folder} is another run than that of {text}: give another --project")
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        print(f"fetching {manifest.name} from {text}")
        with atomic_folder(folder) as temporary:
            place.get(temporary)
            for file, value in manifest.files.items():
                here = temporary / file
                if not here.is_file() or sha256(here) not in (value, *manifest.coming.get(file, [])):
                    raise UserError(f"{text}: {printable(file, 200)} is not the file that was verified there")
            for file in {*files_below(temporary)} - {*manifest.files, *manifest.coming}:
                (temporary / file).unlink()
            (temporary / MIRROR_FOLDER).mkdir(exist_ok=True)
            write_atomically(temporary / MIRROR_FOLDER / RUN, manifest.run)
    except CopyError as error:
        raise UserError(f"{text} cannot be read: {one_line(error, 300)}") from None
    return folder
