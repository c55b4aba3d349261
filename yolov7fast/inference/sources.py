"""Where images to detect on come from: image and video files, cameras and network streams, lists of either.

What cannot be read is named and skipped; when nothing is left, that is an error. Iterating `LoadImages` or
`LoadStreams` yields the tuples that scripts know; `frames()` yields the same images with all that is known of each.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.text import counted, printable
from yolov7fast.data.image_io import (
    IMG_FORMATS,
    check_place,
    decoder_warnings_caught,
    is_utf8,
    list_files,
    matching_files,
    read_unchecked_image,
)
from yolov7fast.inference.frames import (
    STREAM_FPS,
    VIDEO_SUFFIXES,
    Frame,
    is_stream,
    network_input,
    read_list,
)
from yolov7fast.inference.streams import LoadStreams

LOGGER = logging.getLogger(__name__)


def open_source(source: str, img_size: int = 640, stride: int = 32, square: bool = False) -> "LoadImages | LoadStreams":
    """The reader for what the user named: a file, folder, glob, video, camera number, address or .txt list of these.

    A list that names local files only is read like a folder of them, every frame in order; with a camera or an address
    in it, all its entries are watched at once. square: pad every image to img_size x img_size.
    """
    source = str(source)
    if is_stream(source):
        return LoadStreams([source], img_size, stride, square)
    if source.lower().endswith(".txt"):
        entries = read_list(source)
        kind = LoadStreams if any(is_stream(entry) for entry in entries) else LoadImages
        return kind(entries, img_size, stride, square)
    return LoadImages(source, img_size, stride, square)


def expand(source: str) -> list[str]:
    """The files behind one path: a recursive glob, a folder (not its sub-folders) or a file; absolute and sorted."""
    path = os.path.abspath(source)
    check_place(path, "source ")
    if os.path.isdir(path):
        return sorted(list_files(path, lambda name: True, deep=False)[0])
    if os.path.isfile(path):
        return [path]
    if "*" in path:
        return sorted(matching_files(path))
    if os.path.exists(path):
        raise UserError(f"source {source} is no regular file")
    raise UserError(f"source {source} does not exist{_nearby(Path(path))}")


def _nearby(path: Path) -> str:
    """What there is in the nearest folder that exists, to help with a mistyped path."""
    folder = next((p for p in path.parents if p.is_dir()), Path("/"))
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return f"; {folder} holds: {shown}" if names else ""


class LoadImages:
    """Image and video files: images first, then videos, each group in the order of the sorted names.

    path: a file, folder or glob, or a sequence of these. Iterating yields (path, letterboxed uint8 (3, h, w) RGB,
    original BGR, video handle or None). `len()` counts files; `total` counts images, frames of videos included.
    `skipped` lists what could not be read, with the reason. square: pad to img_size x img_size.
    """

    def __init__(
        self,
        path: str | os.PathLike | Sequence[str],
        img_size: int = 640,
        stride: int = 32,
        square: bool = False,
    ):
        self.img_size, self.stride, self.square = img_size, stride, square
        self.skipped: list[str] = []
        files = self._collect(path)
        images = [f for f in files if f.rsplit(".", 1)[-1].lower() in IMG_FORMATS]
        videos = [f for f in files if f.rsplit(".", 1)[-1].lower() in VIDEO_SUFFIXES]
        for path in videos:
            if not is_utf8(path):  # OpenCV has no other way to read a video than by its name
                self._skip(f"video {printable(path)}: OpenCV reads names in UTF-8 only; rename the file")
        videos = list(filter(is_utf8, videos))
        self.files = images + videos
        self.nf, self.image_count = len(self.files), len(images)
        self.mode = "image"
        if not self.files:
            found = f"; found {counted(len(files), 'other file')}" if files else ""
            formats = f"images: {' '.join(IMG_FORMATS)}; videos: {' '.join(VIDEO_SUFFIXES)}"
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
        """Images in all: files plus the frames that the videos' headers promise."""
        return self.image_count + sum(max(_frame_count(f), 1) for f in self.files[self.image_count :])

    def __iter__(self):
        for frame in self.frames():
            yield frame.path, frame.image, frame.original, frame.capture

    def frames(self) -> Iterator[Frame]:
        """Every readable image, one at a time."""
        for index, path in enumerate(self.files):
            if index < self.image_count:
                self.mode = "image"
                prepared = self._read(path)
                if prepared is not None:
                    original, image = prepared
                    prefix = f"image {index + 1}/{self.nf} {_shown(path)}: "
                    yield Frame(path, image, original, "image", prefix=prefix)
            else:
                self.mode = "video"
                yield from self._video(path, index)

    def _input(self, original: np.ndarray, name: str) -> np.ndarray:
        return network_input(original, self.img_size, self.stride, self.square, name)

    def _read(self, path: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The image and what the network takes of it, or None where it cannot be used.

        What the decoder complains of is logged once, by name.
        """
        with decoder_warnings_caught() as warnings:
            try:
                original = read_unchecked_image(path)
            except UserError as error:
                self._skip(str(error))
                return None
            except (cv2.error, MemoryError) as error:
                self._skip(f"image {path} cannot be decoded ({_reason(error)})")
                return None
        try:
            prepared = original, self._input(original, f"image {path}")
        except UserError as error:
            self._skip(str(error))
            return None
        if warnings:
            LOGGER.warning("image %s is damaged (%s): only what can be read of it is used", path, warnings[0])
        return prepared

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
                try:
                    image = self._input(original, f"video {path}")
                except UserError as error:
                    self._skip(str(error))
                    return
                prefix = f"video {index + 1}/{self.nf} ({number}/{max(total, number)}) {path}: "
                yield Frame(path, image, original, "video", number, total, prefix, fps, capture)
        finally:
            capture.release()
        if number == 0:
            self._skip(f"video {path} holds no frame that can be decoded")
        elif number < total:
            LOGGER.warning("video %s ends after %d of %d frames", path, number, total)

    def close(self) -> None:
        """Nothing stays open between frames; here so that both readers are closed alike."""


def _reason(error: Exception) -> str:
    """Why a decoder gave up; of OpenCV's message what follows its place in the source."""
    if "CV_IO_MAX_IMAGE" in str(error):
        return "its header claims more pixels than OpenCV reads"
    return one_line(error, 300).rpartition("error: ")[2][:150]


def valid_fps(fps: float) -> float:
    """The rate a header gives, or 30 where it gives none that makes sense."""
    return fps if 0 < fps < 1000 else STREAM_FPS


def _frame_count(path: str) -> int:
    capture = cv2.VideoCapture(path)
    try:
        return int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    finally:
        capture.release()


def _shown(path: str) -> str:
    """A path as its user would write it: relative where it lies below the working directory."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
