"""All objects of a data set in flat arrays, so that a check is one expression and not a loop."""

from dataclasses import dataclass

import numpy as np

from yolov7fast.data.formats.samples import AnnotatedSet, Sample


@dataclass(frozen=True)
class Objects:
    """m objects of n images. Boxes are fractions of the image: left, top, right, bottom."""

    image: np.ndarray  # (m,) position among the images
    cls: np.ndarray  # (m,)
    box: np.ndarray  # (m, 4)
    line: np.ndarray  # (m,)
    crowd: np.ndarray  # (m,) bool
    counts: np.ndarray  # (n,) objects of each image
    split: np.ndarray  # (n,) number of the image's split

    @property
    def wh(self) -> np.ndarray:
        """(m, 2) widths and heights."""
        return self.box[:, 2:] - self.box[:, :2]

    def of_image(self, i: int) -> slice:
        """The rows of one image: they follow each other."""
        start = int(self.counts[:i].sum())
        return slice(start, start + int(self.counts[i]))


def collect(annotated: AnnotatedSet) -> tuple[list[Sample], Objects]:
    """(all samples, their objects), split by split."""
    samples = annotated.samples
    counts = np.array([len(s.classes) for s in samples], np.int64)
    split = np.repeat(np.arange(len(annotated.splits)), [len(s) for s in annotated.splits.values()])
    full = [s for s in samples if len(s.classes)]

    def joined(parts: list[np.ndarray], shape: tuple, dtype) -> np.ndarray:
        return np.concatenate([np.zeros(shape, dtype), *parts])

    return samples, Objects(
        image=np.repeat(np.arange(len(samples)), counts),
        cls=joined([s.classes for s in full], (0,), np.int64),
        box=joined([s.fractions for s in full], (0, 4), np.float64),
        line=joined([s.lines for s in full], (0,), np.int64),
        crowd=joined([s.crowd for s in full], (0,), bool),
        counts=counts,
        split=split.astype(np.int64),
    )
