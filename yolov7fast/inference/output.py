"""What a run of prediction leaves behind: labelled images, videos, text files; and a window, given a screen."""

import logging
import os
import sys
from pathlib import Path

import cv2
import numpy as np
import torch

from yolov7fast.core.boxes import xyxy2xywh
from yolov7fast.core.drawing import Names, class_colour, class_name, draw_boxes, save_image
from yolov7fast.core.files.atomic import Replacement, write_atomically
from yolov7fast.inference.frames import STREAM_FPS, Frame
from yolov7fast.inference.records import CropWriter, CsvWriter

LOGGER = logging.getLogger(__name__)


class PredictionOutput:
    """Writes results below `save_dir`. Images and videos keep their own names; `labels/` holds the text files.

    Two sources of one name do not overwrite each other: the later one gets a number.
    """

    def __init__(
        self,
        save_dir: Path,
        names: Names,
        save_img: bool = True,
        save_txt: bool = False,
        save_conf: bool = False,
        save_crop: bool = False,
        save_csv: bool = False,
    ):
        self.save_dir, self.names = Path(save_dir), names
        self.save_img, self.save_txt, self.save_conf = save_img, save_txt, save_conf
        self.label_count = 0  # text files written
        self._names: dict[str, str] = {}  # source path -> name of its results
        self._videos: dict[str, _Video] = {}
        self._drawn: tuple[Frame, np.ndarray] | None = None  # the last image, drawn once for file and window
        (self.save_dir / "labels" if save_txt else self.save_dir).mkdir(parents=True, exist_ok=True)
        wanted = ((save_crop, CropWriter), (save_csv, CsvWriter))
        self.records = [record(self.save_dir, names) for is_wanted, record in wanted if is_wanted]

    def write(self, frame: Frame, boxes: torch.Tensor) -> Path | None:
        """Write one image's results (boxes (k, 6) in its own pixels); returns the file of a saved image."""
        name = self._name(frame.path)
        if self.save_txt:
            self._write_text(frame, name, boxes)
        for record in self.records:
            record.write(frame, name, boxes)
        if not self.save_img:
            return None
        drawn = self.drawn(frame, boxes)
        if frame.kind != "image":
            self._video(frame, name, drawn.shape).add(drawn)
            return None
        path = self.save_dir / name
        if not cv2.haveImageWriter(str(path)):
            path = path.with_suffix(".jpg")  # a format that is read but not written, such as .dng
        save_image(drawn, path)
        return path

    def drawn(self, frame: Frame, boxes: torch.Tensor) -> np.ndarray:
        """A copy of the original with its boxes and "name score" labels; best detections on top."""
        if self._drawn is None or self._drawn[0] is not frame:
            image = np.ascontiguousarray(frame.original).copy()
            rows = boxes.flip(0).tolist()
            labels = [f"{class_name(self.names, row[5])} {row[4]:.2f}" for row in rows]
            draw_boxes(image, [row[:4] for row in rows], labels, [class_colour(row[5]) for row in rows])
            self._drawn = frame, image
        return self._drawn[1]

    def _write_text(self, frame: Frame, name: str, boxes: torch.Tensor) -> None:
        """`class x y w h [score]` per line, normalised, by ascending confidence; no file where nothing was detected."""
        stem = Path(name).stem if frame.kind != "stream" else name
        path = self.save_dir / "labels" / f"{stem}{'' if frame.kind == 'image' else f'_{frame.number}'}.txt"
        if not len(boxes):
            path.unlink(missing_ok=True)  # left by an earlier run in the same folder
            return
        h, w = frame.original.shape[:2]
        xywh = (xyxy2xywh(boxes[:, :4]) / torch.tensor([w, h, w, h])).tolist()
        lines = []
        for row, (*_, score, class_id) in reversed(list(zip(xywh, boxes.tolist()))):
            values = (class_id, *row, score) if self.save_conf else (class_id, *row)
            lines.append(" ".join(f"{v:g}" for v in values) + "\n")
        write_atomically(path, "".join(lines), durable=False)
        self.label_count += 1

    def _name(self, source: str) -> str:
        """The file name of a source's results: its own, numbered when another source has taken its stem."""
        if source not in self._names:
            name = os.fsencode(Path(source).name).decode(errors="replace")  # OpenCV takes UTF-8 names only
            stem, suffix = os.path.splitext(name)
            taken = {os.path.splitext(other)[0] for other in self._names.values()}
            unique, count = stem, 2
            while unique in taken:
                unique, count = f"{stem}_{count}", count + 1
            if unique != stem:
                LOGGER.warning("%s: its name is taken; results are saved as %s%s", source, unique, suffix)
            self._names[source] = unique + suffix
        return self._names[source]

    def _video(self, frame: Frame, name: str, shape: tuple[int, ...]) -> "_Video":
        if frame.path not in self._videos:
            if frame.kind == "video":
                self._close_videos()  # files come one after the other: the one before is complete
            name = name if frame.kind == "video" else f"{name}.mp4"
            fps = frame.fps if frame.kind == "video" else STREAM_FPS
            self._videos[frame.path] = _Video(self.save_dir / name, fps, shape)
        return self._videos[frame.path]

    def _close_videos(self) -> None:
        for video in self._videos.values():
            video.close()
        self._videos.clear()

    def close(self) -> None:
        """Complete every recording."""
        self._close_videos()
        for record in self.records:
            record.close()


class _Video:
    """A recording that gets its name when it is complete."""

    def __init__(self, path: Path, fps: float, shape: tuple[int, ...]):
        self.path, self.size = path, (shape[1], shape[0])
        codec = cv2.VideoWriter.fourcc(*"mp4v")
        self.writer = cv2.VideoWriter()
        for self.path in (path, path.with_suffix(".mp4")):  # not every container takes this codec
            self.part = Replacement(self.path, suffix=self.path.suffix, durable=False)
            self.writer = cv2.VideoWriter(str(self.part.temporary), codec, fps, self.size)
            if self.writer.isOpened():
                return
            self.part.discard()
        LOGGER.warning("no video can be written to %s: OpenCV has no mp4v encoder here", path)

    def add(self, image: np.ndarray) -> None:
        if self.writer.isOpened():
            same = (image.shape[1], image.shape[0]) == self.size  # a stream may change its size midway
            self.writer.write(image if same else cv2.resize(image, self.size))

    def close(self) -> None:
        opened = self.writer.isOpened()
        self.writer.release()
        if opened:
            self.part.commit()
            LOGGER.info("video saved in: %s", self.path)


class Window:
    """Shows images on a screen; see `open_window`."""

    def show(self, frame: Frame, image: np.ndarray) -> bool:
        """Show one image; False when the user pressed q."""
        cv2.imshow(Path(frame.path).name, image)
        return cv2.waitKey(1) & 0xFF != ord("q")


def open_window() -> Window | None:
    """A window where there is a screen and OpenCV can use it; else None, after saying so."""
    has_screen = not sys.platform.startswith("linux") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if has_screen:  # OpenCV's GUI would abort the process where there is none
        try:
            cv2.namedWindow("detect")
            cv2.destroyWindow("detect")
            return Window()
        except cv2.error:
            pass  # a build without windows
    LOGGER.warning("--view-img: no display here, or an OpenCV without windows; detection continues without showing")
    return None
