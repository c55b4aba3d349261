"""Reading of checkpoints without executing code, and access to their networks and weights.

A checkpoint is a mapping with a network under `model` and, during training, under `ema`; or a bare network; or a state
dict, by itself or under `state_dict` or `model`. The further state of a training is stored under `resume`.

The containers (the zip of torch.save since 1.6, and the one before) are not read by torch.load, which passes some
archives to the TorchScript loader, unpacks compressed records of any size and trusts the sizes that a file declares.
"""

import io
import logging
import mmap
import os
import struct
import sys
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint
from yolov7fast.checkpoint.families import family_of
from yolov7fast.checkpoint.restricted_unpickler import Modules, RestrictedUnpickler
from yolov7fast.checkpoint.safe_constructors import Damaged, Storage, Unreadable, Wrapper, readable_modules
from yolov7fast.core.errors import MORE_MEMORY, CheckpointError, UserError, is_out_of_memory, shown
from yolov7fast.core.files.paths import check_path
from yolov7fast.core.text import printable

__all__ = [
    "CheckpointError",
    "load_checkpoint",
    "module_of",
    "save_checkpoint",
    "state_dict_of",
    "strip_checkpoint",
    "transfer_weights",
]

LOGGER = logging.getLogger(__name__)
TRAINING_KEYS = ("training_results", "ema", "updates", "optimizer", "wandb_id")  # set to None by stripping
ZIP_START = b"PK\x03\x04"
LEGACY_MAGIC, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001


# --- reading ----------------------------------------------------------------------------------------------------------


def load_checkpoint(
    path: str | Path, map_location: str | torch.device | None = "cpu", modules: Modules | None = None
) -> dict | nn.Module:
    """The mapping or network in a .pt file of this project or upstream, with layers of this project's classes.

    No code of the file is executed. map_location: device for tensors and networks. modules: class path in the file ->
    class, for other classes than this project's.
    """
    check_path(path)
    path = Path(path)
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder; give a .pt file{nearby(path)}")
    if not path.exists():
        raise CheckpointError(f"{path} does not exist{nearby(path.parent)}")
    try:
        loaded = read_archive(path, modules)
    except Unreadable as error:  # the message contains names from the file
        raise CheckpointError(f"{path} {printable(error)}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise UserError(f"{path} cannot be read: out of memory; {MORE_MEMORY}") from None
        # a damaged or hostile file can raise any exception
        raise CheckpointError(f"{path} {printable(Damaged(str(error) or type(error).__name__))}") from error
    if isinstance(loaded, Wrapper):
        loaded = getattr(loaded, "module", None)
    if not isinstance(loaded, dict | nn.Module):
        raise CheckpointError(f"{path} holds a {type(loaded).__name__}, not a checkpoint; give a file from training")
    return loaded if map_location in (None, "cpu") else moved(loaded, torch.device(map_location), {})


def nearby(folder: Path) -> str:
    """The newest .pt files in and below a folder, as the end of an error message."""
    if not folder.is_dir():
        return f", nor does its folder {folder}"
    found = [path for pattern in ("*.pt*", "*/*.pt*", "*/weights/*.pt*") for path in islice(folder.glob(pattern), 100)]
    files = {path for path in found if path.is_file() and path.suffix in (".pt", ".pth")}
    newest = sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[:5]
    return f"; there is {', '.join(map(str, newest))}" if newest else f"; there is no .pt file in {folder}"


def moved(obj: Any, device: torch.device, done: dict[int, Any]) -> Any:
    """Move every tensor and network in a nested value to a device; dictionaries and lists are changed in place.

    done: moved objects by id, so that shared objects stay shared.
    """
    if id(obj) not in done:
        done[id(obj)] = obj
        if isinstance(obj, torch.Tensor | nn.Module):
            done[id(obj)] = obj.to(device)
        elif type(obj) is tuple:
            done[id(obj)] = tuple(moved(item, device, done) for item in obj)
        elif isinstance(obj, dict | list):
            for key, item in list(obj.items() if isinstance(obj, dict) else enumerate(obj)):
                obj[key] = moved(item, device, done)
    return done[id(obj)]


def read_archive(path: Path, modules: Modules | None = None) -> Any:
    """The object in a file of torch.save, with tensors on the CPU. Raises `Unreadable` or OSError.

    modules: the network classes that it may contain; this project's by default.
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
    """Memory for `count` numbers, and an array of its bytes."""
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
            raise Damaged(f"it declares {count} numbers ({needed} bytes) but contains {present} bytes")
        if key not in storages:
            storages[key], content = new_storage(dtype, count)
            if needed:
                with archive.open(records[name]) as record:
                    assert isinstance(record, zipfile.ZipExtFile)  # opened for reading
                    record.readinto(content.data)  # all of it, and its checksum is compared
        if storages[key].dtype != dtype:
            raise Damaged("it declares the same storage with two types")
        return storages[key]

    return RestrictedUnpickler(io.BytesIO(archive.read(f"{folder}/data.pkl")), modules, read_storage).load()


def check_records(records: dict[str, zipfile.ZipInfo], file_size: int) -> str:
    """The folder inside the zip with `data.pkl`; raises `Unreadable` for zips that torch.save does not write."""
    folders = [name.removesuffix("/data.pkl") for name in records if name.endswith("/data.pkl")]
    if any(name.endswith("/constants.pkl") for name in records):
        raise Unreadable("is an exported TorchScript network; give the .pt file that training wrote")
    if len(folders) != 1:
        raise Unreadable(
            f"is a zip archive with {len(folders)} data.pkl, so it is not a checkpoint; give a .pt file from training"
        )
    if any(record.compress_type != zipfile.ZIP_STORED for record in records.values()):
        raise Unreadable("is a compressed archive, which torch.save never writes; unpack it and give the file inside")
    if sum(record.file_size for record in records.values()) > file_size:
        raise Damaged("its records claim more bytes than the file has")
    return folders[0]


# --- the container before PyTorch 1.6 ---------------------------------------------------------------------------------


def read_legacy(content: mmap.mmap, modules: Modules) -> Any:
    """Read consecutive pickles (magic number, version, machine, object, storage keys), then for each key the count of
    its numbers as int64 and their bytes."""
    magic, version, machine = None, None, {}
    with suppress(Unreadable, EOFError):
        magic, version, machine = (RestrictedUnpickler(content).load() for _ in range(3))
    if magic != LEGACY_MAGIC or version != LEGACY_VERSION:
        raise Unreadable("is a pickle but not a checkpoint; give a .pt file written by training")
    if machine.get("little_endian") is not (sys.byteorder == "little"):
        raise Unreadable("was written on a machine of another byte order; save it again on a machine like this one")
    storages: dict[str, tuple[Storage, np.ndarray]] = {}
    claimed = 0

    def read_storage(key: str, dtype: torch.dtype, count: int) -> Storage:
        nonlocal claimed
        if key not in storages:
            claimed += count * dtype.itemsize
            if claimed > len(content):
                raise Damaged(f"it declares {count} numbers more than the file can hold")
            storages[key] = new_storage(dtype, count)
        storage = storages[key][0]
        if (storage.dtype, storage.count) != (dtype, count):
            raise Damaged("it declares the same storage with two types or counts")
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


# --- the contents -----------------------------------------------------------------------------------------------------


def is_state_dict(obj: Any) -> bool:
    """Whether it is a non-empty mapping of names to tensors."""
    entries = obj.items() if isinstance(obj, Mapping) else ()
    return len(entries) > 0 and all(type(key) is str and isinstance(value, torch.Tensor) for key, value in entries)


def find_weights(checkpoint: Mapping | nn.Module, prefer_ema: bool, origin: str | Path) -> Mapping | nn.Module:
    if isinstance(checkpoint, nn.Module) or is_state_dict(checkpoint):
        return checkpoint
    for key in (*(("ema", "model") if prefer_ema else ("model", "ema")), "state_dict"):
        if isinstance(checkpoint.get(key), nn.Module) or is_state_dict(checkpoint.get(key)):
            return checkpoint[key]
    keys = ", ".join(key if isinstance(key, str) else shown(key) for key in islice(checkpoint, 20)) or "none"
    raise CheckpointError(f"{origin} holds no network and no weights (its keys: {keys}); give a .pt file from training")


def module_of(checkpoint: Mapping | nn.Module, prefer_ema: bool, origin: str | Path = "the checkpoint") -> nn.Module:
    """The network under `ema` or `model`, whichever is preferred and present. origin: file name for messages."""
    found = find_weights(checkpoint, prefer_ema, origin)
    if isinstance(found, nn.Module):
        return found
    if family_of(checkpoint) != "yolo":
        raise CheckpointError(
            f"{origin} is a checkpoint of the family '{family_of(checkpoint)}', which holds weights and no network; "
            "test.py and detect.py open it"
        )
    raise CheckpointError(
        f"{origin} holds weights only, not the network they belong to; "
        "give a checkpoint written by training, or use the weights as a start: train.py --weights with --cfg"
    )


def state_dict_of(
    checkpoint: Mapping | nn.Module, prefer_ema: bool = False, origin: str | Path = "the checkpoint"
) -> dict[str, torch.Tensor]:
    """Weights by name, from a network or a state dict, without the prefix `module.` of parallel wrappers."""
    found = find_weights(checkpoint, prefer_ema, origin)
    weights = found.state_dict() if isinstance(found, nn.Module) else found
    wrapped = all(name.startswith("module.") for name in weights)
    return {name.removeprefix("module.") if wrapped else name: value for name, value in weights.items()}


def transfer_weights(
    model: nn.Module,
    weights: Mapping[str, torch.Tensor],
    exclude: Iterable[str] = (),
    origin: str | Path = "the checkpoint",
) -> tuple[int, int]:
    """Copy the entries whose name and shape agree and whose name contains no word of `exclude`, in the model's dtype.

    Returns (number of copied entries, number of the model's entries). CheckpointError if nothing fits.
    """
    own = model.state_dict()
    wanted = {n: v for n, v in weights.items() if n in own and not any(word in n for word in exclude)}
    taken = {n: v for n, v in wanted.items() if v.shape == own[n].shape}
    if not taken:
        raise CheckpointError(
            f"nothing in {origin} fits this network: give weights of the same network, or none to start from scratch"
        )
    model.load_state_dict(taken, strict=False)
    LOGGER.info("Transferred %d/%d items from %s", len(taken), len(own), origin)
    if len(taken) < len(own) / 2:
        LOGGER.warning("%s seems to be from another network: most entries keep their initial values", origin)
    misfits = [n for n in wanted if n not in taken]
    if misfits:
        name = misfits[0]
        theirs, ours = list(weights[name].shape), list(own[name].shape)
        LOGGER.info(
            "%d items keep their initial values because their shapes differ (%s: %s in the file, %s here), "
            "for example because of another number of classes",
            *(len(misfits), name, theirs, ours),
        )
    return len(taken), len(own)


def strip_checkpoint(path: str | Path, out: str | Path | None = None) -> None:
    """Reduce a checkpoint to what inference needs: the EMA, or else the network. Written to `out`, or in place.

    A network becomes half precision, without gradients, as upstream strips it; the weights of a family that stores no
    network are not changed. Keys of training become None; `resume` is removed.
    """
    checkpoint = load_checkpoint(path)
    stores_network = family_of(checkpoint) == "yolo"
    found = (module_of if stores_network else find_weights)(checkpoint, prefer_ema=True, origin=path)
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"{path} is a bare network, which holds no training state that could be stripped")
    checkpoint.pop("resume", None)
    checkpoint.update(dict.fromkeys((*TRAINING_KEYS, *({"scheduler"} & checkpoint.keys()))))
    checkpoint["epoch"] = -1
    checkpoint["model"] = found.half().eval().requires_grad_(False) if isinstance(found, nn.Module) else found
    save_checkpoint(checkpoint, out or path)
