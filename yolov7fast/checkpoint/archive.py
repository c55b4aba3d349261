"""The two containers a checkpoint comes in: the zip that torch.save has written since 1.6, and the one before it.

They are read here and not by torch.load, which hands some archives to the TorchScript loader, unpacks compressed
records of any size and trusts the sizes a file claims. Here every size is held against the bytes that are there.
"""

import io
import mmap
import os
import struct
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from yolov7fast.checkpoint.rebuild import Damaged, Storage, Unreadable, readable_modules
from yolov7fast.checkpoint.unpickle import Modules, RestrictedUnpickler

ZIP_START = b"PK\x03\x04"
LEGACY_MAGIC, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001


def read_archive(path: Path, modules: Modules | None = None) -> Any:
    """The object in a file that torch.save wrote, with tensors on the CPU. Raises `Unreadable` or OSError.

    modules: the network classes it may hold; this project's by default.
    """
    modules = readable_modules() if modules is None else modules
    with open(path, "rb") as file:
        start = file.read(64)
        if not start:
            raise Unreadable("is empty (0 bytes): copy or download it again")
        if start.startswith(ZIP_START):
            return read_zip(file, modules)
        if start.startswith(b"\x80") and b".\x80" in start:  # a pickle of a single number, then another pickle
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return read_legacy(content, modules)
    raise Unreadable(f"is not a checkpoint: it begins with {start[:24]!r}; give a .pt file written by training")


def new_storage(dtype: torch.dtype, count: int) -> tuple[Storage, np.ndarray]:
    """Memory for `count` numbers, and its bytes as an array to write them into."""
    memory = torch.UntypedStorage(count * dtype.itemsize)
    return Storage(memory, dtype), torch.empty(0, dtype=torch.uint8).set_(memory).numpy()


# --- zip --------------------------------------------------------------------------------------------------------------


def read_zip(file: BinaryIO, modules: Modules) -> Any:
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise Unreadable("is cut short or damaged: copy or download it again") from None
    records = {record.filename: record for record in archive.infolist()}
    folder = check_records(records, os.fstat(file.fileno()).st_size)
    if records.get(f"{folder}/byteorder") and archive.read(f"{folder}/byteorder") != sys.byteorder.encode():
        raise Unreadable("was written on a machine of another byte order; save it again on a machine like this one")
    storages: dict[str, Storage] = {}

    def read_storage(key: str, dtype: torch.dtype, count: int) -> Storage:
        name, needed = f"{folder}/data/{key}", count * dtype.itemsize
        present = records[name].file_size if name in records else 0
        if present != needed:
            raise Damaged(f"it names {count} numbers ({needed} bytes) where it holds {present} bytes")
        if key not in storages:
            storages[key], content = new_storage(dtype, count)
            if needed:
                with archive.open(records[name]) as record:
                    assert isinstance(record, zipfile.ZipExtFile)  # opened for reading
                    record.readinto(content.data)  # all of it, and its checksum is compared
        if storages[key].dtype != dtype:
            raise Damaged("it names the same numbers by two types")
        return storages[key]

    return RestrictedUnpickler(io.BytesIO(archive.read(f"{folder}/data.pkl")), modules, read_storage).load()


def check_records(records: dict[str, zipfile.ZipInfo], file_size: int) -> str:
    """The folder inside the zip that holds `data.pkl`, if the zip is one that torch.save writes."""
    folders = [name.removesuffix("/data.pkl") for name in records if name.endswith("/data.pkl")]
    if any(name.endswith("/constants.pkl") for name in records):
        raise Unreadable("is an exported TorchScript network; give the .pt file that training wrote")
    if len(folders) != 1:
        raise Unreadable(
            f"is a zip archive with {len(folders)} data.pkl, so no checkpoint; give a .pt file from training"
        )
    if any(record.compress_type != zipfile.ZIP_STORED for record in records.values()):
        raise Unreadable("is a compressed archive, which torch.save never writes; unpack it and give the file inside")
    if sum(record.file_size for record in records.values()) > file_size:
        raise Damaged("its records claim more bytes than the file has")
    return folders[0]


# --- the container before PyTorch 1.6 ---------------------------------------------------------------------------------


def read_legacy(content: mmap.mmap, modules: Modules) -> Any:
    """Pickles one after another (magic number, version, machine, the object, storage keys), then the numbers:
    for each key their count as int64 and their bytes."""
    magic, version, machine = None, None, {}
    with suppress(Unreadable, EOFError):
        magic, version, machine = (RestrictedUnpickler(content).load() for _ in range(3))
    if magic != LEGACY_MAGIC or version != LEGACY_VERSION:
        raise Unreadable("is a pickle but no checkpoint; give a .pt file written by training")
    if machine.get("little_endian") is not (sys.byteorder == "little"):
        raise Unreadable("was written on a machine of another byte order; save it again on a machine like this one")
    storages: dict[str, tuple[Storage, np.ndarray]] = {}
    claimed = 0

    def read_storage(key: str, dtype: torch.dtype, count: int) -> Storage:
        nonlocal claimed
        if key not in storages:
            claimed += count * dtype.itemsize
            if claimed > len(content):
                raise Damaged(f"it names {count} numbers more than the file can hold")
            storages[key] = new_storage(dtype, count)
        storage = storages[key][0]
        if (storage.dtype, storage.count) != (dtype, count):
            raise Damaged("it names the same numbers by two types or counts")
        return storage

    result = RestrictedUnpickler(content, modules, read_storage).load()
    keys = RestrictedUnpickler(content).load()
    if type(keys) is not list or set(keys) != storages.keys():
        raise Damaged("the list of its tensors is not complete")
    for key in keys:
        storage, numbers = storages[key]
        stored = content.read(8)
        if len(stored) < 8 or len(content) - content.tell() < len(numbers):
            raise Unreadable("is cut short: copy or download it again")
        if struct.unpack("<q", stored)[0] != storage.count:
            raise Damaged("the counts of its tensors do not agree")
        numbers[:] = np.frombuffer(content, np.uint8, len(numbers), content.tell())
        content.seek(len(numbers), os.SEEK_CUR)
    return result
