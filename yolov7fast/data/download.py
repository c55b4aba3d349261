"""Download of a missing data set: drawn by this package, or fetched by its YAML's `download:` if the user allows it.

`download:` is a shell command or the URL of a .zip. A YAML may come from an untrusted source, so neither runs without
--allow-download. An archive is unpacked into the folder of the data set only, never over an existing file; archives
with entries that point elsewhere are refused.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import printable
from yolov7fast.data.shapes import make_shapes

SHOWN = 200  # characters of a command or URL in a message
CHUNK = 1 << 20


class Fetch(NamedTuple):
    """How to get a data set, from its YAML."""

    yaml: str  # path of the YAML
    root: Path | None  # folder of the data set, if it has a separate one
    download: str | None
    generate: str | None


def ensure_present(missing: Callable[[], list[str]], way: Fetch, allow_download: bool) -> None:
    """Fetch the data set if `missing()` returns folders, then check that they exist."""
    absent = missing()
    if not absent:
        return
    names = printable(", ".join(absent), SHOWN)
    if way.generate:
        if way.generate != "shapes":
            raise UserError(f"{way.yaml}: generate: {printable(way.generate, 40)} is unknown; the only one is shapes")
        if way.root is None:
            raise UserError(f"{way.yaml}: generate: {_no_root(way)}")
        print(f"drawing the data set shapes into {way.root}, as {way.yaml} says", flush=True)
        make_shapes(way.root)
    elif not way.download:
        raise UserError(f"{way.yaml}: val: {names} does not exist{surroundings(absent[0])}{_yaml_comment(way.yaml)}")
    elif not allow_download:
        raise UserError(f"{way.yaml}: val: {names} does not exist; {_offer(way)}")
    else:
        print(f"{names} is missing: fetching it, as {way.yaml} says: {printable(way.download, SHOWN)}", flush=True)
        if way.download.endswith(".zip"):
            _fetch_zip(way)
        else:  # `python` in a command means the one that runs here
            path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
            code = subprocess.run(way.download, shell=True, check=False, env={**os.environ, "PATH": path}).returncode
            if code:
                command = printable(way.download, SHOWN)
                raise UserError(f"{way.yaml}: the download command ended with code {code}: {command}")
    if missing():
        how = "drawing it" if way.generate else "the download"
        raise UserError(f"{way.yaml}: val: {names} is still missing after {how}")


def _offer(way: Fetch) -> str:
    """Return what --allow-download would do."""
    what = printable(way.download, SHOWN)
    if not str(way.download).endswith(".zip"):
        return f"--allow-download would run this command: {what}"
    if way.root is None:
        return f"fetch {what} yourself: {_no_root(way)}"
    return f"--allow-download would fetch {what} and unpack it into {way.root}"


def _no_root(way: Fetch) -> str:
    return f"{way.yaml} names no separate folder for the data set (add `path: FOLDER`)"


def surroundings(absent: str) -> str:
    """Return a hint: the contents of the nearest existing parent folder."""
    folder = Path(absent)
    while folder != folder.parent and not os.path.isdir(folder):
        folder = folder.parent
    try:
        inside = sorted(p.name for p in folder.iterdir())[:8]
    except OSError:
        inside = []
    return f" (working directory {Path.cwd()}); {folder} holds: {printable(', '.join(inside), SHOWN) or 'nothing'}"


def _yaml_comment(path: str) -> str:
    """Return the comment at the start of a YAML, which usually names the source of the data set."""
    if not os.path.isfile(path):
        return ""
    lines = itertools.takewhile(lambda line: line.startswith("#"), Path(path).read_text(encoding="utf-8").splitlines())
    words = " ".join(line.lstrip("# ").strip() for line in lines)
    return f". The file says: {printable(words, 300)}" if words else ""


# --- archives ---------------------------------------------------------------------------------------------------------


def _fetch_zip(way: Fetch) -> None:
    """Download a .zip with a progress bar and unpack it into the data set's folder."""
    from yolov7fast.data.formats.zip_archive import unpack_below

    if way.root is None:
        raise UserError(_no_root(way))
    address = str(way.download)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "download.zip"
        try:
            with urllib.request.urlopen(address) as answer, file.open("wb") as out:
                size = int(answer.headers.get("Content-Length") or 0) or None
                with tqdm(total=size, unit="B", unit_scale=True, desc=printable(address.rsplit("/", 1)[-1], 60)) as bar:
                    while chunk := answer.read(CHUNK):
                        out.write(chunk)
                        bar.update(len(chunk))
        except (OSError, ValueError, urllib.error.URLError) as error:
            problem = f"could not fetch {printable(address, SHOWN)}: {printable(error, SHOWN)}"
            raise UserError(f"{way.yaml}: {problem}") from None
        unpack_below(file, way.root, printable(address, SHOWN))
