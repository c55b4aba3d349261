"""The label cache: labels of a whole data set, checked once in parallel, with a report of the problems.

The cache is an .npz file without pickles next to the labels (`labels/train.yolov7fast.cache`; upstream's
`labels/train.cache` is neither read nor written). It holds a content hash, over paths, sizes and times of all images
and label files, and is used only if this and the archive's own checksums are right; a stale, damaged or foreign file is
replaced, never executed. Where the folder cannot be written, cache and report go to `cache_dir` or the user's cache
folder.
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
from yolov7fast.core.text import counted, printable
from yolov7fast.data.image_io import file_stamps, file_workers, truncation_was_reported
from yolov7fast.data.labels import LINE_FAULTS, MIXED, TRUNCATED, Paths, Problem, check_pair, img2label_paths

LOGGER = logging.getLogger(__name__)
VERSION = 7
SUFFIX = ".yolov7fast.cache"
PARTIAL = ".partial"  # in the name of a cache whose label files may have lost lines
NAMED = 5  # truncated images named in a warning
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
    first = cache_path(source, label_files, keep_partial)
    folder = Path(cache_dir) if cache_dir else Path.home() / ".cache" / "yolov7-fast"
    key = hashlib.blake2b(str(first.absolute()).encode(errors="surrogateescape"), digest_size=6).hexdigest()
    places = [first, folder / f"{first.name.removesuffix(SUFFIX)}-{key}{SUFFIX}"]
    digest = content_hash(img_files, label_files, keep_partial)
    desc = f"{prefix}Scanning {str(first).removesuffix(PARTIAL * keep_partial + SUFFIX)} images and labels... "
    for place in places:
        if (table := _read(place, digest, prefix)) is not None:
            table = table._replace(report=_write_report(place, table, again=False))
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
    table = LabelTable([], [], np.zeros((0, 2), np.int64), [], Counts(total=len(img_files)), [])
    shapes, counts = [], table.counts
    with file_workers(len(img_files), MANY) as pool, tqdm(total=len(img_files), desc=what) as bar:
        try:
            for path, checked in zip(img_files, pool.map(check, img_files, label_files, chunksize=64)):
                table.problems.extend(checked.problems)
                bad = checked.labels is None
                if checked.labels is not None:
                    table.img_files.append(path)
                    table.labels.append(checked.labels)
                    table.segments.append(checked.segments)
                    shapes.append(checked.shape)
                counts = Counts(
                    found=counts.found + checked.found,
                    missing=counts.missing + (not bad and not checked.found),
                    empty=counts.empty + (not bad and checked.found and not len(table.labels[-1])),
                    corrupt=counts.corrupt + bad,
                    total=counts.total,
                )
                bar.set_description_str(f"{what}{counts}", refresh=False)
                bar.update()
        except BrokenProcessPool as error:
            raise UserError(
                f"{what}a process that checks labels died, usually because memory ran out: end other programs, use "
                "fewer --workers, or raise the container's memory limit, then start again"
            ) from error
    return table._replace(shapes=np.array(shapes, np.int64).reshape(-1, 2), counts=counts)


def _warn_of_losses(table: LabelTable, prefix: str) -> None:
    """Warn at the start of every run of images and label lines that are left out."""
    bad_lines = [problem for problem in table.problems if problem.kind in LINE_FAULTS]
    if table.counts.corrupt:
        left_out = f"{table.counts.corrupt} of {table.counts.total} images are left out"
        if lost := len({problem.path for problem in bad_lines if problem.skipped}):
            left_out += f", {lost} of them for a bad or duplicate label line, which costs the whole image, as upstream "
            left_out += "does; --keep-partial-labels keeps the good lines"
        LOGGER.warning(f"{prefix}{left_out}")
    if kept := sum(not problem.skipped for problem in bad_lines):
        LOGGER.warning(f"{prefix}--keep-partial-labels: {kept} bad or duplicate label lines are left out")
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


def _write_report(cache: Path, table: LabelTable, again: bool = True) -> Path | None:
    """Write the report of all problems next to the cache, unless it exists; delete an old one if there are none."""
    path = cache.with_name(f"{cache.name.removesuffix(SUFFIX)}.problems.txt")
    with contextlib.suppress(OSError, UserError):
        if not table.problems:
            path.unlink(missing_ok=True)
            return None
        if path.exists() and not again:
            return path
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


def content_hash(img_files: Sequence[str], label_files: Sequence[str], keep_partial: bool = False) -> str:
    """Hash the paths, sizes and modification times of these files; a missing file has its own value."""
    files = [*img_files, *label_files]
    digest = hashlib.blake2b(f"labels {VERSION}{PARTIAL * keep_partial}\n".encode(), digest_size=16)
    digest.update("\0".join(files).encode(errors="surrogateescape"))
    digest.update(file_stamps(files).tobytes())
    return digest.hexdigest()


def _write(places: Sequence[Path], table: LabelTable, digest: str) -> Path | None:
    """Write the cache to the first writable place and return it; None: the labels are scanned again next time."""
    polygons = [p for image in table.segments for p in image]
    header = {"counts": table.counts, "img_files": table.img_files, "problems": table.problems}
    arrays = {
        "digest": np.array(digest),
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
                np.savez(f, **arrays)
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


def _read(place: Path, digest: str, prefix: str) -> LabelTable | None:
    """Return the cached table; None if the file is missing, stale or, with a warning, damaged or foreign."""
    if not place.is_file():
        return None
    try:
        with zipfile.ZipFile(place) as archive:  # written uncompressed: a small file cannot fill the memory
            if sum(entry.file_size for entry in archive.infolist()) > place.stat().st_size:
                raise ValueError("compressed")
        with np.load(place, allow_pickle=False) as file:
            if file["digest"].item() != digest:
                return None  # of other files, or of an earlier state of them
            arrays = dict(file)
        known = json.loads(arrays["header"].tobytes())
        return LabelTable(
            known["img_files"],
            _cut(arrays["labels"], arrays["rows"]),
            arrays["shapes"],
            _cut(_cut(arrays["points"], arrays["corners"]), arrays["polygons"]),
            Counts(*known["counts"]),
            [Problem(*p) for p in known["problems"]],
        )
    except Exception:  # damaged files raise many types; the cache is rebuilt
        LOGGER.warning(f"{prefix}{place} is damaged or of another version, so it is not used")
        return None


def _cut(values, lengths: np.ndarray) -> list:
    """Split `values` into consecutive parts of the given lengths."""
    ends = np.cumsum(lengths).tolist()
    return [values[start:end] for start, end in zip([0, *ends], ends)]
