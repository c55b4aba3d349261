"""CSV files with one box a row; columns are identified by the names in the first row."""

import csv
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import is_file
from yolov7fast.core.text import printable
from yolov7fast.data.formats.annotated_set import (
    SPLITS,
    AnnotatedSet,
    Fault,
    Layout,
    Sample,
    files_by_split,
    finite_number,
    split_of,
)
from yolov7fast.data.formats.dataset_files import ImageFinder
from yolov7fast.data.image_io import image_size

KIND = "CSV"
COLUMNS = {  # content of a column -> its possible names, lower case, without separators
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
LONGEST_FIELD = 1 << 16
LARGEST_FRACTION = 1.5  # a file whose coordinates are all at most this is read as fractions of the image


def find(root: Path) -> Layout | None:
    """One CSV in `root`, one for each split (train.csv, val.csv), or one in each split's folder (Roboflow)."""
    files = [p for p in sorted(root.glob("*.csv")) if looks_like_boxes(p)]
    files = files or [p for p in sorted(root.glob("*/*.csv")) if split_of(p.parent.name) and looks_like_boxes(p)]
    if len(files) <= 1:
        return of_file(files[0])._replace(root=root) if files else None
    return Layout(root, files_by_split(root, files), ", ".join(str(p.relative_to(root)) for p in files), files[0])


def of_file(path: Path) -> Layout:
    """The layout of one CSV file."""
    return Layout(path.parent, {"": [path]}, path.name, path)


def looks_like_boxes(path: Path) -> bool:
    """Whether the first row names the columns of boxes."""
    if not is_file(path):  # opening a FIFO may never end
        return False
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = next(csv.reader([file.readline(LONGEST_FIELD)], delimiter=_delimiter(file)), [])
    except (OSError, ValueError, csv.Error):
        return False
    return _columns(first) is not None


def _columns(first: list[str]) -> dict[str, int] | None:
    """Position of each known column, from the first row; None without columns for the image and the box."""
    plain = ["".join(c for c in name.lower() if c.isalnum()) for name in first]
    found = {what: plain.index(n) for what, names in COLUMNS.items() for n in names[::-1] if n in plain}
    return found if "image" in found and any(all(c in found for c in form) for form in BOX_FORMS) else None


def _delimiter(file) -> str:
    file.seek(0)
    head = file.readline(LONGEST_FIELD)
    file.seek(0)
    return max(",;\t", key=head.count)


# --- rows -------------------------------------------------------------------------------------------------------------


class _BoxRow(NamedTuple):
    line: int
    name: str  # of the class
    box: tuple[float, ...]  # left, top, right, bottom
    size: tuple[float, float] | None  # width, height of the image, if stated


class _CsvFile:
    """The rows of one file by split and image, and what could not be read."""

    def __init__(self, path: Path, split: str, notes: list[str]):
        """split: of all rows; empty: as their column says."""
        self.path = path
        self.splits: dict[str, dict[str, list[_BoxRow]]] = defaultdict(dict)
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        rows = self._rows()
        first = rows[0][1] if rows else []
        columns = _columns(first)
        if columns is None:
            header = ", ".join(printable(name, 30) for name in first) or "nothing"
            raise UserError(
                f"{path}: the first row holds {header}; name the columns filename, class, xmin, ymin, xmax, ymax "
                "(or cx, cy, w, h; or xmin, ymin, w, h)"
            )
        if "class" not in columns:
            notes.append(f"{path.name} has no column of classes: all objects are of one class, 'object'")
        for line, cells in rows[1:]:
            self._add(line, {what: cells[i].strip() for what, i in columns.items() if i < len(cells)}, columns, split)
        boxes = [row.box for images in self.splits.values() for own in images.values() for row in own]
        largest = max((abs(v) for box in boxes for v in box), default=0.0)
        self.fractions = 0 < largest <= LARGEST_FRACTION
        if self.fractions:
            notes.append(f"{path.name}: all coordinates are at most {largest:.3g}: read as fractions of the image")

    def _rows(self) -> list[tuple[int, list[str]]]:
        """(line, cells) of every row that is not blank."""
        csv.field_size_limit(LONGEST_FIELD)
        try:
            with open(self.path, encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, delimiter=_delimiter(file))
                return [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
        except (OSError, ValueError, csv.Error) as error:
            raise UserError(f"{self.path} cannot be read as CSV in UTF-8 ({printable(error, 200)})") from None

    def _add(self, line: int, cells: dict[str, str], columns: dict[str, int], split: str) -> None:
        image, target = cells.get("image", ""), split or split_of(cells.get("split", "")) or "train"
        images, faults = self.splits[target], self.faults[target]
        if not image:
            faults.append(Fault("wrong columns", str(self.path), line, "the row names no image"))
            return
        own = images.setdefault(image, [])
        form = next(form for form in BOX_FORMS if all(c in columns for c in form))
        texts = [cells.get(what, "") for what in form]
        values = [value for text in texts if (value := finite_number(text)) is not None]
        name = cells.get("class", "") if "class" in columns else "object"
        if not any((*texts, cells.get("class", ""))):  # an image without objects
            return
        if len(values) < 4:
            faults.append(Fault("not a number", str(self.path), line, f"box {', '.join(texts)[:60]}"))
        elif not name:
            faults.append(Fault("bad class", str(self.path), line, "the row names no class"))
        else:
            a, b, c, d = values
            if form[0] == "cx":
                a, b = a - c / 2, b - d / 2
            box = (a, b, c, d) if form is CORNERS else (a, b, a + c, b + d)
            width, height = (finite_number(cells.get(side, "")) or 0 for side in ("width", "height"))
            own.append(_BoxRow(line, name, box, (width, height) if min(width, height) > 0 else None))


def read(layout: Layout) -> AnnotatedSet:
    """All samples. Classes are the names that occur, in alphabetical order (numbers in numerical order)."""
    notes: list[str] = []
    files = [_CsvFile(path, split, notes) for split, (path,) in layout.splits.items()]
    found = {row.name for file in files for images in file.splits.values() for own in images.values() for row in own}
    names = sorted(found, key=lambda n: (0, int(n), n) if n.isascii() and n.isdigit() and len(n) < 20 else (1, 0, n))
    ids = {name: i for i, name in enumerate(names)}
    finder = ImageFinder(layout.root)
    splits: dict[str, list[Sample]] = {}
    for split in SPLITS:
        for file in (file for file in files if split in file.splits):
            samples = [_sample(image, rows, file, ids, finder) for image, rows in file.splits[split].items()]
            if samples:
                samples[0].faults += file.faults[split]
            splits[split] = samples
    if unused := finder.unused():
        notes.append(f"{unused} images have no row in the file and are not used")
    return AnnotatedSet(KIND, layout.root, names, splits, notes)


def _sample(image: str, rows: list[_BoxRow], file: _CsvFile, ids: dict[str, int], finder: ImageFinder) -> Sample:
    found = finder.find(image, Path(image.replace("\\", "/")).name, file.path.parent)
    stated = next((row.size for row in rows if row.size), None)
    frame = (1.0, 1.0) if file.fractions else stated or image_size(found) or (1.0, 1.0)
    sample = Sample(str(found), finder.name_of(found), frame, str(file.path))
    sample.set_objects([ids[row.name] for row in rows], [row.box for row in rows], [row.line for row in rows])
    return sample
