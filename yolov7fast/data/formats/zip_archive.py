"""Zip archives, unpacked into a folder of the cache: no entry leaves it, and its size is limited."""

import hashlib
import os
import shutil
import stat
import zipfile
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder
from yolov7fast.core.files.locks import exclusive
from yolov7fast.core.text import printable
from yolov7fast.data.formats.dataset_files import cache_folder, plain_name
from yolov7fast.data.image_io import IGNORED_FOLDERS, is_image_name

MOST_FILES = 3_000_000
SWELL, SLACK = 50, 1 << 27  # unpacked bytes allowed for each byte of the archive, plus a constant
RESERVE = 1 << 29  # bytes of the disk that stay free
TEXT_SUFFIXES = (".txt", ".json", ".xml", ".csv", ".yaml", ".yml", ".names", ".data", ".labels")


def unpack(path: Path) -> Path:
    """The folder with an archive's images and annotations; unpacked once, as long as the archive does not change."""
    status = path.stat()
    identity = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    key = hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=6).hexdigest()
    folder = cache_folder("unpacked") / f"{plain_name(path.stem)}-{key}"
    with exclusive(folder.with_name(f".{folder.name}.lock"), f"waiting for another process that unpacks {path}"):
        if not folder.is_dir():
            _unpack_into(path, folder, str(path))
    return folder


def unpack_below(path: Path, root: Path, said: str) -> None:
    """Unpack an archive into `root`; files that exist are never overwritten.

    If all entries lie in one folder named like the root, its content goes into the root. said: the name of the archive
    in messages.
    """
    root = root.absolute()
    build = root.with_name(f".{root.name}.{os.getpid()}.unpacking")
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        _unpack_into(path, build, said)
        inner = build / root.name
        source = inner if inner.is_dir() and len(list(build.iterdir())) == 1 else build
        names = [file.relative_to(source) for file in sorted(source.rglob("*")) if file.is_file()]
        for name in names:
            if os.path.lexists(root / name):
                raise UserError(f"{said}: {root / name} exists and is not overwritten; move it away, or unpack by hand")
            if not (root / name).resolve().is_relative_to(root.resolve()):
                raise UserError(f"{said}: {root / name} lies behind a link that leads out of {root}")
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(source / name, root / name)
    except OSError as error:
        raise UserError(f"{said} cannot be unpacked into {root}: {printable(error, 300)}") from None
    finally:
        shutil.rmtree(build, ignore_errors=True)


def _unpack_into(path: Path, folder: Path, said: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive, atomic_folder(folder) as build:
            entries = _checked_entries(archive, said, path.stat().st_size, folder.parent)
            desc = f"unpacking {printable(said.rsplit(os.sep, 1)[-1], 60)}"
            for entry, name in tqdm(entries, desc=desc, unit="file", leave=False):
                target = build / name
                target.parent.mkdir(parents=True, exist_ok=True)
                # zipfile reads at most the size that the directory states, then compares the checksum
                with archive.open(entry) as source, open(target, "xb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except UserError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise UserError(f"{said} is damaged or not a zip file ({printable(error, 200)}); download it again") from None
    except OSError as error:
        raise UserError(f"{said} cannot be unpacked to {folder}: {printable(error, 300)}") from None
    except Exception as error:  # zlib.error, lzma.LZMAError and other errors of decoders
        raise UserError(f"{said} is damaged ({type(error).__name__}: {printable(error, 200)})") from None


def _checked_entries(archive: zipfile.ZipFile, said: str, packed: int, disk: Path) -> list[tuple[zipfile.ZipInfo, str]]:
    """(entry, relative path) of the images and annotations in an archive of `packed` bytes.

    Raises UserError for entries that leave the folder, links, encrypted files, and sizes that are implausible or that
    do not fit on the disk of the folder `disk`.
    """
    found = []
    for entry in archive.infolist():
        name = entry.filename.replace("\\", "/")
        parts = PurePosixPath(name).parts
        if not parts:
            continue
        if name.startswith("/") or ".." in parts or ":" in parts[0]:
            raise UserError(f"{said}: the entry {printable(name, 100)!r} leads out of the folder; it is not unpacked")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise UserError(f"{said}: the entry {printable(name, 100)!r} is a link; it is not unpacked")
        if entry.is_dir() or IGNORED_FOLDERS & set(parts) or any(p.startswith(".") for p in parts):
            continue
        if not (is_image_name(name) or name.lower().endswith(TEXT_SUFFIXES)):
            continue
        if entry.flag_bits & 1:
            raise UserError(f"{said} is encrypted; unpack it yourself and give the folder")
        found.append((entry, str(PurePosixPath(*parts))))
    total = sum(entry.file_size for entry, _ in found)
    if len(found) > MOST_FILES or total > packed * SWELL + SLACK:
        raise UserError(
            f"{said} ({packed / 1e6:,.1f} MB) claims to hold {len(found):,} files of {total / 1e6:,.0f} MB: "
            "it is not unpacked. If you trust it, unpack it yourself and give the folder"
        )
    free = shutil.disk_usage(disk).free
    if total + RESERVE > free:
        raise UserError(
            f"{said} unpacks to {total / 1e6:,.0f} MB, but {disk} has {free / 1e6:,.0f} MB left; "
            "free some space, or set YOLOV7FAST_CACHE to a folder with room"
        )
    return found
