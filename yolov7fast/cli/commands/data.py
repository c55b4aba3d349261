"""Check, convert, resize, group or draw data sets.

    yolov7fast data check DATA                      report what is wrong or unusual: a table, and a page with images
    yolov7fast data convert DATA FOLDER --to coco   write it in another format
    yolov7fast data resize FOLDER TARGET --size 320 shrink images once, so that training decodes small ones
    yolov7fast data heads DATA --heads 3            assign classes to the heads of a multi-head network
    yolov7fast data shapes [FOLDER]                 draw the project's own small data set

DATA: a data YAML, a folder or .zip (YOLO, COCO JSON, Pascal VOC, CSV), a COCO .json, a .csv of boxes.
"""

import argparse
import os
from collections import Counter
from pathlib import Path
from shlex import quote

import yaml

from yolov7fast.cli.commands import group_classes, resize_dataset
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import as_user_error, write_atomically
from yolov7fast.core.process.output import log_to_stderr
from yolov7fast.core.programs import program
from yolov7fast.core.text import counted, printable
from yolov7fast.data.checks.check_findings import CORRECTED, ERROR, EXIT_CODES, SEVERITIES, as_text, undecided
from yolov7fast.data.checks.examine import DEFAULT_CFG, Examined, examine
from yolov7fast.data.data_yaml import find_data
from yolov7fast.data.formats.dataset_files import plain_name
from yolov7fast.data.formats.prepare import split_off
from yolov7fast.data.formats.recognise import recognise
from yolov7fast.data.formats.write_dataset import FORMATS, IMAGES, Written, write_as
from yolov7fast.data.shapes import NAMES, make_shapes

DEFAULT_SIZE = 640  # pixels, as train.py's
SHAPES = "data/shapes"  # named by data/shapes.yaml


def main(args: list[str] | None = None) -> int:
    """Return the exit code: of `check` 0 (nothing, or notes), 3 (warnings) or 4 (errors); of `resize` 1 on failures."""
    parser = program("data").parser(__doc__)
    commands = parser.add_subparsers(required=True, metavar="|".join(SUBCOMMANDS))
    for name, (text, add_flags, run) in SUBCOMMANDS.items():
        style = argparse.ArgumentDefaultsHelpFormatter
        one = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", formatter_class=style)
        add_flags(one)
        one.set_defaults(run=run)
    opt = parser.parse_args(args)
    log_to_stderr()
    return opt.run(opt) or 0


def _check_flags(check: argparse.ArgumentParser) -> None:
    check.add_argument("data", help="data YAML, folder, .zip, COCO .json or .csv")
    unset = argparse.SUPPRESS  # defaults are assumed and named in the report
    size_help = f"training size that boxes are judged by; {DEFAULT_SIZE} is assumed"
    check.add_argument("--img-size", type=int, default=unset, metavar="N", help=size_help)
    cfg_help = f"network whose anchors the boxes are judged by; {DEFAULT_CFG} is assumed"
    check.add_argument("--cfg", default=unset, help=cfg_help)
    check.add_argument("--output", default="", metavar="FOLDER", help="where index.html goes; empty: runs/check/NAME")
    check.add_argument("--fix", default="", metavar="FOLDER", help="write a corrected copy of the labels into FOLDER")


def _convert_flags(convert: argparse.ArgumentParser) -> None:
    convert.add_argument("data", help="data YAML, folder, .zip, COCO .json or .csv")
    convert.add_argument("folder", help="new or empty folder")
    convert.add_argument("--to", choices=FORMATS, required=True, help="format to write")
    convert.add_argument("--images", choices=IMAGES, default="copy", help="copy image files, link to them, or neither")
    convert.add_argument("--boxes", action="store_true", help="boxes only: leave out polygons and masks")
    convert.add_argument("--val-fraction", type=float, default=0.0, metavar="X", help="split off a validation set")


def _shapes_flags(shapes: argparse.ArgumentParser) -> None:
    shapes.add_argument("folder", nargs="?", default=SHAPES, help="where to write it")
    shapes.add_argument("--train", type=int, default=200, help="training images")
    shapes.add_argument("--val", type=int, default=60, help="validation images")
    shapes.add_argument("--size", type=int, default=400, help="longer side of the largest image")
    shapes.add_argument("--seed", type=int, default=0, help="another seed draws other images")


# --- check ------------------------------------------------------------------------------------------------------------


def run_check(opt: argparse.Namespace) -> int:
    img_size, cfg = getattr(opt, "img_size", DEFAULT_SIZE), getattr(opt, "cfg", DEFAULT_CFG)
    if img_size < 32:
        raise UserError(f"--img-size is {img_size}; it must be at least 32")
    path = _data(opt.data)
    if opt.fix:
        _refuse_inside(opt.fix, path)
    examined = examine(path, img_size, cfg)
    report = examined.report
    page = _write_page(examined, opt.output, path)
    print(as_text(report))
    assumed = " and ".join(flag for flag in ("--img-size", "--cfg") if flag[2:].replace("-", "_") not in vars(opt))
    remedy = f" (assumed: give {assumed} of your training)" if assumed else ""
    print(f"\nBoxes are judged at {img_size} pixels, by the anchors of {printable(cfg)}{remedy}")
    counts = Counter(finding.severity for finding in report.findings)
    found = ", ".join(counted(counts[s], s) for s in SEVERITIES if counts[s]) or "nothing found"
    print(f"{found}; page: {page}")
    if opt.fix:
        written = write_as("yolo", examined.annotated, Path(opt.fix), "link", remarks=undecided(report))
        print(f"corrected copy: {written.entry}; {_changes(written)}")
    elif errors := [f.check for f in report.findings if f.severity == ERROR and f.check in CORRECTED]:
        print(f"--fix FOLDER writes a corrected copy of the labels: it can correct {', '.join(errors)}")
    return EXIT_CODES[report.severity]


def _data(given: str) -> str:
    path = find_data(given)
    if not path:
        raise UserError("no data set is given: a data YAML, a folder, a .zip, a COCO .json or a .csv")
    return path


def _write_page(examined: Examined, output: str, path: str) -> Path:
    """Write index.html into `output`, or into a separate folder for each data set."""
    from yolov7fast.reports.data_check_page import as_page  # templates are loaded only where they are needed

    given = Path(os.path.abspath(path))
    name = given.parent.name if given.stem in ("data", "dataset") and given.suffix else given.stem
    page = Path(output or Path("runs", "check", plain_name(name))) / "index.html"
    with as_user_error(page.parent, "choose another --output"):
        page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, as_page(examined, f"Data check: {printable(path, 200)}"))
    return page


def _refuse_inside(target: str, path: str) -> None:
    """Refuse a copy inside the data set, which would be read as a part of it the next time."""
    source, folder = Path(path).resolve(), Path(target).resolve()
    if source.is_dir() and (folder == source or source in folder.parents):
        raise UserError(f"--fix {target} lies in the data set's own folder: name a new folder outside of it")


# --- convert ----------------------------------------------------------------------------------------------------------


def run_convert(opt: argparse.Namespace) -> int:
    path = _data(opt.data)
    found = recognise(path)
    annotated = found.read()
    print(f"{printable(path)}: {found.kind} ({printable(found.evidence)}): {annotated.counts()}")
    for note in annotated.notes:
        print(f"  {printable(note)}")
    if opt.val_fraction:
        print(f"  {split_off(annotated, opt.val_fraction, path)}")
    written = write_as(opt.to, annotated, Path(opt.folder), opt.images, opt.boxes)
    print(f"written: {written.entry}; {_changes(written)}")
    return 0


def _changes(written: Written) -> str:
    """The number of changes of each kind, a line each."""
    kinds = "".join(f"\n{count:>10,}  {what}" for what, count in written.changes.most_common())
    where = f", listed in {written.entry.parent / 'changes.txt'}" if kinds else ""
    return f"{written.changes.total():,} changes{where}{kinds}"


# --- shapes -----------------------------------------------------------------------------------------------------------


def run_shapes(opt: argparse.Namespace) -> None:
    """Draw the data set; a folder other than the default one gets its own data.yaml."""
    if min(opt.train, opt.val) < 1 or opt.size < 64 or opt.seed < 0:
        raise UserError("--train and --val must be at least 1, --size at least 64, --seed at least 0")
    folder, data = make_shapes(opt.folder, opt.train, opt.val, opt.size, opt.seed), "data/shapes.yaml"
    if opt.folder != SHAPES:
        data = str(folder / "data.yaml")
        splits = {split: str((folder / "images" / split).resolve()) for split in ("train", "val")}
        write_atomically(data, yaml.safe_dump({**splits, "nc": len(NAMES), "names": list(NAMES)}, sort_keys=False))
    print(f"shapes: {folder}; train on it with --data {quote(data)}")


SUBCOMMANDS = {
    "check": (
        "report what is wrong or unusual in a data set, where, and what to do; exit code 0: nothing, or notes only, "
        "3: warnings, 4: errors",
        _check_flags,
        run_check,
    ),
    "convert": ("write a data set as YOLO, COCO JSON or Pascal VOC into a new folder", _convert_flags, run_convert),
    "resize": (resize_dataset.SUMMARY, resize_dataset.add_flags, resize_dataset.run),
    "heads": (group_classes.SUMMARY, group_classes.add_flags, group_classes.run),
    "shapes": ("draw the project's own small data set", _shapes_flags, run_shapes),
}
