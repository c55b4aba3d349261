"""What every source of images gives: frames ready for a predictor; and lists of sources."""

import glob
import os
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.data.augment.transforms import letterbox

VIDEO_SUFFIXES = ("mov", "avi", "mp4", "mpg", "mpeg", "m4v", "wmv", "mkv")
STREAM_PREFIXES = ("rtsp://", "rtmp://", "http://", "https://")
STREAM_FPS = 30.0  # at which streams are recorded


@dataclass(frozen=True)
class Frame:
    """One image on its way to a detector."""

    path: str  # file, or the cleaned name of a stream
    image: np.ndarray  # uint8 (3, h, w) RGB, letterboxed, contiguous
    original: np.ndarray  # uint8 (H, W, 3) BGR
    kind: str  # "image", "video" or "stream"
    number: int = 0  # frame of a video (from 1) or of a stream (from 0)
    total: int = 0  # frames of the video, as its header says
    prefix: str = ""  # what a printed line starts with
    fps: float = STREAM_FPS
    capture: cv2.VideoCapture | None = None


def network_input(original: np.ndarray, img_size: int, stride: int, square: bool, name: str = "an image") -> np.ndarray:
    """BGR image -> letterboxed RGB (3, h, w), padded to a square or else to the next multiples of the stride.

    An image that would be less than one pixel high or wide at this size raises `UserError`; name: what it calls it.
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
    """A camera number or the address of a network stream."""
    return source.isdigit() or source.lower().startswith(STREAM_PREFIXES)


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


def _exists(entry: str) -> bool:
    return os.path.exists(entry) or bool(glob.glob(entry))
