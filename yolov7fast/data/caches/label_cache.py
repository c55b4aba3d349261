"""The label cache: labels of a whole data set, checked once in parallel, with a report of the problems.

The cache is a NumPy archive without pickles next to the labels (`labels/train.yolov7fast.cache`; upstream's
`labels/train.cache` is neither read nor written). It is used only if its content hash, over paths, sizes and times of
all images and label files, is current and its checksum matches its contents; a stale, damaged or foreign file is
replaced, never executed. Where the folder cannot be written, both files go to `cache_dir` or the user's cache folder.
"""

import contextlib
import hashlib
import json
import logging
import os
import zipfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_file
from yolov7fast.core.process.threads import ThreadPool
from yolov7fast.core.text import counted, printable
from yolov7fast.data.image_io import file_workers, truncation_was_reported
from yolov7fast.data.labels import LINE_FAULTS, MIXED, TRUNCATED, Checked, Paths, Problem, check_pair, img2label_paths

LOGGER = logging.getLogger(__name__)
VERSION = 5
SUFFIX = ".yolov7fast.cache"
PARTIAL = ".partial"  # in the name of a cache whose label files may have lost lines
CONTENTS = ("digest", "header", "labels", "rows", "shapes", "points", "corners", "polygons")
MEMBERS = (*CONTENTS, "checksum")
DIGEST_BYTES = 64  # upper limit
NAMED = 5  # truncated images named in a warning
THREADS = 8
MANY = 4000  # images from which on processes are used: parsing labels holds the interpreter lock


class Counts(NamedTuple):
    """Numbers of images. `found` includes images that were left out later, as upstream does."""

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

    @property
    def images_lost_by_a_line(self) -> int:
        """Number of images left out because of bad or duplicate lines in their label files."""
        return len({problem.path for problem in self.problems if problem.skipped and problem.kind in LINE_FAULTS})

    @property
    def lines_lost(self) -> int:
        """Number of bad or duplicate lines left out of label files whose good lines are kept."""
        return sum(not problem.skipped and problem.kind in LINE_FAULTS for problem in self.problems)

    @property
    def first_loss(self) -> Problem | None:
        """The first problem that drops an image or a line, or makes training misread a line."""
        return next((p for p in self.problems if p.skipped or p.kind in (*LINE_FAULTS, MIXED)), None)

    @property
    def truncated(self) -> list[str]:
        """JPEG files that end early."""
        return [problem.path for problem in self.problems if problem.kind == TRUNCATED]

    def summary(self) -> str:
        """Return how often each kind of problem occurs, as text."""
        kinds = Counter(problem.kind for problem in self.problems)
        return ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())

    def why_skipped(self) -> str:
        """Return the summary, the first image that is left out, and the path of the report."""
        first = next(problem for problem in self.problems if problem.skipped)
        more = f"; all are listed in {self.report}" if self.report else ""
        return f"{self.summary()}; the first: {first.kind}, {first.place}: {first.text}{more}"


def load_labels(
    img_files: Sequence[str],
    source: Paths,
    prefix: str = "",
    cache_dir: str | os.PathLike | None = None,
    keep_partial: bool = False,
) -> LabelTable:
    """Return the checked labels of these images: from a current cache, otherwise by reading every file.

    keep_partial: a bad or duplicate line drops itself, not its image (--keep-partial-labels).
    """
    label_files = img2label_paths(img_files)
    places = _places(source, label_files, cache_dir, keep_partial)
    digest = content_hash(img_files, label_files, keep_partial)
    desc = f"{prefix}Scanning {str(cache_path(source, label_files)).removesuffix(SUFFIX)} images and labels... "
    for place in places:
        if (table := _read(place, digest, img_files, prefix)) is not None:
            report = _report_of(place)
            table = table._replace(report=report if report.exists() else _write_report(place, table))
            n, where = table.counts.total, f"; problems: {table.report}" if table.report else ""
            tqdm(total=n, initial=n, desc=f"{desc}{table.counts} (cached){where}").close()
            break
    else:
        table = _scan(img_files, label_files, desc, keep_partial)
        place = _write(places, table, digest)
        table = table._replace(report=_write_report(place, table) if place else None)
        if table.problems:
            where = f"listed in {table.report}" if table.report else "no folder is writable, so they are not listed"
            LOGGER.warning(f"{prefix}{table.summary()}: {where}")
    _warn_of_losses(table, prefix)
    truncation_was_reported(table.truncated)
    return table


# --- checking every file ---------------------------------------------------------------------------------------------


def _scan(img_files: Sequence[str], label_files: Sequence[str], what: str, keep_partial: bool) -> LabelTable:
    check = partial(check_pair, keep_partial=keep_partial)
    kept: list[tuple[str, np.ndarray, Checked]] = []
    problems: list[Problem] = []
    found = missing = empty = corrupt = 0
    with file_workers(len(img_files), MANY) as pool, tqdm(total=len(img_files), desc=what) as bar:
        try:
            for path, checked in zip(img_files, pool.map(check, img_files, label_files, chunksize=64)):
                found += checked.found
                problems += checked.problems
                if checked.labels is None:
                    corrupt += 1
                else:
                    missing += not checked.found
                    empty += checked.found and not len(checked.labels)
                    kept.append((path, checked.labels, checked))
                counts = Counts(found, missing, empty, corrupt, len(img_files))
                bar.set_description_str(f"{what}{counts}", refresh=False)
                bar.update()
        except BrokenProcessPool as error:
            raise UserError(
                f"{what}a process that checks labels died, usually because memory ran out: end other programs, use "
                "fewer --workers, or raise the container's memory limit, then start again"
            ) from error
    return LabelTable(
        [path for path, _, _ in kept],
        [labels for _, labels, _ in kept],
        np.array([checked.shape for _, _, checked in kept], np.int64).reshape(-1, 2),
        [checked.segments for _, _, checked in kept],
        Counts(found, missing, empty, corrupt, len(img_files)),
        problems,
    )


def _warn_of_losses(table: LabelTable, prefix: str) -> None:
    """Warn at the start of every run of what it trains without."""
    if table.counts.corrupt:
        left_out = f"{table.counts.corrupt} of {table.counts.total} images are left out"
        if lost := table.images_lost_by_a_line:
            left_out += f", {lost} of them for a bad or duplicate label line, which costs the whole image, as upstream "
            left_out += "does; --keep-partial-labels keeps the good lines"
        LOGGER.warning(f"{prefix}{left_out}")
    if table.lines_lost:
        LOGGER.warning(f"{prefix}--keep-partial-labels: {table.lines_lost} bad or duplicate label lines are left out")
    if misread := [problem for problem in table.problems if problem.kind == MIXED]:
        files = len({problem.path for problem in misread})
        LOGGER.warning(
            f"{prefix}{counted(len(misread), 'box line')} in {counted(files, 'label file')} misread, as upstream does, "
            f"because other lines of the file are polygons (first: {printable(misread[0].place)}); write the boxes as "
            "polygons of 4 points: yolov7fast data convert does. --strict-labels stops here"
        )
    if truncated := table.truncated:
        names = ", ".join(printable(os.path.basename(path), 60) for path in truncated[:NAMED])
        more = f" and {len(truncated) - NAMED} more" if len(truncated) > NAMED else ""
        LOGGER.warning(f"{prefix}truncated JPEG files, grey where pixels are missing: {names}{more}")


def _report_of(cache: Path) -> Path:
    return cache.with_name(f"{cache.name.removesuffix(SUFFIX)}.problems.txt")


def _write_report(cache: Path, table: LabelTable) -> Path | None:
    """Write the report of all problems next to the cache; delete an old one if there are none."""
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


def cache_path(source: Paths, label_files: Sequence[str], keep_partial: bool = False) -> Path:
    """Return the cache path: next to a list file (the last source) or to the folder of the first label file."""
    last = Path(source if isinstance(source, str | os.PathLike) else source[-1])
    place = last.with_suffix("") if os.path.isfile(last) else Path(label_files[0]).parent
    return place.with_name(f"{place.name}{PARTIAL * keep_partial}{SUFFIX}")


def _places(
    source: Paths, label_files: Sequence[str], cache_dir: str | os.PathLike | None, keep_partial: bool
) -> list[Path]:
    """Return the possible paths of the cache, preferred one first."""
    first = cache_path(source, label_files, keep_partial)
    folder = Path(cache_dir) if cache_dir else Path.home() / ".cache" / "yolov7-fast"
    key = hashlib.blake2b(str(first.absolute()).encode(errors="surrogateescape"), digest_size=6).hexdigest()
    return [first, folder / f"{first.name.removesuffix(SUFFIX)}-{key}{SUFFIX}"]


def content_hash(img_files: Sequence[str], label_files: Sequence[str], keep_partial: bool = False) -> str:
    """Hash the paths, sizes and modification times of these files; a missing file has its own value."""

    def stamp(path: str) -> bytes:
        try:
            stat = os.stat(path)
        except OSError:
            return f"{path}\0absent\n".encode(errors="surrogateescape")
        return f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape")

    def stamps(paths: Sequence[str]) -> bytes:
        return b"".join(map(stamp, paths))

    files = [*img_files, *label_files]
    digest = hashlib.blake2b(f"labels {VERSION}{PARTIAL * keep_partial}\n".encode(), digest_size=16)
    with ThreadPool(THREADS) as pool:  # on network file systems each stat is slow
        for part in pool.map(stamps, (files[i : i + 1000] for i in range(0, len(files), 1000))):
            digest.update(part)
    return digest.hexdigest()


def _write(places: Sequence[Path], table: LabelTable, digest: str) -> Path | None:
    """Write the cache to the first writable place and return it; None only costs another scan next time."""
    polygons = [p for image in table.segments for p in image]
    header = {"counts": table.counts, "img_files": table.img_files, "problems": table.problems}
    arrays = {
        "digest": np.frombuffer(digest.encode(), np.uint8),
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "labels": np.concatenate([np.zeros((0, 5), np.float32), *table.labels]),
        "rows": np.array([len(x) for x in table.labels], np.int64),
        "shapes": table.shapes,
        "points": np.concatenate([np.zeros((0, 2), np.float32), *polygons]),
        "corners": np.array([len(p) for p in polygons], np.int64),
        "polygons": np.array([len(x) for x in table.segments], np.int64),
    }
    arrays["checksum"] = np.frombuffer(_checksum(arrays), np.uint8)
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
    """Return whether files may be written here; False for a folder marked read-only, even for root."""
    try:
        return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
    except OSError:
        return False


def _read(place: Path, digest: str, img_files: Sequence[str], prefix: str) -> LabelTable | None:
    """Return the cached table; None if the file is missing, stale or, with a warning, damaged or foreign."""
    if not os.path.exists(place):
        return None
    try:
        arrays = _arrays(place, digest)
        return None if arrays is None else _table(arrays, img_files)
    except Exception:  # damaged files raise many types; the cache is rebuilt
        LOGGER.warning(f"{prefix}{place} is damaged or of another version, so it is not used")
        return None


def _arrays(place: Path, digest: str) -> dict[str, np.ndarray] | None:
    """Return the verified contents of the cache; None if it is of other files or of an earlier state of them."""
    with zipfile.ZipFile(place) as archive:
        if not _is_plausible(archive, place):
            raise ValueError("not the members of this cache")
    with np.load(place, allow_pickle=False) as archive:
        if archive["digest"].tobytes() != digest.encode():
            return None
        arrays = {name: archive[name] for name in CONTENTS}
        if archive["checksum"].tobytes() != _checksum(arrays):
            raise ValueError("not the contents that were written")
    return arrays


def _table(arrays: dict[str, np.ndarray], img_files: Sequence[str]) -> LabelTable:
    header = json.loads(arrays["header"].tobytes())
    labels = _cut(_typed(arrays["labels"], np.float32, 5), arrays["rows"])
    polygons = _cut(_typed(arrays["points"], np.float32, 2), arrays["corners"])
    ends = np.cumsum(arrays["polygons"]).tolist()
    segments = [polygons[start:end] for start, end in zip([0, *ends], ends)]
    shapes = _typed(arrays["shapes"], np.int64, 2)
    problems = [Problem(*p) for p in header["problems"]]
    table = LabelTable(header["img_files"], labels, shapes, segments, Counts(*header["counts"]), problems)
    if not len(labels) == len(segments) == len(shapes) == len(table.img_files):
        raise ValueError("not one entry of each kind for an image")
    if not set(img_files).issuperset(table.img_files):
        raise ValueError("not these images")
    return table


def _checksum(arrays: dict[str, np.ndarray]) -> bytes:
    """Hash types, shapes and values of all members together: the archive's own checksums cover single members."""
    digest = hashlib.blake2b(digest_size=16)
    for name in CONTENTS:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data if array.size else b"")
    return digest.digest()


def _is_plausible(archive: zipfile.ZipFile, place: Path) -> bool:
    """Return whether the archive has the expected members, uncompressed, so that it takes no more memory than its file
    has bytes, and a short digest, which is read first."""
    members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
    if set(members) != set(MEMBERS) or any(e.compress_type != zipfile.ZIP_STORED for e in members.values()):
        return False
    sizes = [max(entry.file_size, entry.compress_size) for entry in members.values()]
    return members["digest"].file_size <= 128 + DIGEST_BYTES and sum(sizes) <= os.path.getsize(place)


def _typed(rows: np.ndarray, dtype: type, columns: int) -> np.ndarray:
    if rows.dtype != dtype or rows.ndim != 2 or rows.shape[1] != columns:
        raise ValueError("not an array of this cache")
    return rows


def _cut(rows: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Split `rows` into consecutive parts of the given lengths."""
    if lengths.dtype != np.int64 or (lengths < 0).any() or lengths.sum() != len(rows):
        raise ValueError("not the lengths of these rows")
    ends = np.cumsum(lengths).tolist()
    return [rows[start:end] for start, end in zip([0, *ends], ends)]
