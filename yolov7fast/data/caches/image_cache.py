"""`--cache-images`: images at training size, decoded once, in memory or in a packed file that all processes map.

Pixels are those of `image_io.load_resized`, bit for bit. The operating system's page cache keeps the packed file in
memory, once for all workers and ranks, as far as it fits, so the file may be larger than RAM. Every image has a
checksum, which each process verifies at the first use of the image: a damaged one is decoded from its source instead,
and the file is removed, so that the next run builds it again.

File layout (version 2), written to a temporary name and renamed when complete:

    0                4096-byte header: magic, then JSON with sizes, offsets and the checksum of table and names
    4096             pixels of image 0, 1, ... each uint8 (h, w, 3) BGR, aligned to 64 bytes
    table_at         int64 (n, 8): offset, h, w, h0, w0, CRC-32 of the pixels, size and mtime (ns) of the source file
    after it         absolute source paths, each ended by a zero byte
"""

import contextlib
import hashlib
import json
import logging
import math
import mmap
import os
import shutil
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_file
from yolov7fast.core.files.locks import exclusive
from yolov7fast.core.process.threads import ThreadPool, in_order
from yolov7fast.data.caches.label_cache import is_writable
from yolov7fast.data.image_io import LoadedImage, file_stamps, image_size, load_resized, resized_shape

LOGGER = logging.getLogger(__name__)
MAGIC = b"YOLOPACK"
VERSION = 2
HEADER = 4096
ALIGN = 64
COLUMNS = 8  # of the table: offset, h, w, h0, w0, crc, size, mtime_ns
STAMPS = slice(6, 8)


def open_cache(
    kind: bool | str | None,
    img_files: Sequence[str],
    img_size: int,
    augment: bool,
    prefix: str,
    folder: Path,
    cache_dir: str | os.PathLike | None,
) -> "ImagesInMemory | PackedImages | None":
    """Return the cache `kind`: None (False), in memory (True or "ram") or "disk", in `cache_dir` or in `folder`."""
    if kind in (None, False):
        return None
    if kind in (True, "ram"):
        return ImagesInMemory(img_files, img_size, augment, prefix)
    if kind != "disk":
        raise UserError(f"--cache-images {kind}: choose ram or disk")
    return PackedImages.open_or_build(
        img_files, img_size, augment=augment, cache_dir=cache_dir or folder, prefix=prefix
    )


class ImagesInMemory:
    """All images, decoded and resized."""

    def __init__(self, img_files: Sequence[str], img_size: int, augment: bool, prefix: str = ""):
        self._images: list[LoadedImage] = []
        held = 0
        with ThreadPool(8) as pool, tqdm(total=len(img_files)) as bar:
            for image in pool.map(partial(load_resized, img_size=img_size, augment=augment), img_files):
                self._images.append(image)
                held += image.img.nbytes
                bar.set_description_str(f"{prefix}Caching images ({held / 1e9:.1f}GB)", refresh=False)
                bar.update()

    def get(self, i: int) -> LoadedImage:
        """Return image i; copy it before changing it."""
        return self._images[i]


class PackedImages:
    """Read-only images of one training size, in the order of the list they were opened with.

    `len()` is the number of images; `nbytes` the size of the file. Forked workers share its pages; pickling it
    opens the file again.
    """

    def __init__(self, path: Path, rows: np.ndarray, want: "_Wanted"):
        """rows: int64 (n, 8), the table rows of these images, in order."""
        self.path = path
        self._rows = rows
        self._want = want
        with open(path, "rb") as f:
            self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self._pixels = np.frombuffer(self._map, np.uint8)
        self._checked = np.zeros(len(rows), bool)  # by this process
        self._reported = False
        self.nbytes = len(self._map)

    @classmethod
    def open_or_build(
        cls,
        img_files: Sequence[str],
        img_size: int,
        *,
        augment: bool,
        cache_dir: str | os.PathLike,
        prefix: str = "",
    ) -> "PackedImages":
        """Open the pack of these images; build it first if there is none or a source file has changed.

        A larger pack that holds all these images is used too (subsets, other orders). Several processes may call this
        at once: one builds, the others wait. Only building needs a writable folder.
        """
        folder = Path(cache_dir)
        want = _Wanted(img_files, img_size, augment)
        try:
            found = _find(folder, want)
            if found is None:
                nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
                if not is_writable(nearest):  # also if marked read-only, for root
                    raise UserError(f"{prefix}{nearest} cannot be written; name a place for it with --cache-dir")
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / want.file_name
                with exclusive(path.with_suffix(".lock"), f"{prefix}waiting for another process to pack images"):
                    found = _find(folder, want)
                    if found is None:
                        if path.exists():
                            LOGGER.warning(f"{prefix}{path} is damaged, or its images have changed: it is built again")
                        found = _build(path, want, prefix)
            return cls(*found, want)
        except OSError as error:
            raise UserError(
                f"cannot keep packed images in {folder} ({error.strerror or error}); name a place with --cache-dir"
            ) from error

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, i: int) -> LoadedImage:
        """Return image i as `load_resized` does. The array is read-only memory of the file: copy before changing it."""
        offset, h, w, h0, w0, crc = self._rows[i, :6].tolist()
        pixels = self._pixels[offset : offset + h * w * 3]
        if not self._checked[i]:
            if zlib.crc32(pixels.data) != crc:
                return self._decode_source(i)
            self._checked[i] = True
        return LoadedImage(pixels.reshape(h, w, 3), (h0, w0), (h, w))

    def _decode_source(self, i: int) -> LoadedImage:
        """Decode a damaged image from its source file and remove the pack, so that the next run builds it again."""
        source = self._want.paths[i]
        if not self._reported:
            self._reported = True
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            remedy = "remove the file to have" if self.path.exists() else "the file is removed; the next run has"
            LOGGER.warning(
                f"packed images {self.path}: {source} is damaged there (its checksum differs); such images are "
                f"decoded from their sources; {remedy} it built again"
            )
        return load_resized(source, self._want.img_size, self._want.augment)

    def __reduce__(self):
        return PackedImages, (self.path, self._rows, self._want)


class _Wanted:
    """Contents required of a pack: absolute paths with size and time of each, image size, kind of resizing."""

    def __init__(self, img_files: Sequence[str], img_size: int, augment: bool):
        self.img_size, self.augment = img_size, augment
        self.mode = "linear" if augment else "area"  # how images are resized
        self.paths = [os.path.abspath(f) for f in img_files]
        self.stamps = file_stamps(self.paths)
        if len(missing := np.flatnonzero(self.stamps[:, 0] < 0)):
            raise UserError(f"image {self.paths[missing[0]]} cannot be read; restore it or remove it from the data set")

    @property
    def file_name(self) -> str:
        names = hashlib.sha256("\0".join(sorted(self.paths)).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return f"images-{self.img_size}-{self.mode}-{names}.pack"

    def rows_of(self, path: Path) -> np.ndarray | None:
        """Return the table rows of the images in a pack; None if one is missing or has changed."""
        pack = _read_index(path, self.img_size, self.mode)
        if pack is None:
            return None
        names, table = pack
        row_of = {name: i for i, name in enumerate(names)}
        picked = [row_of.get(p, -1) for p in self.paths]
        if min(picked) < 0:
            return None
        rows = table[picked]
        return rows if np.array_equal(rows[:, STAMPS], self.stamps) else None


def _find(folder: Path, want: _Wanted) -> tuple[Path, np.ndarray] | None:
    """Return a pack in this folder that holds all images: the one of that name, otherwise a larger one."""
    own = folder / want.file_name
    others = sorted(folder.glob(f"images-{want.img_size}-{want.mode}-*.pack"))
    for path in [own, *(p for p in others if p != own)]:
        rows = want.rows_of(path)
        if rows is not None:
            return path, rows
    return None


def _read_index(path: Path, img_size: int, mode: str) -> tuple[list[str], np.ndarray] | None:
    """Return source paths and table of a pack; None if it is missing, damaged, foreign, or of another size or mode.

    The header is checked before it is used, the rest by its checksum.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(HEADER)
            meta = json.loads(head.removeprefix(MAGIC).rstrip(b"\0"))
            wanted = {"version": VERSION, "img_size": img_size, "mode": mode, "bytes": os.path.getsize(path)}
            if not head.startswith(MAGIC) or any(meta.get(key) != value for key, value in wanted.items()):
                return None
            file.seek(meta["table_at"])
            index = file.read()
        if zlib.crc32(index) != meta["index_crc"]:
            return None
        table = np.frombuffer(index, np.int64, meta["n"] * COLUMNS).reshape(-1, COLUMNS)
        names = index[table.nbytes :].split(b"\0")[:-1]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return ([os.fsdecode(name) for name in names], table) if len(names) == len(table) else None


def _build(path: Path, want: _Wanted, prefix: str) -> tuple[Path, np.ndarray]:
    """Decode and resize all images in threads (OpenCV releases the interpreter lock) and write them in order."""
    with atomic_file(path, remedy="make room, or name another place for packed images with --cache-dir") as f:
        _check_space(path.parent, want)
        rows = _write(f, want, prefix)
    wanted = set(want.paths)
    for other in path.parent.glob(f"images-{want.img_size}-{want.mode}-*.pack"):
        index = _read_index(other, want.img_size, want.mode)
        if other != path and index is not None and wanted.issuperset(index[0]):  # images were added to the data set
            with contextlib.suppress(OSError):
                other.unlink()
    return path, rows


def _write(f, want: _Wanted, prefix: str) -> np.ndarray:
    """Write a whole pack to the open file and return its table."""

    def decode(path: str) -> tuple[LoadedImage, int]:
        image = load_resized(path, want.img_size, want.augment)
        image = image._replace(img=np.ascontiguousarray(image.img))
        return image, zlib.crc32(image.img.data)

    table = np.zeros((len(want.paths), COLUMNS), np.int64)
    table[:, STAMPS] = want.stamps
    f.write(bytes(HEADER))
    at = HEADER
    decoded = in_order(decode, want.paths, min(os.cpu_count() or 1, 16), ahead=4)  # bounds the memory
    bar = tqdm(decoded, total=len(want.paths), desc=f"{prefix}Packing images at {want.img_size}")
    for i, ((img, (h0, w0), (h, w)), crc) in enumerate(bar):
        table[i, :6] = at, h, w, h0, w0, crc
        f.write(img)
        padding = -img.nbytes % ALIGN
        f.write(bytes(padding))
        at += img.nbytes + padding
    index = table.tobytes() + b"".join(os.fsencode(p) + b"\0" for p in want.paths)
    f.write(index)
    meta = {"version": VERSION, "img_size": want.img_size, "mode": want.mode, "n": len(table), "table_at": at}
    f.seek(0)
    f.write(MAGIC + json.dumps(meta | {"bytes": at + len(index), "index_crc": zlib.crc32(index)}).encode())
    return table


def _check_space(folder: Path, want: _Wanted) -> None:
    """Refuse before the first image is decoded if the disk is too small for the pack."""
    free = shutil.disk_usage(folder).free
    fixed = HEADER + want.stamps.shape[0] * (COLUMNS * 8 + ALIGN) + sum(len(os.fsencode(p)) + 1 for p in want.paths)
    if free > fixed + len(want.paths) * 3 * want.img_size**2:  # enough for square images
        return
    needed = fixed
    for path in tqdm(want.paths, desc="Adding up image sizes"):
        width, height = image_size(path) or (want.img_size, want.img_size)
        needed += 3 * math.prod(resized_shape(height, width, want.img_size))
    if needed > free:
        raise UserError(
            f"the disk cache of {len(want.paths)} images at {want.img_size} needs {_amount(needed)} in {folder}, "
            f"where {_amount(free)} are free; make room, name another place with --cache-dir, or use --cache-images ram"
        )


def _amount(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.2f} MB"
