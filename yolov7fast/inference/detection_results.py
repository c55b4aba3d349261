"""The results of a detector called from Python, with the members of upstream's hub results."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from yolov7fast.core.boxes import xyxy2xywh
from yolov7fast.core.drawing import class_name, save_image
from yolov7fast.core.errors import need
from yolov7fast.core.files.paths import increment_path
from yolov7fast.inference.detection_output import class_counts, draw_detections, utf8_name, writable_path

XYXY = ("xmin", "ymin", "xmax", "ymax")
XYWH = ("xcenter", "ycenter", "width", "height")


class InputImage(NamedTuple):
    """An image given to a detector."""

    name: str  # file name, or image0.jpg, image1.jpg, ...
    bgr: np.ndarray  # uint8 (H, W, 3)


class ResultTables(NamedTuple):
    """Boxes as one pandas DataFrame per image: four columns of the box, then confidence, class and name."""

    xyxy: list[Any]
    xywh: list[Any]
    xyxyn: list[Any]
    xywhn: list[Any]


class Results:
    """Detections on a list of images.

    `xyxy`: per image a tensor (k, 6): x1, y1, x2, y2 in whole pixels of the image, confidence, class; best first.
    `xywh` has centre and size; `xyxyn` and `xywhn` are normalised by the image size. `imgs`: the images, RGB. `len()`
    counts images; indexing and iterating give the `Results` of single images.

    Args:
        images: the images.
        detections: per image (k, 6).
        names: class names.
        times: milliseconds per image for preparation, inference and NMS.
    """

    def __init__(
        self,
        images: Sequence[InputImage],
        detections: Sequence[torch.Tensor],
        names: Sequence[str],
        times: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ):
        self.inputs, self.pred = list(images), list(detections)
        self.names, self.times = names, times

    @property
    def xyxy(self) -> list[torch.Tensor]:
        return self.pred

    @cached_property
    def xywh(self) -> list[torch.Tensor]:
        return [cast(torch.Tensor, xyxy2xywh(rows)) for rows in self.xyxy]

    @cached_property
    def xyxyn(self) -> list[torch.Tensor]:
        return [rows / scale for rows, scale in zip(self.xyxy, self._scales())]

    @cached_property
    def xywhn(self) -> list[torch.Tensor]:
        return [rows / scale for rows, scale in zip(self.xywh, self._scales())]

    def _scales(self) -> list[torch.Tensor]:
        sizes = [image.bgr.shape[:2] for image in self.inputs]
        return [torch.tensor([w, h, w, h, 1.0, 1.0]) for h, w in sizes]

    @property
    def files(self) -> list[str]:
        return [image.name for image in self.inputs]

    @cached_property
    def imgs(self) -> list[np.ndarray]:
        """The images, uint8 (H, W, 3) RGB; `render` draws on them."""
        return [np.ascontiguousarray(image.bgr[..., ::-1]) for image in self.inputs]

    @property
    def n(self) -> int:
        return len(self.inputs)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> "Results":
        return Results([self.inputs[index]], [self.pred[index]], self.names, self.times)

    def __iter__(self) -> Iterator["Results"]:
        return (self[index] for index in range(len(self)))

    def tolist(self) -> list["Results"]:
        """One `Results` per image."""
        return list(self)

    def __str__(self) -> str:
        lines = []
        for number, (image, rows) in enumerate(zip(self.inputs, self.pred), 1):
            height, width = image.bgr.shape[:2]
            counts = class_counts(rows, self.names) or "(no detections)"
            lines.append(f"image {number}/{len(self)}: {height}x{width} {counts}")
        times = "/".join(f"{ms:.1f}" for ms in self.times)
        return "\n".join([*lines, f"Speed: {times} ms pre-process/inference/NMS per image"])

    def __repr__(self) -> str:
        return f"<Results of {len(self)} images, {sum(map(len, self.pred))} detections>"

    def print(self) -> None:
        print(self)

    def drawn(self, index: int) -> np.ndarray:
        """A copy of an image, BGR, with its boxes and labels."""
        return draw_detections(self.inputs[index].bgr, self.pred[index], self.names)

    def render(self) -> list[np.ndarray]:
        """The images with their boxes drawn, RGB; they replace `imgs`."""
        self.imgs[:] = [np.ascontiguousarray(self.drawn(index)[..., ::-1]) for index in range(len(self))]
        return self.imgs

    def save(self, save_dir: str | Path = "runs/hub/exp") -> Path:
        """Write the images with their boxes drawn into a folder, which is returned."""
        folder = increment_path(save_dir, exist_ok=str(save_dir) != "runs/hub/exp")
        folder.mkdir(parents=True, exist_ok=True)
        written: set[Path] = set()
        for index, image in enumerate(self.inputs):
            path = writable_path(folder / utf8_name(image.name))
            if path in written:  # images with the same name from different folders
                path = path.with_stem(f"{path.stem}_{index}")
            save_image(self.drawn(index), path)
            written.add(path)
        return folder

    def show(self) -> None:
        """Show every image in a viewer."""
        from PIL import Image

        for image in self.render():
            Image.fromarray(image).show()

    def pandas(self) -> ResultTables:
        """The boxes of every image as DataFrames: `results.pandas().xyxy[0]`."""
        pandas = need("pandas", "results.pandas()", "pandas")
        forms = ((self.xyxy, XYXY), (self.xywh, XYWH), (self.xyxyn, XYXY), (self.xywhn, XYWH))

        def table(rows: torch.Tensor, columns: Sequence[str]) -> Any:
            values = [[*row[:5], int(row[5]), class_name(self.names, row[5])] for row in rows.tolist()]
            return pandas.DataFrame(values, columns=[*columns, "confidence", "class", "name"])

        return ResultTables(*([table(rows, columns) for rows in form] for form, columns in forms))

    def to_supervision(self) -> list[Any]:
        """One `supervision.Detections` per image, with the class names as `data["class_name"]`."""
        supervision = need("supervision", "results.to_supervision()", "supervision")
        found = []
        for rows in self.pred:
            array = rows.numpy()
            labels = array[:, 5].astype(int)
            names = np.array([class_name(self.names, c) for c in labels], dtype=str)
            detections = supervision.Detections(
                xyxy=array[:, :4].copy(), confidence=array[:, 4].copy(), class_id=labels, data={"class_name": names}
            )
            found.append(detections)
        return found
