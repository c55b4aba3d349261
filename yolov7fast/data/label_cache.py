"""The labels of a whole data set: checked once in parallel, kept in a cache file, problems listed in a report.

The cache is a NumPy archive without pickles, beside where upstream keeps its own pickle (`labels/train.cache`) and
under a name of its own (`labels/train.fast.cache`): upstream stops at a cache that it cannot read, so the two must not
meet. It is used only if its content hash, over paths, sizes and times of all images and label files, is the present
one; whatever else lies at that name (a stale, damaged or foreign file) is never executed, only replaced. Where the
folder cannot be written, `cache_dir` or the user's cache folder takes both files.
"""

import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from yolov7fast.core.atomic import atomic_file
from yolov7fast.core.errors import UserError
from yolov7fast.data.labels import Checked, Paths, Problem, check_pair, img2label_paths

LOGGER = logging.getLogger(__name__)
VERSION = 2
SUFFIX = ".fast.cache"
THREADS = 8
MANY = 4000  # images from which on processes are worth starting: reading labels keeps the interpreter lock busy


class Counts(NamedTuple):
    """How the images of a data set fared. `found` includes images that were left out later, as upstream does."""

    found: int = 0
    missing: int = 0
    empty: int = 0
    corrupt: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.found} found, {self.missing} missing, {self.empty} empty, {self.corrupt} corrupted"


class LabelTable(NamedTuple):
    """All images that passed the check, in sorted order, with their labels."""

    img_files: list[str]
    labels: list[np.ndarray]  # float32 (m, 5) each
    shapes: np.ndarray  # int64 (n, 2): width, height
    segments: list[list[np.ndarray]]  # float32 (k, 2) each
    counts: Counts
    problems: list[Problem]
    report: Path | None = None  # the list of problems; None if there are none or no folder could be written

    def summary(self) -> str:
        """How often each kind of problem occurs, in words."""
        kinds = Counter(problem.kind for problem in self.problems)
        return ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())

    def why_skipped(self) -> str:
        """The summary, the first image that is left out, and where all are listed."""
        first = next(problem for problem in self.problems if problem.skipped)
        more = f"; all are listed in {self.report}" if self.report else ""
        return f"{self.summary()}; the first: {first.kind}, {first.place}: {first.text}{more}"


def load_labels(
    img_files: Sequence[str], source: Paths, prefix: str = "", cache_dir: str | os.PathLike | None = None
) -> LabelTable:
    """The checked labels of these images: from the cache if it is good, else by looking at every file."""
    label_files = img2label_paths(img_files)
    places = _places(source, label_files, cache_dir)
    digest = content_hash(img_files, label_files)
    place, table = next(((p, t) for p in places if (t := _read(p, digest)) is not None), (None, None))
    what = f"{prefix}Scanning {_without_suffix(places[0])} images and labels... "
    if table is None:
        table = _scan(img_files, label_files, what)
        place = _write(places, table, digest)
        table = table._replace(report=_write_report(place, table) if place else None)
        if table.problems:
            _warn(table, prefix)
    else:
        report = _report_of(place)
        table = table._replace(report=report if report.exists() else _write_report(place, table))
        n, where = table.counts.total, f"; problems: {table.report}" if table.report else ""
        tqdm(total=n, initial=n, desc=f"{what}{table.counts} (cached){where}").close()
    return table


# --- looking at every file --------------------------------------------------------------------------------------------


def _scan(img_files: Sequence[str], label_files: Sequence[str], what: str) -> LabelTable:
    kept: list[tuple[str, Checked]] = []
    problems: list[Problem] = []
    counts = Counts(total=len(img_files))
    with _worker_death_as_user_error(what), _pool(len(img_files)) as pool, tqdm(total=len(img_files), desc=what) as bar:
        for path, checked in zip(img_files, pool.map(check_pair, img_files, label_files, chunksize=64)):
            counts = _count(counts, checked)
            problems += checked.problems
            if checked.labels is not None:
                kept.append((path, checked))
            bar.set_description_str(f"{what}{counts}", refresh=False)
            bar.update()
    return LabelTable(
        [path for path, _ in kept],
        [checked.labels for _, checked in kept],
        np.array([checked.shape for _, checked in kept], np.int64).reshape(-1, 2),
        [checked.segments for _, checked in kept],
        counts,
        problems,
    )


def _pool(n: int) -> Executor:
    """Workers for n images: threads, or forked processes if there are many images and several cores."""
    cores = os.cpu_count() or 1
    if n < MANY or cores == 1 or sys.platform != "linux":
        return ThreadPoolExecutor(THREADS)
    ignore = signal.SIGINT, signal.SIG_IGN  # Ctrl-C is the main process's business
    return ProcessPoolExecutor(min(cores, 16), multiprocessing.get_context("fork"), signal.signal, ignore)


@contextlib.contextmanager
def _worker_death_as_user_error(what: str) -> Iterator[None]:
    """A worker process that dies within the block is the user's business."""
    try:
        yield
    except BrokenProcessPool as error:
        raise UserError(
            f"{what}a process that checks labels died, as a rule because memory ran out: end other programs, use fewer "
            "--workers, or raise the container's memory limit, then start again"
        ) from error


def _count(counts: Counts, checked: Checked) -> Counts:
    corrupt = checked.labels is None
    return Counts(
        counts.found + checked.found,
        counts.missing + (not corrupt and not checked.found),
        counts.empty + (not corrupt and checked.found and not len(checked.labels)),
        counts.corrupt + corrupt,
        counts.total,
    )


def _warn(table: LabelTable, prefix: str) -> None:
    where = f"listed in {table.report}" if table.report else "no folder could be written, so there is no list of them"
    left_out = f"{table.counts.corrupt} of {table.counts.total} images are left out; " if table.counts.corrupt else ""
    LOGGER.warning(f"{prefix}{left_out}{table.summary()}: {where}")


def _report_of(cache: Path) -> Path:
    return _without_suffix(cache).with_suffix(".problems.txt")


def _without_suffix(cache: Path) -> Path:
    return cache.with_name(cache.name.removesuffix(SUFFIX))


def _write_report(cache: Path, table: LabelTable) -> Path | None:
    """List all problems beside the cache; a list from before goes if there are none any more."""
    path = _report_of(cache)
    with contextlib.suppress(OSError, UserError):
        if not table.problems:
            path.unlink(missing_ok=True)
            return None
        head = f"# {table.counts.total} images: {table.counts}\n# {table.summary()}\n"
        with atomic_file(path) as f:
            f.write(head.encode())
            f.writelines(f"{problem}\n".encode(errors="surrogateescape") for problem in table.problems)
        return path
    return None


# --- the cache file ---------------------------------------------------------------------------------------------------


def cache_path(source: Paths, label_files: Sequence[str]) -> Path:
    """Upstream's place: beside a list file (the last source), else beside the folder of the first label file."""
    last = Path(source[-1] if isinstance(source, list | tuple) else source)
    return (last if last.is_file() else Path(label_files[0]).parent).with_suffix(SUFFIX)


def _places(source: Paths, label_files: Sequence[str], cache_dir: str | os.PathLike | None) -> list[Path]:
    """Where the cache may lie, best place first."""
    first = cache_path(source, label_files)
    folder = Path(cache_dir) if cache_dir else Path.home() / ".cache" / "yolov7-fast"
    name = hashlib.blake2b(str(first.absolute()).encode(errors="surrogateescape"), digest_size=6).hexdigest()
    return [first, folder / f"{_without_suffix(first).name}-{name}{SUFFIX}"]


def content_hash(img_files: Sequence[str], label_files: Sequence[str]) -> str:
    """Of the paths, sizes and modification times of all these files; an absent file counts as such."""

    def stamp(path: str) -> bytes:
        try:
            stat = os.stat(path)
        except OSError:
            return f"{path}\0absent\n".encode(errors="surrogateescape")
        return f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape")

    def stamps(paths: Sequence[str]) -> bytes:
        return b"".join(map(stamp, paths))

    files = [*img_files, *label_files]
    digest = hashlib.blake2b(f"labels {VERSION}\n".encode(), digest_size=16)
    with ThreadPoolExecutor(THREADS) as pool:  # on network file systems each look takes its time
        for part in pool.map(stamps, (files[i : i + 1000] for i in range(0, len(files), 1000))):
            digest.update(part)
    return digest.hexdigest()


def _write(places: Sequence[Path], table: LabelTable, digest: str) -> Path | None:
    """Write the cache to the first place that takes it; the place, or None: nothing but the next scan is lost."""
    polygons = [p for image in table.segments for p in image]
    header = {
        "version": VERSION,
        "hash": digest,
        "counts": table.counts,
        "img_files": table.img_files,
        "problems": table.problems,
    }
    arrays = {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "labels": np.concatenate([np.zeros((0, 5), np.float32), *table.labels]),
        "rows": np.array([len(x) for x in table.labels], np.int64),
        "shapes": table.shapes,
        "points": np.concatenate([np.zeros((0, 2), np.float32), *polygons]),
        "corners": np.array([len(p) for p in polygons], np.int64),
        "polygons": np.array([len(x) for x in table.segments], np.int64),
    }
    for i, place in enumerate(places):
        try:
            if i:
                place.parent.mkdir(parents=True, exist_ok=True)
            elif not is_writable(place.parent):
                continue
            with atomic_file(place) as f:
                np.savez(f, allow_pickle=False, **arrays)
            return place
        except (OSError, UserError):
            continue
    return None


def is_writable(folder: Path) -> bool:
    """Whether files may be made here. A folder marked read-only is left alone even by root."""
    try:
        return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
    except OSError:
        return False


def _read(place: Path, digest: str) -> LabelTable | None:
    """The cached table; None if the file is absent, stale, damaged or something else altogether."""
    try:
        with np.load(place, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            if (header["version"], header["hash"]) != (VERSION, digest):
                return None
            labels = _cut(archive["labels"], archive["rows"])
            polygons = _cut(archive["points"], archive["corners"])
            ends = np.cumsum(archive["polygons"]).tolist()
            segments = [polygons[start:end] for start, end in zip([0, *ends], ends)]
            problems = [Problem(*p) for p in header["problems"]]
            table = LabelTable(
                header["img_files"], labels, archive["shapes"], segments, Counts(*header["counts"]), problems
            )
    except Exception:  # whatever a stranger's file makes the readers raise: it is rebuilt
        return None
    n = len(table.img_files)
    return table if len(labels) == len(segments) == len(table.shapes) == n else None


def _cut(rows: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Consecutive pieces of `rows` of the given lengths."""
    ends = np.cumsum(lengths).tolist()
    return [rows[start:end] for start, end in zip([0, *ends], ends)]
