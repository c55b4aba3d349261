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
from functools import partial
from pathlib import Path

import cv2
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.text import printable
from yolov7fast.data.image_io import is_image_name, read_image, walk

QUALITY = 95  # of JPEG files
SETTINGS = "resized.json"  # in DST: the settings that the folder was made with
SUMMARY = "shrink the images of a folder with images/, labels/ and annotations/ once, for faster decoding"


def resize_file(job: tuple[Path, Path], size: int) -> tuple[str, str]:
    """Shrink or copy one file (source, target); returns what was done and, for "failed", why.

    The longer side becomes exactly `size`: were it a pixel short, the loader would resize once more.
    """
    source, target = job
    if target.exists():
        return "present", ""
    try:
        if is_image_name(source.name):
            image = read_image(str(source))
            longer = max(image.shape[:2])
            if longer > size:
                width, height = (max(round(side * size / longer), 1) for side in (image.shape[1], image.shape[0]))
                image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
                encoded = cv2.imencode(source.suffix.lower(), image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1]
                write_atomically(target, encoded.tobytes(), durable=False)
                return "shrunk", ""
        write_atomically(target, source.read_bytes(), durable=False)
        return "copied", ""
    except (UserError, OSError, cv2.error) as error:
        return "failed", f"{source}: {error}"


def files_of(source: Path) -> list[Path]:
    """The files to shrink or copy: images and labels, annotation files, and image lists with relative lines."""
    found = [Path(entry.path) for entry in walk(source / "images") if is_image_name(entry.name)]
    if (source / "labels").is_dir():  # a list of problems names files of the source
        labels = [entry for entry in walk(source / "labels") if entry.name.endswith(".txt")]
        found += [Path(entry.path) for entry in labels if not entry.name.endswith(".problems.txt")]
    found += sorted((source / "annotations").glob("*.json"))
    lists = sorted(source.glob("*.txt"))
    return found + [p for p in lists if all(line.startswith("./") for line in p.read_text().split("\n") if line)]


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
    """Do the whole work; returns counts of shrunk, copied, present (by an earlier run) and failed files."""
    open_target(source, target, {"size": size, "quality": QUALITY, "scaled_annotations": False})
    jobs = [(path, target / path.relative_to(source)) for path in files_of(source)]
    for folder in {goal.parent for _, goal in jobs}:
        folder.mkdir(parents=True, exist_ok=True)
    counts: Counter = Counter()
    with multiprocessing.get_context("spawn").Pool(workers, cv2.setNumThreads, (0,)) as pool:
        results = pool.imap_unordered(partial(resize_file, size=size), jobs, chunksize=16)
        for done, why in tqdm(results, total=len(jobs), unit="file"):
            counts[done] += 1
            if why:
                tqdm.write(f"failed: {why}", file=sys.stderr)
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
        f"{opt.target}: {counts['shrunk']} images shrunk, {counts['copied']} files copied (labels, annotations, "
        f"smaller images), {counts['present']} present before, {counts['failed']} failed"
    )
    return 1 if counts["failed"] else 0
