"""Facts about image files from one pass: decodable or not, size, content hash, perceptual hash; and duplicates by them.

Each file is read once and JPEGs are decoded at a fraction of their size. Facts are cached by path, size and time of the
file, so a second pass costs one `stat` per file. Near duplicates differ in encoding, size or slightly in brightness:
their perceptual hashes differ in few of their 64 bits, and their thumbnails are similar.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_file
from yolov7fast.core.files.paths import is_file
from yolov7fast.data.formats.dataset_files import cache_folder, plain_name
from yolov7fast.data.image_io import EXIF_ORIENTATION, decode_file, file_stamps, file_workers

VERSION = 4
GOOD, MISSING, UNREADABLE, TRUNCATED, TOO_LARGE = range(5)  # states of a file
MOST_LOOKED_AT = 100_000_000  # pixels; larger images are not decoded here
MOST_BYTES = 1 << 30  # of a file that is read here
THUMB = 16  # side in pixels of the thumbnail that near duplicates are compared by
HASHED = 32  # side in pixels of the image that the perceptual hash is computed from
GREY_STEP = 4  # largest difference of colour channels in a grey image
FLAT_STEP = 6  # grey levels between the darkest and the brightest part of an image of one colour
CHUNK = 64
MANY = 1000  # images from which on processes are used
MOST_BITS = 12  # of 64 that may differ: resized and re-encoded images differ in up to 10
MOST_DIFFERENCE = 6.0  # grey levels, mean over the thumbnail
BLOCK = 1 << 17  # pairs whose hashes are compared at once: one megabyte
THUMBS = 1 << 14  # pairs whose thumbnails are compared at once
MANY_COMPARED = 50_000  # images from which on progress is shown

FACTS = np.dtype(
    [
        ("state", np.uint8),
        ("width", np.int32),  # as stored, before EXIF
        ("height", np.int32),
        ("orientation", np.uint8),  # EXIF's, 1 = upright
        ("bits", np.uint8),  # needed by the values of a 16-bit image; 0 for other images
        ("grey", np.bool_),
        ("flat", np.bool_),  # one colour all over: no perceptual hash
        ("format", "S8"),
        ("digest", np.uint64, 2),  # of the file's content
        ("phash", np.uint64),
        ("thumb", np.uint8, (THUMB, THUMB)),
        ("error", "S160"),
    ]
)
# the eight lowest cosines over HASHED pixels
COSINES = np.cos(np.pi / HASHED * np.outer(np.arange(8), np.arange(HASHED) + 0.5)).astype(np.float32)
COSINES[0] /= np.sqrt(2)
MEANS = np.kron(np.eye(THUMB, dtype=np.float32), np.full(HASHED // THUMB, THUMB / HASHED, np.float32))  # to THUMB


def read_facts(paths: Sequence[str]) -> np.ndarray:
    """Return FACTS (n,) of files. Never raises: an unreadable file has a state."""
    Image.MAX_IMAGE_PIXELS = None  # sizes are checked here, before decoding
    cv2.setNumThreads(0)
    facts = np.zeros(len(paths), FACTS)
    facts["orientation"] = 1
    small = np.zeros((len(paths), HASHED, HASHED, 3), np.uint8)
    for i, path in enumerate(paths):
        pixels = _read(path, facts[i])
        if pixels is not None:
            small[i] = cv2.resize(pixels, (HASHED, HASHED), interpolation=cv2.INTER_AREA)
    _describe(small, facts)
    return facts


def _read(path: str, fact: np.void) -> np.ndarray | None:
    """Fill in the facts of the file and return its pixels, RGB or BGR, at any size; None if not readable."""
    try:
        size, regular = os.stat(path).st_size, is_file(path)
        if not regular or size > MOST_BYTES:
            fact["state"] = UNREADABLE
            fact["error"] = f"larger than {MOST_BYTES:,} bytes" if regular else "not a regular file"
            return None
        with open(path, "rb", buffering=0) as file:
            data = file.read()
    except OSError as error:
        fact["state"] = MISSING if isinstance(error, FileNotFoundError) else UNREADABLE
        fact["error"] = str(error.strerror).encode(errors="replace")[:160]
        return None
    fact["digest"] = np.frombuffer(hashlib.sha256(data).digest(), np.uint64, 2)
    try:
        return _decode(data, fact)
    except Exception as error:  # damaged files raise many types
        return _judge_error(path, error, fact)


def _decode(data: bytes, fact: np.void) -> np.ndarray | None:
    """Fill in what the decoder tells and return uint8 (h, w, 3), for hashes only."""
    with Image.open(io.BytesIO(data)) as image:
        fact["width"], fact["height"] = image.size
        fact["format"] = (image.format or "").lower().encode()
        if image.width * image.height > MOST_LOOKED_AT:
            fact["state"] = TOO_LARGE
            return None
        if ";16" in str(image.tile[:1]):  # Pillow's name of the pixels in the file: I;16, RGB;16B and the like
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
            if pixels is not None and pixels.dtype == np.uint16:
                fact["bits"] = int(pixels.max()).bit_length()
        with contextlib.suppress(Exception):  # damaged EXIF is ignored by OpenCV too
            value = image.getexif().get(EXIF_ORIENTATION, 1)  # of a PNG without EXIF, Pillow loads the pixels for it
            fact["orientation"] = value if isinstance(value, int) and 1 <= value <= 8 else 1
        if image.format in ("JPEG", "MPO"):
            image.draft("L" if image.mode == "L" else "RGB", (HASHED, HASHED))  # decodes at a fraction of the size
        image.load()
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            plane = np.asarray(image, np.float32)
            return cv2.merge([(plane * (255 / max(float(plane.max()), 1.0))).clip(0, 255).astype(np.uint8)] * 3)
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _judge_error(path: str, error: Exception, fact: np.void) -> np.ndarray | None:
    """Set the state: truncated if OpenCV, which training uses, still decodes the file, otherwise unreadable."""
    text = "not an image" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
    fact["error"] = text.encode(errors="replace")[:160]
    fact["state"] = UNREADABLE
    if not fact["width"]:
        return None
    pixels = decode_file(path)  # from a file, unlike from memory, OpenCV decodes the part that exists
    if pixels is not None:
        fact["state"] = TRUNCATED
    return pixels


def _describe(small: np.ndarray, facts: np.ndarray) -> None:
    """Fill in grey, flat, thumbnail and perceptual hash of images (n, 32, 32, 3).

    The hash holds the signs of the 64 lowest frequencies (of the cosine transform) around their median.
    """
    seen = facts["width"] > 0
    blue, green, red = (np.ascontiguousarray(small[..., k]).reshape(len(small), -1) for k in range(3))
    steps = np.maximum(
        np.maximum(blue, green) - np.minimum(blue, green), np.maximum(green, red) - np.minimum(green, red)
    )
    facts["grey"] = seen & (steps.max(1) <= GREY_STEP)
    plane = (blue.astype(np.float32) + green + red) / 3
    facts["flat"] = plane.max(1) - plane.min(1) < FLAT_STEP
    plane = plane.reshape(-1, HASHED, HASHED)
    facts["thumb"] = (MEANS @ plane @ MEANS.T).round()
    low = (COSINES @ plane @ COSINES.T).reshape(-1, 64)
    middle = np.sort(low[:, 1:], axis=1)[:, 31:32]
    hashes = np.packbits(low > middle, axis=1).view(np.uint64)[:, 0]
    facts["phash"] = np.where(seen & (facts["state"] != UNREADABLE) & (facts["state"] != TOO_LARGE), hashes, 0)


# --- many images ------------------------------------------------------------------------------------------------------


def look_at(paths: Sequence[str], source: str, desc: str = "looking at images") -> np.ndarray:
    """Return FACTS (n,) of images, cached where a file has not changed. source: name of the data set in the cache."""
    key = hashlib.blake2b(source.encode(errors="surrogateescape"), digest_size=6).hexdigest()
    place, stamps = cache_folder("facts") / f"{plain_name(Path(source).name)}-{key}.npz", file_stamps(paths)
    rows, old_stamps, old_facts = _stored(place)
    before = np.array([rows.get(path, -1) for path in paths], np.int64)
    known = before >= 0
    known[known] = (old_stamps[before[known]] == stamps[known]).all(1)
    facts = np.zeros(len(paths), FACTS)
    facts[known] = old_facts[before[known]]
    todo = np.flatnonzero(~known)
    if not len(todo):
        return facts
    parts = np.split(todo, range(CHUNK, len(todo), CHUNK))
    pool = file_workers(len(todo), MANY)
    try:
        with tqdm(total=len(todo), desc=desc, unit="img", leave=False) as bar:
            for part, found in zip(parts, pool.map(read_facts, [[paths[i] for i in part] for part in parts])):
                facts[part] = found
                bar.update(len(part))
    finally:
        pool.shutdown(cancel_futures=True)
    with contextlib.suppress(UserError), atomic_file(place, durable=False) as file:  # not written: read again next time
        np.savez(file, version=VERSION, paths=np.array(paths, dtype=str), stamps=stamps, facts=facts)
    return facts


def _stored(place: Path) -> tuple[dict[str, int], np.ndarray, np.ndarray]:
    """Return the cache: row of each path, stamps (k, 2), FACTS (k,); empty if missing, old or damaged."""
    try:
        with np.load(place, allow_pickle=False) as stored:
            paths, stamps, facts = stored["paths"].tolist(), stored["stamps"], stored["facts"]
            sizes = (len(paths),), (len(paths), 2)
            right = stored["version"] == VERSION and facts.dtype == FACTS and (facts.shape, stamps.shape) == sizes
        if right and stamps.dtype == np.int64:
            return {path: i for i, path in enumerate(paths)}, stamps, facts
    except Exception:  # damaged files raise many types; the cache is rewritten
        pass
    return {}, np.zeros((0, 2), np.int64), np.zeros(0, FACTS)


def loaded_sizes(facts: np.ndarray) -> np.ndarray:
    """Return (n, 2) widths and heights of images as loaded for training, EXIF rotation applied."""
    sizes = np.stack((facts["width"], facts["height"]), -1)
    return np.where((facts["orientation"] >= 5)[..., None], sizes[..., ::-1], sizes)


# --- duplicates -------------------------------------------------------------------------------------------------------


def exact_groups(digests: np.ndarray) -> list[list[int]]:
    """Return groups of images whose files are equal; digests: (n, 2) uint64, (0, 0) = not read."""
    read = np.flatnonzero(digests.any(1))
    order = read[np.lexsort((digests[read, 1], digests[read, 0]))]  # stable: positions of equal files ascend
    changes = 1 + np.flatnonzero((digests[order[1:]] != digests[order[:-1]]).any(1))
    return [group.tolist() for group in np.split(order, changes) if len(group) > 1]


def near_pairs(facts: np.ndarray) -> np.ndarray:
    """Return positions i < j, (p, 2), of images in FACTS (n,) that look the same; equal files are included."""
    usable = np.flatnonzero((facts["phash"] != 0) & ~facts["flat"])
    hashes = facts["phash"][usable]
    thumbs = facts["thumb"][usable].reshape(len(usable), facts.dtype["thumb"].itemsize)
    found = [np.zeros((0, 2), np.int64)]
    step = max(BLOCK // max(len(usable), 1), 1)
    bar = tqdm(range(0, len(usable), step), "comparing images", leave=False, disable=len(usable) < MANY_COMPARED)
    for start in bar:
        rows, columns = hashes[start : start + step, None], hashes[None, start:]
        close = np.flatnonzero(np.bitwise_count(rows ^ columns) <= MOST_BITS)
        i, j = start + close // columns.shape[1], start + close % columns.shape[1]
        i, j = i[i < j], j[i < j]
        for part in range(0, len(i), THUMBS):
            a, b = i[part : part + THUMBS], j[part : part + THUMBS]
            alike = np.abs(thumbs[a].astype(np.int16) - thumbs[b]).mean(1) <= MOST_DIFFERENCE
            found.append(np.stack((a[alike], b[alike]), 1))
    return usable[np.concatenate(found)]


def groups_of(n: int, pairs: np.ndarray) -> np.ndarray:
    """Return for each of n images the smallest position that it is connected with by pairs (p, 2): (n,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, group = connected_components(links, directed=False)
    _, first = np.unique(group, return_index=True)
    return first[group]
