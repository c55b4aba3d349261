"""Cameras and network streams as sources of images, watched at once; recordings among them are played to their end."""

import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence

import cv2
import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.data.image_io import IMG_FORMATS
from yolov7fast.inference.frames import VIDEO_SUFFIXES, Frame, is_stream, network_input, read_list

LOGGER = logging.getLogger(__name__)
LIVE_STEP = 4  # of a live stream every fourth frame is decoded: the newest matters, not each one


def _listed(source: str) -> list[str]:
    """The sources behind one name: those in a list, which any file is that is no image or video, else the name."""
    suffix = source.rpartition(".")[2].lower()
    is_list = suffix == "txt" or (os.path.isfile(source) and suffix not in IMG_FORMATS + VIDEO_SUFFIXES)
    return read_list(source) if is_list and not is_stream(source) else [source]


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
            raise UserError(f"source {source} cannot be opened or gives no image")
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
                ok, image = self.capture.retrieve()
                if ok:
                    retried = False
                    with self.news:
                        self.newest = image
                        self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()
        self.capture.release()

    def take(self) -> np.ndarray | None:
        """The next image, each at most once; None where a live source has no new one, or at the end."""
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
            self.thread.join(timeout=2)  # a grab that hangs in the network ends with the process


class LoadStreams:
    """Cameras and network streams, watched at once; recordings among them are played to their end.

    sources: one source, or several, or a text file that lists them. Iterating yields (names, uint8 (B, 3, h, w) RGB,
    originals, None) with the sources that have a new image, and ends when all have ended. Unequal shapes are padded
    to one square, all of them with `square`.
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
        sources = _listed(str(sources)) if isinstance(sources, str | os.PathLike) else list(sources)
        self.skipped: list[str] = []
        self.streams: list[_Stream] = []
        self._news = threading.Condition()
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
            self.streams.append(_Stream(source, name, self._news))
        except UserError as error:
            self.skipped.append(str(error))

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
                fresh = [(stream, image) for stream, image in taken if image is not None]
                if not fresh and not ended and all(stream.live for stream in self.streams if not stream.ended):
                    self._news.wait(timeout=0.2)
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
        """Stop the reader threads and free the devices."""
        for stream in self.streams:
            stream.close()


def clean_name(source: str) -> str:
    """A stream's name as a file name: no password, no character that a shell or a file system minds."""
    return re.sub(r"[^\w.\-]", "_", re.sub(r"//[^/@]*@", "//", source))
