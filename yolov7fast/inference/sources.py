"""Where pictures to detect on come from: image and video files, cameras and network streams, lists of either.

What cannot be read is named and skipped; when nothing is left, that is an error. Iterating `LoadImages` or
`LoadStreams` yields the tuples that scripts know; `frames()` yields the same pictures with all that is known of each.
"""

import glob
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from yolov7fast.augment.transforms import letterbox
from yolov7fast.core.errors import UserError
from yolov7fast.data.images import read_image

LOGGER = logging.getLogger(__name__)
IMAGE_SUFFIXES = ("bmp", "jpg", "jpeg", "png", "tif", "tiff", "dng", "webp", "mpo")
VIDEO_SUFFIXES = ("mov", "avi", "mp4", "mpg", "mpeg", "m4v", "wmv", "mkv")
STREAM_PREFIXES = ("rtsp://", "rtmp://", "http://", "https://")
LIVE_STEP = 4  # of a live stream every fourth frame is decoded: the newest matters, not each one
STREAM_FPS = 30.0  # at which streams are recorded


@dataclass(frozen=True)
class Frame:
    """One picture on its way to a detector."""

    path: str  # file, or the cleaned name of a stream
    image: np.ndarray  # uint8 (3, h, w) RGB, letterboxed, contiguous
    original: np.ndarray  # uint8 (H, W, 3) BGR
    kind: str  # "image", "video" or "stream"
    number: int = 0  # frame of a video (from 1) or of a stream (from 0)
    total: int = 0  # frames of the video, as far as its header tells
    prefix: str = ""  # what a printed line starts with
    fps: float = STREAM_FPS
    capture: cv2.VideoCapture | None = None


def is_stream(source: str) -> bool:
    """A camera number or the address of a network stream."""
    return source.isdigit() or source.lower().startswith(STREAM_PREFIXES)


def open_source(source: str, img_size: int = 640, stride: int = 32) -> "LoadImages | LoadStreams":
    """The reader for what the user named: a file, folder, glob, video, camera number, address or .txt list of these.

    A list that names local files only is read like a folder of them, every frame in order; with a camera or an address
    in it, all its entries are watched at once.
    """
    source = str(source)
    if is_stream(source):
        return LoadStreams([source], img_size, stride)
    if source.lower().endswith(".txt"):
        entries = read_list(source)
        kind = LoadStreams if any(is_stream(entry) for entry in entries) else LoadImages
        return kind(entries, img_size, stride)
    return LoadImages(source, img_size, stride)


def read_list(path: str | os.PathLike) -> list[str]:
    """Sources from a text file, one per line; paths are relative to the working directory or else to the file."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"source list {path} does not exist")
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    entries = [line for line in lines if line and not line.startswith("#")]
    if not entries:
        raise UserError(f"source list {path} is empty; write one file, camera number or address per line")
    beside_list = [str(path.parent / entry) for entry in entries]
    return [
        beside if not is_stream(entry) and not _exists(entry) and _exists(beside) else entry
        for entry, beside in zip(entries, beside_list)
    ]


def _listed(source: str) -> list[str]:
    """The sources behind one name: those in a list, which any file is that is no picture or video, else the name."""
    suffix = source.rpartition(".")[2].lower()
    is_list = suffix == "txt" or (os.path.isfile(source) and suffix not in IMAGE_SUFFIXES + VIDEO_SUFFIXES)
    return read_list(source) if is_list and not is_stream(source) else [source]


def _exists(entry: str) -> bool:
    return os.path.exists(entry) or bool(glob.glob(entry))


def expand(source: str) -> list[str]:
    """The files behind one path: a recursive glob, a folder (not its sub-folders) or a file; absolute and sorted."""
    path = os.path.abspath(source)
    if os.path.isdir(path):
        return sorted(str(p) for p in Path(path).iterdir() if p.is_file() and p.suffix)
    if os.path.isfile(path):
        return [path]
    if "*" in path:
        return sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))
    raise UserError(f"source {source} does not exist{_nearby(Path(path))}")


def _nearby(path: Path) -> str:
    """What there is in the nearest folder that exists, to help with a mistyped path."""
    folder = next((p for p in path.parents if p.is_dir()), Path("/"))
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return f"; {folder} holds: {shown}" if names else ""


def _network_input(picture: np.ndarray, img_size: int, stride: int, auto: bool = True) -> np.ndarray:
    """BGR picture -> letterboxed RGB (3, h, w); `auto` pads to the next multiple of the stride, else to a square."""
    padded = letterbox(picture, img_size, auto=auto, stride=stride)[0]
    return np.ascontiguousarray(padded[:, :, ::-1].transpose(2, 0, 1))


class LoadImages:
    """Image and video files: images first, then videos, each group in the order of the sorted names.

    path: a file, folder or glob, or a sequence of these. Iterating yields (path, letterboxed uint8 (3, h, w) RGB,
    original BGR, video handle or None). `len()` counts files; `total` counts pictures, frames of videos included.
    `skipped` lists what could not be read, with the reason.
    """

    def __init__(self, path: str | os.PathLike | Sequence[str], img_size: int = 640, stride: int = 32):
        self.img_size, self.stride = img_size, stride
        self.skipped: list[str] = []
        files = self._collect(path)
        images = [f for f in files if f.rsplit(".", 1)[-1].lower() in IMAGE_SUFFIXES]
        videos = [f for f in files if f.rsplit(".", 1)[-1].lower() in VIDEO_SUFFIXES]
        self.files = images + videos
        self.nf, self.image_count = len(self.files), len(images)
        self.mode = "image"
        if not self.files:
            found = f" ({len(files)} other files are there)" if files else ""
            formats = f"images: {' '.join(IMAGE_SUFFIXES)}; videos: {' '.join(VIDEO_SUFFIXES)}"
            raise UserError(f"source {path} holds no image and no video{found}; known {formats}")

    def _collect(self, path) -> list[str]:
        """Files behind one source, or behind each entry of a list, where a missing entry is skipped."""
        if isinstance(path, str | os.PathLike):
            return expand(str(path))
        files: list[str] = []
        for entry in path:
            try:
                files += expand(str(entry))
            except UserError as error:
                self._skip(str(error))
        return list(dict.fromkeys(files))

    def _skip(self, reason: str) -> None:
        self.skipped.append(reason)
        LOGGER.warning("skipped: %s", reason)

    def __len__(self) -> int:
        return self.nf

    @property
    def total(self) -> int:
        """Pictures in all: images plus the frames that the videos' headers promise."""
        return self.image_count + sum(max(_frame_count(f), 1) for f in self.files[self.image_count :])

    def __iter__(self):
        for frame in self.frames():
            yield frame.path, frame.image, frame.original, frame.capture

    def frames(self) -> Iterator[Frame]:
        """Every readable picture, one at a time."""
        for index, path in enumerate(self.files):
            if index < self.image_count:
                self.mode = "image"
                try:
                    original = read_image(path)
                except UserError:
                    self._skip(f"image {path} cannot be decoded")
                    continue
                yield Frame(path, _network_input(original, self.img_size, self.stride), original, "image")
            else:
                self.mode = "video"
                yield from self._video(path, index)

    def _video(self, path: str, index: int) -> Iterator[Frame]:
        capture = cv2.VideoCapture(path)
        total = max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)
        fps = valid_fps(capture.get(cv2.CAP_PROP_FPS))
        number = 0
        try:
            while True:
                ok, original = capture.read()
                if not ok:
                    break
                number += 1
                prefix = f"video {index + 1}/{self.nf} ({number}/{max(total, number)}) {path}: "
                image = _network_input(original, self.img_size, self.stride)
                yield Frame(path, image, original, "video", number, total, prefix, fps, capture)
        finally:
            capture.release()
        if number == 0:
            self._skip(f"video {path} holds no frame that can be decoded")
        elif number < total:
            LOGGER.warning("video %s ends after %d of %d frames", path, number, total)

    def close(self) -> None:
        """Nothing stays open between frames; here so that both readers are closed alike."""


def valid_fps(fps: float) -> float:
    """The rate a header gives, or 30 where it gives none that makes sense."""
    return fps if 0 < fps < 1000 else STREAM_FPS


def _frame_count(path: str) -> int:
    capture = cv2.VideoCapture(path)
    try:
        return int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    finally:
        capture.release()


class _Stream:
    """One source of LoadStreams. A live one is read by a thread that keeps the newest frame; a recording is read frame
    by frame when asked, and ends."""

    def __init__(self, source: str, name: str, news: threading.Condition):
        self.source, self.name, self.news = source, name, news
        self.number = 0  # frames handed out
        self.ended = False
        self.capture = self._open()
        ok, self.newest = self.capture.read()
        if not ok or self.newest is None:
            self.capture.release()
            raise UserError(f"source {source} cannot be opened or gives no picture")
        self.live = source.isdigit() or self.capture.get(cv2.CAP_PROP_FRAME_COUNT) <= 0
        self.first_shape = self.newest.shape
        self._stop = False
        self.thread = threading.Thread(target=self._read, name=f"stream {name}", daemon=True) if self.live else None

    def _open(self) -> cv2.VideoCapture:
        return cv2.VideoCapture(int(self.source) if self.source.isdigit() else self.source)

    def _read(self) -> None:
        """Keep the newest frame of a live source until it ends or is closed; one attempt to connect again."""
        grabbed, retried = 0, False
        while not self._stop:
            if not self.capture.grab():
                if retried or self._stop:
                    break
                LOGGER.warning("stream %s broke off; connecting again", self.name)
                self.capture.release()
                self.capture, retried = self._open(), True
                continue
            grabbed += 1
            if grabbed % LIVE_STEP == 0:
                ok, picture = self.capture.retrieve()
                if ok:
                    retried = False
                    with self.news:
                        self.newest = picture
                        self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()
        self.capture.release()

    def take(self) -> np.ndarray | None:
        """The next picture, each at most once; None where a live source has no new one, or at the end."""
        picture, self.newest = self.newest, None
        if picture is None and not self.live and not self.ended:
            ok, picture = self.capture.read()
            if not ok:
                self.ended, picture = True, None
                self.capture.release()
        return picture

    def close(self) -> None:
        self._stop = True
        if self.thread is None:
            self.capture.release()
        elif self.thread.is_alive():
            self.thread.join(timeout=2)  # a grab that hangs in the network ends with the process


class LoadStreams:
    """Cameras and network streams, watched at once; recordings among them are played to their end.

    sources: one source, or several, or a text file that lists them. Iterating yields (names, uint8 (B, 3, h, w) RGB,
    originals, None) with the sources that have a new picture, and ends when all have ended. Unequal shapes are padded
    to one square.
    """

    mode = "stream"

    def __init__(
        self, sources: str | os.PathLike | Sequence[str] = "streams.txt", img_size: int = 640, stride: int = 32
    ):
        self.img_size, self.stride = img_size, stride
        sources = _listed(str(sources)) if isinstance(sources, str | os.PathLike) else list(sources)
        self.skipped: list[str] = []
        self.streams: list[_Stream] = []
        self._news = threading.Condition()
        for source in sources:
            self._add(source)
        if not self.streams:
            raise UserError(f"none of the {len(sources)} streams can be read: {'; '.join(self.skipped)}")
        shapes = {_network_input(np.zeros(s.first_shape, np.uint8), img_size, stride).shape for s in self.streams}
        self.rect = len(shapes) == 1
        if not self.rect:
            LOGGER.warning("streams of different shapes: all are padded to %d x %d", img_size, img_size)
        for stream in self.streams:
            if stream.thread:
                stream.thread.start()

    def _add(self, source: str) -> None:
        taken = {s.name for s in self.streams}
        name = base = clean_name(source)
        count = 2
        while name in taken:
            name, count = f"{base}_{count}", count + 1
        try:
            self.streams.append(_Stream(source, name, self._news))
        except UserError as error:
            self.skipped.append(str(error))
            LOGGER.warning("skipped: %s", error)

    def __len__(self) -> int:
        return 0  # unknown: a live stream has no length

    def __iter__(self):
        for frames in self.frames():
            yield [f.path for f in frames], np.stack([f.image for f in frames]), [f.original for f in frames], None

    def frames(self) -> Iterator[list[Frame]]:
        """Lists of the frames that are new, at most one per stream, of one common shape."""
        while True:
            with self._news:
                ended = all(stream.ended for stream in self.streams)
                taken = [(stream, stream.take()) for stream in self.streams]
                fresh = [(stream, picture) for stream, picture in taken if picture is not None]
                if not fresh and not ended and all(stream.live for stream in self.streams if not stream.ended):
                    self._news.wait(timeout=0.2)
            if fresh:
                yield [self._frame(stream, picture) for stream, picture in fresh]
            elif ended:
                return

    def _frame(self, stream: _Stream, picture: np.ndarray) -> Frame:
        number, stream.number = stream.number, stream.number + 1
        prefix = f"{self.streams.index(stream)}: " if len(self.streams) > 1 else ""
        image = _network_input(picture, self.img_size, self.stride, auto=self.rect)
        return Frame(stream.name, image, picture, "stream", number, prefix=prefix)

    def close(self) -> None:
        """Stop the reader threads and free the devices."""
        for stream in self.streams:
            stream.close()


def clean_name(source: str) -> str:
    """A stream's name as a file name: no password, no character that a shell or a file system minds."""
    return re.sub(r"[^\w.\-]", "_", re.sub(r"//[^/@]*@", "//", source))
