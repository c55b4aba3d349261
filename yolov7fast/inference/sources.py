"""Sources of images for detection: image and video files, cameras and network streams, and lists of these.

Sources that cannot be read are skipped with a warning; if none is left, a `UserError` is raised. Iterating `LoadImages`
or `LoadStreams` yields upstream's tuples; `frames()` yields the same images as `Frame` objects.
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

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.files.paths import is_file
from yolov7fast.core.text import counted, printable
from yolov7fast.data.augment.transforms import letterbox
from yolov7fast.data.image_io import (
    IMG_FORMATS,
    check_place,
    decoder_warnings_caught,
    is_utf8,
    list_files,
    matching_files,
    read_unchecked_image,
)

LOGGER = logging.getLogger(__name__)

VIDEO_SUFFIXES = ("mov", "avi", "mp4", "mpg", "mpeg", "m4v", "wmv", "mkv")
STREAM_PREFIXES = ("rtsp://", "rtmp://", "http://", "https://")
STREAM_FPS = 30.0  # of recordings of streams
NOT_UTF8 = "video {}: OpenCV reads names in UTF-8 only; rename the file"
LIVE_STEP = 4  # every fourth frame of a live stream is decoded


@dataclass(frozen=True)
class Frame:
    """An image prepared for a detector."""

    path: str  # file, or the file name of a stream
    image: np.ndarray  # uint8 (3, h, w) RGB, letterboxed, contiguous
    original: np.ndarray  # uint8 (H, W, 3) BGR
    kind: str  # "image", "video" or "stream"
    number: int = 0  # frame of a video (from 1) or of a stream (from 0)
    total: int = 0  # frames of the video according to its header
    prefix: str = ""  # of the printed line
    fps: float = STREAM_FPS
    capture: cv2.VideoCapture | None = None


def network_input(original: np.ndarray, img_size: int, stride: int, square: bool, name: str = "an image") -> np.ndarray:
    """BGR image -> letterboxed RGB (3, h, w), padded to a square or to the next multiples of the stride.

    Raises UserError for an image whose shorter side would be less than one pixel; name: of the image in the message.
    """
    height, width = original.shape[:2]
    if round(min(height, width) * img_size / max(height, width)) < 1:
        raise UserError(
            f"{name} is {width}x{height} pixels, too thin for --img-size {img_size}: its shorter side would be less "
            "than one pixel; crop it, or give a larger size"
        )
    padded = letterbox(original, img_size, auto=not square, stride=stride)[0]
    return np.ascontiguousarray(padded[:, :, ::-1].transpose(2, 0, 1))


def is_stream(source: str) -> bool:
    """Whether a source is a camera number or the address of a network stream."""
    return source.isdigit() or source.lower().startswith(STREAM_PREFIXES)


def open_source(source: str, img_size: int = 640, stride: int = 32, square: bool = False) -> "LoadImages | LoadStreams":
    """The reader of a file, folder, glob, video, camera number, address, or .txt list of these.

    A list of local files is read file by file. If a list contains a camera or an address, all its entries are read at
    once as streams. square: pad every image to img_size x img_size.
    """
    source = str(source)
    if is_stream(source):
        return LoadStreams([source], img_size, stride, square)
    if source.lower().endswith(".txt"):
        entries = read_list(source)
        kind = LoadStreams if any(is_stream(entry) for entry in entries) else LoadImages
        return kind(entries, img_size, stride, square)
    return LoadImages(source, img_size, stride, square)


def read_list(path: str | os.PathLike) -> list[str]:
    """Sources from a text file, one per line, relative to the working directory or to the file."""
    path = Path(path)
    if not is_file(path):
        raise UserError(f"source list {path} does not exist")
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()]
    entries = [line for line in lines if line and not line.startswith("#")]
    if not entries:
        raise UserError(f"source list {path} is empty; write one file, camera number or address per line")
    near = [str(path.parent / entry) for entry in entries]
    return [n if not is_stream(e) and not _exists(e) and _exists(n) else e for e, n in zip(entries, near)]


def _exists(path: str) -> bool:
    """Whether a path or a glob names a file."""
    return os.path.exists(path) or bool(glob.glob(path))


def expand(source: str) -> list[str]:
    """The files of a recursive glob, a folder (without its sub-folders) or a file; absolute and sorted."""
    path = os.path.abspath(source)
    check_place(path, "source ")
    if os.path.isdir(path):
        return sorted(list_files(path, lambda name: True, deep=False)[0])
    if is_file(path):
        return [path]
    if "*" in path:
        return sorted(matching_files(path))
    if os.path.exists(path):
        raise UserError(f"source {source} is not a regular file")
    raise UserError(f"source {source} does not exist")


class LoadImages:
    """Image and video files: images first, then videos, each sorted by name.

    Iterating yields (path, letterboxed uint8 (3, h, w) RGB, original BGR, video capture or None). `len()` counts files,
    `total` counts images including the frames of videos, `skipped` lists unreadable sources with the reason.

    Args:
        path: a file, folder or glob, or a sequence of these.
        img_size: longer side of the letterboxed images.
        stride: their sides are multiples of it.
        square: pad to img_size x img_size.
    """

    def __init__(
        self, path: str | os.PathLike | Sequence[str], img_size: int = 640, stride: int = 32, square: bool = False
    ):
        self.img_size, self.stride, self.square = img_size, stride, square
        self.skipped: list[str] = []
        files = self._collect(path)
        images = [f for f in files if f.rsplit(".", 1)[-1].lower() in IMG_FORMATS]
        videos = [f for f in files if f.rsplit(".", 1)[-1].lower() in VIDEO_SUFFIXES]
        for video in videos:
            if not is_utf8(video):  # OpenCV reads videos by name only
                self._skip(NOT_UTF8.format(printable(video)))
        self.files = images + list(filter(is_utf8, videos))
        self.nf, self.image_count = len(self.files), len(images)
        self.mode = "image"
        if not self.files:
            found = f"; found {counted(len(files), 'other file')}" if files else ""
            formats = f"images: {' '.join(IMG_FORMATS)}; videos: {' '.join(VIDEO_SUFFIXES)}"
            raise UserError(f"source {path} holds no image and no video{found}; known {formats}")

    def _collect(self, path) -> list[str]:
        """The files of one source, or of the entries of a list, whose missing entries are skipped."""
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
        """Number of images, including the frames given in the headers of videos."""
        captures = map(cv2.VideoCapture, self.files[self.image_count :])
        return self.image_count + sum(max(int(c.get(cv2.CAP_PROP_FRAME_COUNT)), 1) for c in captures)

    def __iter__(self):
        for frame in self.frames():
            yield frame.path, frame.image, frame.original, frame.capture

    def frames(self) -> Iterator[Frame]:
        """Every readable image, one at a time."""
        for index, path in enumerate(self.files):
            self.mode = "image" if index < self.image_count else "video"
            yield from self._image(path, index) if self.mode == "image" else self._video(path, index)

    def _input(self, original: np.ndarray, name: str) -> np.ndarray | None:
        try:
            return network_input(original, self.img_size, self.stride, self.square, name)
        except UserError as error:
            self._skip(str(error))
            return None

    def _image(self, path: str, index: int) -> Iterator[Frame]:
        with decoder_warnings_caught() as warnings:
            try:
                original = read_unchecked_image(path)
            except UserError as error:
                return self._skip(str(error))
            except (cv2.error, MemoryError) as error:
                reason = one_line(error, 300).rpartition("error: ")[2][:150]  # without OpenCV's source location
                return self._skip(f"image {path} cannot be decoded ({reason})")
        image = self._input(original, f"image {path}")
        if image is None:
            return
        if warnings:
            LOGGER.warning("image %s is damaged (%s): only what can be read of it is used", path, warnings[0])
        relative = os.path.relpath(path)
        shown = printable(path if relative.startswith(os.pardir) else relative)
        yield Frame(path, image, original, "image", prefix=f"image {index + 1}/{self.nf} {shown}: ")

    def _video(self, path: str, index: int) -> Iterator[Frame]:
        capture = cv2.VideoCapture(path)
        total = max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)
        fps = capture.get(cv2.CAP_PROP_FPS)
        fps = fps if 0 < fps < 1000 else STREAM_FPS  # headers may lack a plausible rate
        number = 0
        try:
            while True:
                ok, original = capture.read()
                if not ok:
                    break
                number += 1
                image = self._input(original, f"video {path}")
                if image is None:
                    return
                prefix = f"video {index + 1}/{self.nf} ({number}/{max(total, number)}) {printable(path)}: "
                yield Frame(path, image, original, "video", number, total, prefix, fps, capture)
        finally:
            capture.release()
        if number == 0:
            self._skip(f"video {path} holds no frame that can be decoded")
        elif number < total:
            LOGGER.warning("video %s ends after %d of %d frames", path, number, total)

    def close(self) -> None:
        """Do nothing, as no file stays open; for symmetry with LoadStreams."""


# --- streams ----------------------------------------------------------------------------------------------------------


class _Stream:
    """One source of LoadStreams. A thread keeps the newest frame of a live source; a recording is read on demand."""

    def __init__(self, source: str, name: str, changed: threading.Condition):
        if not is_utf8(source):
            raise UserError(NOT_UTF8.format(printable(source)))
        self.source, self.name, self.changed = source, name, changed
        self.number = 0  # frames returned
        self.ended = False
        self.capture = self._open()
        ok, self.newest = self.capture.read()
        if not ok or self.newest is None:
            self.capture.release()
            raise UserError(f"source {source} cannot be opened or gives no image")
        self.live = source.isdigit() or self.capture.get(cv2.CAP_PROP_FRAME_COUNT) <= 0
        self.first_shape = self.newest.shape
        self._stop = False
        self.thread = threading.Thread(target=self._read, name=f"stream {name}", daemon=True) if self.live else None

    def _open(self) -> cv2.VideoCapture:
        opencv_log = cv2.utils.logging
        level = opencv_log.getLogLevel()
        opencv_log.setLogLevel(opencv_log.LOG_LEVEL_ERROR)  # our own message names a source that cannot be opened
        try:
            return cv2.VideoCapture(int(self.source) if self.source.isdigit() else self.source)
        finally:
            opencv_log.setLogLevel(level)

    def _read(self) -> None:
        """Keep the newest frame of a live source until it ends or is closed; reconnect once."""
        grabbed, retried = 0, False
        while not self._stop:
            if not self.capture.grab():
                if retried or self._stop:
                    break
                LOGGER.warning("stream %s was interrupted; connecting again", self.name)
                self.capture.release()
                self.capture, retried = self._open(), True
                continue
            grabbed += 1
            if grabbed % LIVE_STEP == 0:
                ok, image = self.capture.retrieve()
                if ok:
                    retried = False
                    with self.changed:
                        self.newest = image
                        self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self.capture.release()

    def take(self) -> np.ndarray | None:
        """The next image, or None if a live source has no new one or the source has ended."""
        image, self.newest = self.newest, None
        if image is None and not self.live and not self.ended:
            ok, image = self.capture.read()
            if not ok:
                self.ended, image = True, None
                self.capture.release()
        return image

    def close(self) -> None:
        self._stop = True
        if self.thread is None:
            self.capture.release()
        elif self.thread.is_alive():
            self.thread.join(timeout=2)  # a thread blocked in the network ends with the process


class LoadStreams:
    """Cameras and network streams, read at once; recordings among them are played to their end.

    Iterating yields (names, uint8 (B, 3, h, w) RGB, originals, None) of the sources with a new image, until all have
    ended. Images of different shapes are padded to one square.

    Args:
        sources: one video, camera or address, several, or a text file that lists them.
        img_size: longer side of the letterboxed images.
        stride: their sides are multiples of it.
        square: always pad to img_size x img_size.
    """

    mode = "stream"

    def __init__(
        self,
        sources: str | os.PathLike | Sequence[str] = "streams.txt",
        img_size: int = 640,
        stride: int = 32,
        square: bool = False,
    ):
        self.img_size, self.stride = img_size, stride
        if isinstance(sources, str | os.PathLike):
            name = str(sources)
            is_list = not is_stream(name) and name.rpartition(".")[2].lower() not in VIDEO_SUFFIXES
            sources = read_list(name) if is_list else [name]
        self.skipped: list[str] = []
        self.streams: list[_Stream] = []
        self._changed = threading.Condition()
        for source in sources:
            self._add(source)
        if not self.streams:
            raise UserError(f"no stream of {counted(len(sources), 'source')} can be read: {'; '.join(self.skipped)}")
        for reason in self.skipped:
            LOGGER.warning("skipped: %s", reason)
        blanks = (np.zeros(stream.first_shape, np.uint8) for stream in self.streams)
        shapes = {network_input(blank, img_size, stride, False).shape for blank in blanks}
        self.square = square or len(shapes) > 1
        if len(shapes) > 1:
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
            self.streams.append(_Stream(source, name, self._changed))
        except UserError as error:
            self.skipped.append(str(error))

    def __len__(self) -> int:
        return 0  # unknown for live streams

    def __iter__(self):
        for frames in self.frames():
            yield [f.path for f in frames], np.stack([f.image for f in frames]), [f.original for f in frames], None

    def frames(self) -> Iterator[list[Frame]]:
        """Lists of new frames of one shape, at most one per stream."""
        while True:
            with self._changed:
                ended = all(stream.ended for stream in self.streams)
                taken = [(stream, stream.take()) for stream in self.streams]
                fresh = [(stream, image) for stream, image in taken if image is not None]
                if not fresh and not ended and all(stream.live for stream in self.streams if not stream.ended):
                    self._changed.wait(timeout=0.2)
            if fresh:
                yield [self._frame(stream, image) for stream, image in fresh]
            elif ended:
                return

    def _frame(self, stream: _Stream, original: np.ndarray) -> Frame:
        number, stream.number = stream.number, stream.number + 1
        prefix = f"{self.streams.index(stream)}: " if len(self.streams) > 1 else ""
        image = network_input(original, self.img_size, self.stride, self.square)
        return Frame(stream.name, image, original, "stream", number, prefix=prefix)

    def close(self) -> None:
        """Stop the reader threads and release the devices."""
        for stream in self.streams:
            stream.close()


def clean_name(source: str) -> str:
    """The name of a stream as a file name, without passwords and special characters."""
    return re.sub(r"[^\w.\-]", "_", re.sub(r"//[^/@]*@", "//", source))
