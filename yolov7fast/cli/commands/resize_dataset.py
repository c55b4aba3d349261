"""Shrink a data set once, so that training does not decode full-size images in every epoch.

    yolov7fast data resize coco coco320 --size 320

SRC/images/**       to DST/images/**: longer side reduced to --size, aspect kept; smaller images are only copied
SRC/labels/**.txt   to DST/labels/**: copied, because labels are fractions of the image
SRC/annotations/*   to DST/annotations/*: copied with the original sizes, because evaluation scales predictions to the
                    recorded size, so that COCO's small, medium and large mean the same as on full-size images
SRC/*.txt           image lists with lines that begin with ./ are copied

A stopped run resumes: every file is written under another name and renamed when complete.
"""

import argparse
import json
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import cv2
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.text import printable
from yolov7fast.data.image_io import read_image

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"}  # what can be written as well as read
QUALITY = 95  # of JPEG files
SETTINGS = "resized.json"  # in DST: the settings that the folder was made with
SUMMARY = "shrink the images of a folder with images/, labels/ and annotations/ once, for faster decoding"


def shrunk_size(height: int, width: int, size: int) -> tuple[int, int]:
    """(height, width) with the longer side exactly `size`, or unchanged where it is not larger.

    Rounded, not truncated as in the loader: were the longer side a pixel short, the loader would resize once more.
    """
    longer = max(height, width)
    if longer <= size:
        return height, width
    return max(round(height * size / longer), 1), max(round(width * size / longer), 1)


def resize_file(job: tuple[Path, Path], size: int) -> tuple[str, str]:
    """Shrink or copy one file (source, target); returns what was done and, for "failed", why."""
    source, target = job
    if target.exists():
        return "present", ""
    try:
        if source.suffix.lower() not in IMAGE_SUFFIXES:
            write_atomically(target, source.read_bytes(), durable=False)
            return "label", ""
        image = read_image(str(source))
        height, width = shrunk_size(image.shape[0], image.shape[1], size)
        if (height, width) == image.shape[:2]:
            write_atomically(target, source.read_bytes(), durable=False)
            return "copied", ""
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        settings = [cv2.IMWRITE_JPEG_QUALITY, QUALITY] if source.suffix.lower() in {".jpg", ".jpeg"} else []
        write_atomically(target, cv2.imencode(source.suffix.lower(), image, settings)[1].tobytes(), durable=False)
        return "shrunk", ""
    except (UserError, OSError, cv2.error) as error:
        return "failed", f"{source}: {error}"


def files_below(folder: Path, suffixes: set[str]) -> Iterator[Path]:
    """Files below a folder, links followed, in a fixed order."""
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(files) if Path(name).suffix.lower() in suffixes)


def copy_annotations(source: Path, target: Path) -> int:
    """Copy annotation files and relative image lists; returns how many."""
    found = sorted((source / "annotations").glob("*.json"))
    lists = sorted(source.glob("*.txt"))
    found += [path for path in lists if all(line.startswith("./") for line in path.read_text().split("\n") if line)]
    for path in found:
        goal = target / path.relative_to(source)
        goal.parent.mkdir(exist_ok=True)
        if not goal.exists():
            write_atomically(goal, path.read_bytes(), durable=False)
    return len(found)


def open_target(source: Path, target: Path, settings: dict) -> None:
    """Check the two folders and write the settings into the target, so that two sizes are never mixed."""
    if not (source / "images").is_dir():
        raise UserError(f"{source} has no folder images/: expected {source}/images and {source}/labels")
    a, b = source.resolve(), target.resolve()
    if a == b or a in b.parents or b in a.parents:
        raise UserError(f"{target} and {source} must not lie inside each other: name another target")
    note = target / SETTINGS
    if note.exists():
        before = printable(note.read_bytes().decode(errors="replace"), 200)
        if before != json.dumps(settings):
            raise UserError(f"{target} was made with {before}, now asked for {settings}: name another target")
    elif target.exists() and any(target.iterdir()):
        raise UserError(f"{target} exists and was not made by this command: name another target")
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(note, json.dumps(settings).encode(), durable=False)


def resize_dataset(source: Path, target: Path, size: int, workers: int = 1) -> Counter:
    """Do the whole work; returns counts of shrunk, copied, label, present (by an earlier run), failed, other files."""
    open_target(source, target, {"size": size, "quality": QUALITY, "scaled_annotations": False})
    # a list of problems names files of the source
    labels = (path for path in files_below(source / "labels", {".txt"}) if not path.name.endswith(".problems.txt"))
    files = [*files_below(source / "images", IMAGE_SUFFIXES), *labels]
    jobs = [(path, target / path.relative_to(source)) for path in files]
    for folder in {goal.parent for _, goal in jobs}:
        folder.mkdir(parents=True, exist_ok=True)
    counts: Counter = Counter()
    work = partial(resize_file, size=size)
    with multiprocessing.get_context("spawn").Pool(workers, cv2.setNumThreads, (0,)) as pool:
        for done, why in tqdm(pool.imap_unordered(work, jobs, chunksize=16), total=len(jobs), unit="file"):
            counts[done] += 1
            if why:
                tqdm.write(f"failed: {why}", file=sys.stderr)
    counts["other"] = copy_annotations(source, target)
    return counts


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="folder with images/ and labels/ (and annotations/)")
    parser.add_argument("target", type=Path, help="folder to write")
    parser.add_argument("--size", type=int, required=True, help="longer side in pixels, e.g. 320, 480, 640")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")


def run(opt: argparse.Namespace) -> int:
    """Return the exit code: 1 if a file failed."""
    if opt.size < 32 or opt.workers < 1:
        raise UserError("--size must be at least 32, --workers at least 1")
    counts = resize_dataset(opt.source, opt.target, opt.size, opt.workers)
    print(
        f"{opt.target}: {counts['shrunk']} images shrunk, {counts['copied']} copied (not larger), "
        f"{counts['label']} labels, {counts['other']} annotation and list files, "
        f"{counts['present']} present before, {counts['failed']} failed"
    )
    return 1 if counts["failed"] else 0
