"""A zip file unpacked into a folder of ours: never outside of it, never more than its size can honestly hold."""

import contextlib
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
from yolov7fast.data.formats.files import cache_folder, plain_name
from yolov7fast.data.image_io import IGNORED_FOLDERS, is_image_name

MOST_FILES = 3_000_000
SWELL, SLACK = 50, 1 << 27  # unpacked bytes allowed for each byte of the archive, and in any case
RESERVE = 1 << 29  # bytes of the disk that stay free
TEXT_SUFFIXES = (".txt", ".json", ".xml", ".csv", ".yaml", ".yml", ".names", ".data", ".labels")
CHUNK = 1 << 20


def unpack(path: Path) -> Path:
    """The folder with an archive's images and annotations; unpacked once, as long as the archive stays the same."""
    status = path.stat()
    identity = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    key = hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=6).hexdigest()
    folder = cache_folder("unpacked") / f"{plain_name(path.stem)}-{key}"
    with exclusive(folder.with_name(f".{folder.name}.lock"), f"waiting for another process that unpacks {path}"):
        if not folder.is_dir():
            _unpack_into(path, folder, str(path))
    return folder


def unpack_below(path: Path, root: Path, said: str) -> None:
    """Unpack an archive into `root`: nothing outside of it, nothing over what is there.

    A first folder that all entries share and that has the root's own name stands for the root. said: what the user
    knows the archive by.
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
            if os.path.commonpath([root.resolve(), (root / name).resolve()]) != str(root.resolve()):
                raise UserError(f"{said}: {root / name} lies behind a link that leads out of {root}")
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(source / name, root / name)
    except OSError as error:
        raise UserError(f"{said} cannot be unpacked into {root}: {printable(error, 300)}") from None
    finally:
        shutil.rmtree(build, ignore_errors=True)


def _unpack_into(path: Path, folder: Path, said: str) -> None:
    """said: what messages call the archive."""
    name_shown = printable(said.rsplit(os.sep, 1)[-1], 60)
    try:
        with zipfile.ZipFile(path) as archive, atomic_folder(folder) as build:
            entries = _checked_entries(archive, said, path.stat().st_size, folder.parent)
            with tqdm(entries, desc=f"unpacking {name_shown}", unit="file", leave=False) as bar:
                for entry, name in bar:
                    _extract(archive, entry, build / name)
    except UserError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise UserError(f"{said} is damaged or not a zip file ({printable(error, 200)}); download it again") from None
    except OSError as error:
        raise UserError(f"{said} cannot be unpacked to {folder}: {printable(error, 300)}") from None
    except Exception as error:  # zlib.error, lzma.LZMAError and what else decoders raise
        raise UserError(f"{said} is damaged ({type(error).__name__}: {printable(error, 200)})") from None


def _checked_entries(archive: zipfile.ZipFile, said: str, packed: int, disk: Path) -> list[tuple[zipfile.ZipInfo, str]]:
    """(entry, relative path) of what is to be unpacked; a UserError for an archive that is not an honest one."""
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
    _check_size(found, said, packed, disk)
    return found


def _check_size(entries: list[tuple[zipfile.ZipInfo, str]], said: str, packed: int, disk: Path) -> None:
    """packed: bytes of the archive; disk: a folder of the disk that it is unpacked to."""
    total = sum(entry.file_size for entry, _ in entries)
    if len(entries) > MOST_FILES or total > packed * SWELL + SLACK:
        raise UserError(
            f"{said} ({packed / 1e6:,.1f} MB) claims to hold {len(entries):,} files of {total / 1e6:,.0f} MB: "
            "it is not unpacked. If you trust it, unpack it yourself and give the folder"
        )
    free = shutil.disk_usage(disk).free
    if total + RESERVE > free:
        raise UserError(
            f"{said} unpacks to {total / 1e6:,.0f} MB, but {disk} has {free / 1e6:,.0f} MB left; "
            "free some space, or set YOLOV7FAST_CACHE to a folder with room"
        )


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    """Write one entry, at most as many bytes as its directory claims."""
    target.parent.mkdir(parents=True, exist_ok=True)
    left = entry.file_size
    with archive.open(entry) as source, open(target, "xb") as file:
        while chunk := source.read(min(CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                raise zipfile.BadZipFile(f"{entry.filename} is longer than its directory claims")
            file.write(chunk)
    with contextlib.suppress(OSError):
        os.chmod(target, 0o644)
