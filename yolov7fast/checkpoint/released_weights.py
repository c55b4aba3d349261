"""Upstream's published weights by name: `--weights yolov7-tiny.pt` finds them in weights/ or downloads them.

A download gets its final name when it is complete and `checkpoint_reader` can read it.
"""

import re
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from yolov7fast.core.errors import CheckpointError, UserError
from yolov7fast.core.files.atomic import Replacement, as_user_error
from yolov7fast.core.files.locks import exclusive
from yolov7fast.core.text import printable

RELEASE = "https://github.com/WongKinYiu/yolov7/releases/download/v0.1"
NETWORKS = ("yolov7-tiny", "yolov7", "yolov7x", "yolov7-w6", "yolov7-e6", "yolov7-d6", "yolov7-e6e")
FOLDER = Path("weights")
TIMEOUT = 30  # seconds without an answer
CHUNK = 1 << 20
MOST_BYTES = 2 << 30  # the largest of them has a sixth of it


def released_for(cfg: str | Path) -> str:
    """The published weights of a shipped network, `yolov7-tiny.pt` also for yolov7-tiny-320; empty: there are none."""
    found = re.fullmatch(rf"({'|'.join(NETWORKS)})(-\d+)?", Path(cfg).stem)
    return f"{found[1]}.pt" if found else ""


def local_weights(weights: str | Path) -> str:
    """The file that weights name: as given, or a published one in weights/, which is downloaded on first use.

    Only a bare name is looked for there (`yolov7.pt`), or the place itself (`weights/yolov7.pt`).
    """
    path = Path(weights)
    published = path.suffix == ".pt" and path.stem in NETWORKS and path.parent in (Path(), FOLDER)
    if not published or path.is_file():
        return str(weights)
    target = FOLDER / path.name
    if not target.is_file():
        with as_user_error(FOLDER):
            FOLDER.mkdir(exist_ok=True)
        with exclusive(target.with_suffix(".lock"), f"waiting for another process that downloads {target}"):
            if not target.is_file():
                _fetch(f"{RELEASE}/{path.name}", target)
    return str(target)


def _fetch(address: str, target: Path) -> None:
    from yolov7fast.checkpoint.checkpoint_reader import (  # torch is loaded only where it is needed
        load_checkpoint,
        state_dict_of,
    )

    print(f"{target.name} is missing: downloading {address}", flush=True)
    with Replacement(target) as replacement:
        try:
            _download(address, replacement.temporary)
            state_dict_of(load_checkpoint(replacement.temporary), origin=address)
        except (OSError, ValueError, CheckpointError) as error:  # URLError is an OSError
            cause = error.reason if type(error) is urllib.error.URLError else error  # the reason alone
            reason = "it is not a checkpoint" if isinstance(error, CheckpointError) else printable(cause, 120)
            raise UserError(
                f"{target.name} could not be downloaded ({reason}): download {address} yourself and save it as "
                f"{target}, or name another checkpoint; train.py trains from scratch without --weights"
            ) from None
        replacement.flush()
        replacement.commit()


def _download(address: str, file: Path) -> None:
    """Write what an address holds to a file, with a progress bar; ValueError: it is truncated or far too large."""
    with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, file.open("wb") as out:
        size = int(answer.headers.get("Content-Length") or 0)
        with tqdm(total=size or None, unit="B", unit_scale=True, desc=address.rsplit("/", 1)[-1]) as bar:
            while chunk := answer.read(CHUNK):
                out.write(chunk)
                bar.update(len(chunk))
                if out.tell() > MOST_BYTES:
                    raise ValueError(f"it is larger than {MOST_BYTES >> 30} GB")
        if size and out.tell() != size:
            raise ValueError(f"the connection broke off after {out.tell():,} of {size:,} bytes")
