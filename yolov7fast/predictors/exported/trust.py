"""Which TorchScript files may be run: TorchScript is code, and what it does on loading cannot be restricted.

Each TorchScript file that export.py writes is recorded by its SHA-256, as an empty file of that name in the user's
cache folder. Every other one is refused unless the user trusts it.
"""

import hashlib
import os
from pathlib import Path

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import as_user_error
from yolov7fast.data.formats.dataset_files import CACHE_VARIABLE, cache_folder, cache_root

FOLDER = "trusted_exports"  # in the cache folder
VARIABLE = "YOLOV7FAST_TRUST_TORCHSCRIPT"


def record_export(path: Path) -> None:
    """Let the TorchScript file that export.py has just written be run by this user on this machine."""
    record = cache_folder(FOLDER) / hashlib.sha256(path.read_bytes()).hexdigest()
    with as_user_error(record, f"set {CACHE_VARIABLE}=FOLDER to a folder that can be written"):
        record.touch()


def check_trusted(content: bytes, origin: Path, trusted: bool) -> None:
    """Refuse the content of a TorchScript file that export.py did not write on this machine.

    trusted: the user passed --trust-torchscript.
    """
    if trusted or os.environ.get(VARIABLE) == "1":
        return
    if not (cache_root() / FOLDER / hashlib.sha256(content).hexdigest()).is_file():
        raise UserError(
            f"{origin} was not exported on this machine, and a TorchScript file can run any code: if you trust its "
            f"source, pass --trust-torchscript or set {VARIABLE}=1; otherwise use the .pt or .onnx file"
        )
