"""One CSV of boxes: a row for each object, columns known by their names (or by position where there is no header)."""

import csv
import math
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import printable
from yolov7fast.data.formats.files import ImageFinder
from yolov7fast.data.formats.samples import SPLITS, AnnotatedSet, Fault, Sample, split_of
from yolov7fast.data.image_io import image_size

KIND = "CSV"
COLUMNS = {  # what a column holds -> names it goes by, lower case, without separators
    "image": ("filename", "image", "imagepath", "file", "filepath", "path", "imagename", "imgname", "imageid", "img"),
    "class": ("class", "label", "name", "category", "classname", "labelname", "object"),
    "left": ("xmin", "x1", "left", "bboxxmin", "bboxx1"),
    "top": ("ymin", "y1", "top", "bboxymin", "bboxy1"),
    "right": ("xmax", "x2", "right", "bboxxmax", "bboxx2"),
    "bottom": ("ymax", "y2", "bottom", "bboxymax", "bboxy2"),
    "cx": ("cx", "xcenter", "centerx", "xcentre"),
    "cy": ("cy", "ycenter", "centery", "ycentre"),
    "box width": ("w", "boxwidth", "bboxwidth", "bboxw"),
    "box height": ("h", "boxheight", "bboxheight", "bboxh"),
    "width": ("width", "imagewidth", "imgwidth"),
    "height": ("height", "imageheight", "imgheight"),
    "split": ("split", "set", "subset"),
}
CORNERS = ("left", "top", "right", "bottom")
BOX_FORMS = (CORNERS, ("left", "top", "box width", "box height"), ("cx", "cy", "box width", "box height"))
NO_HEADER = ("image", *CORNERS, "class")  # of a file without names of columns
LONGEST_FIELD = 1 << 16


class Layout(NamedTuple):
    """CSV files of a data set; a file under None has its splits in a column, or is all training data."""

    root: Path
    files: dict[str | None, Path]
    evidence: str


def find(root: Path) -> Layout | None:
    """One CSV in `root`, one for each split (train.csv, val.csv), or one in each split's folder (Roboflow)."""
    files = [p for p in sorted(root.glob("*.csv")) if looks_like_boxes(p)]
    if not files:
        files = [p for p in sorted(root.glob("*/*.csv")) if split_of(p.parent.name) and looks_like_boxes(p)]
    if len(files) == 1:
        return of_file(files[0])._replace(root=root)
    splits: dict[str | None, Path] = {}
    for path in files:
        split = split_of(path.stem) or split_of(path.parent.name)
        if split is None or split in splits:
            names = ", ".join(str(p.relative_to(root)) for p in files)
            raise UserError(f"{root}: several CSV files ({names}); give one of them: --data {files[0]}")
        splits[split] = path
    return Layout(root, splits, ", ".join(str(p.relative_to(root)) for p in files)) if splits else None


def of_file(path: Path) -> Layout:
    return Layout(path.parent, {None: path}, path.name)


def looks_like_boxes(path: Path) -> bool:
    """Whether the first row names the columns of boxes, or is itself one."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = next(csv.reader([file.readline(LONGEST_FIELD)], delimiter=_delimiter(file)), [])
    except (OSError, ValueError, csv.Error):
        return False
    return _columns(first) is not None or _is_headless(first)


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _columns(header: list[str]) -> dict[str, int] | None:
    """Position of each known column; None if the image, the class or the box is not among them."""
    plain = [_plain(name) for name in header]
    found = {what: plain.index(n) for what, names in COLUMNS.items() for n in names[::-1] if n in plain}
    if "image" not in found or not any(all(c in found for c in form) for form in BOX_FORMS):
        return None
    return found


def _is_headless(row: list[str]) -> bool:
    return len(row) == len(NO_HEADER) and (all(_number(v) is not None for v in row[1:5]) or not any(row[1:]))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class _Row(NamedTuple):
    line: int
    name: str
    box: list[float]
    size: tuple[float, float] | None


def read(layout: Layout) -> AnnotatedSet:
    """All samples. Classes are the names that occur, in alphabetical order (numbers in the order of numbers)."""
    finder = ImageFinder(layout.root, (".", "images"))
    splits: dict[str, dict[str, list[_Row]]] = {}
    faults: dict[str, list[Fault]] = defaultdict(list)
    notes: list[str] = []
    sources = {}
    for split, path in layout.files.items():
        fractions = _read_file(path, split, splits, faults, notes)
        sources |= {s: (path, fractions) for s in splits if s not in sources}
    found = {row.name for images in splits.values() for rows in images.values() for row in rows}
    names = sorted(found, key=lambda n: (0, int(n), n) if n.isascii() and n.isdigit() and len(n) < 20 else (1, 0, n))
    ids = {name: i for i, name in enumerate(names)}
    ordered = [split for split in SPLITS if split in splits]
    made = {}
    for split in ordered:
        path, fractions = sources[split]
        made[split] = [_sample(image, rows, path, ids, finder, fractions) for image, rows in splits[split].items()]
        if made[split]:
            made[split][0].faults += faults[split]
    if unused := finder.unused():
        notes.append(f"{unused} images have no row in the file and are not used")
    return AnnotatedSet(KIND, layout.root, names, made, notes)


def _read_file(path: Path, split: str | None, splits: dict, faults: dict, notes: list[str]) -> bool:
    """Put a file's rows into `splits`; True if its boxes are fractions of the image."""
    rows = _rows(path)
    columns = _columns(rows[0][1]) if rows else None
    if columns is None and rows and _is_headless(rows[0][1]):
        columns = {what: i for i, what in enumerate(NO_HEADER)}
    elif columns is None:
        header = ", ".join(printable(name, 30) for name in (rows[0][1] if rows else [])) or "nothing"
        raise UserError(
            f"{path}: the first row holds {header}; name the columns filename, class, xmin, ymin, xmax, ymax "
            "(or cx, cy, w, h; or xmin, ymin, w, h)"
        )
    else:
        rows = rows[1:]
    if "class" not in columns:
        notes.append(f"{path.name} has no column of classes: all objects are of one class, 'object'")
    form = next(form for form in BOX_FORMS if all(c in columns for c in form))
    largest = 0.0
    for line, cells in rows:
        image, row, fault, own = _parse(line, cells, columns, form, path)
        target = split or own or "train"
        images = splits.setdefault(target, {})
        if fault:
            faults[target].append(fault)
        if not image:
            continue
        images.setdefault(image, [])
        if row:
            images[image].append(row)
            largest = max(largest, *map(abs, row.box))
    fractions = 0 < largest <= 1.5
    if fractions:
        notes.append(f"{path.name}: all coordinates are at most {largest:.3g}: read as fractions of the image")
    return fractions


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line, cells) of every row that is not blank."""
    csv.field_size_limit(LONGEST_FIELD)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=_delimiter(file))
            return [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV in UTF-8 ({printable(error, 200)})") from None


def _delimiter(file) -> str:
    file.seek(0)
    head = file.readline(LONGEST_FIELD)
    file.seek(0)
    return max(",;\t", key=head.count)


def _parse(
    line: int, cells: list[str], columns: dict[str, int], form: tuple[str, ...], path: Path
) -> tuple[str, _Row | None, Fault | None, str | None]:
    """(image, its object if the row holds one, what is wrong, split) of a row."""

    def cell(what: str) -> str:
        place = columns.get(what, -1)
        return cells[place].strip() if 0 <= place < len(cells) else ""

    image, texts = cell("image"), [cell(what) for what in form]
    own = split_of(cell("split")) if cell("split") else None
    if not image:
        return "", None, Fault("wrong columns", str(path), line, "the row names no image"), own
    if not any(texts):  # an image without objects
        return image, None, None, own
    values = [_number(text) for text in texts]
    known = [v for v in values if v is not None]
    if len(known) < 4:
        return image, None, Fault("not a number", str(path), line, f"box {', '.join(texts)[:60]}"), own
    name = cell("class") if "class" in columns else "object"
    if not name:
        return image, None, Fault("bad class", str(path), line, "the row names no class"), own
    a, b, c, d = known
    if form[3] == "box height":
        a, b = (a - c / 2, b - d / 2) if form[0] == "cx" else (a, b)
        c, d = a + c, b + d
    width, height = _number(cell("width")), _number(cell("height"))
    size = (width, height) if width and height and min(width, height) > 0 else None
    return image, _Row(line, name, [a, b, c, d], size), None, own


def _sample(image: str, rows: list[_Row], path: Path, ids: dict, finder: ImageFinder, fractions: bool) -> Sample:
    stem = Path(image.replace("\\", "/")).name
    file = finder.find(image, stem, path.parent)
    said = next((row.size for row in rows if row.size), None)
    frame = (1.0, 1.0) if fractions else said or image_size(file) or (1.0, 1.0)
    return Sample(
        image=str(file),
        name=finder.name_of(file),
        frame=frame,
        label_file=str(path),
        classes=np.array([ids[row.name] for row in rows], np.int64),
        boxes=np.array([row.box for row in rows], np.float64).reshape(-1, 4),
        crowd=np.zeros(len(rows), bool),
        lines=np.array([row.line for row in rows], np.int64),
    )
