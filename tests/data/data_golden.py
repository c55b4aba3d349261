"""What tests of the data path share: recorded figures, seeded generators, a random source that keeps a log."""

import hashlib
import random

import cv2
import numpy as np

from yolov7fast.data.augment.random_source import GLOBAL

# Pixels after a warp depend on OpenCV's version and, minimally, on AVX2; everything else is the same everywhere.
SAME_PIXELS = cv2.__version__.startswith("5.0.") and cv2.checkHardwareSupport(11)  # 11 = CPU_AVX2


def sha(array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()


def synth(h: int, w: int, k: int = 0) -> np.ndarray:
    """The synthetic image of the recordings: uint8 (h, w, 3)."""
    y, x, c = np.ogrid[:h, :w, :3]
    return ((3 * x + 5 * y + x * y // 16 + 67 * c + 29 * k) % 256).astype(np.uint8)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)


def assert_streams(after: dict) -> None:
    """The global generators stand where they stood after the recorded case."""
    assert random.random() == after["py"], "Python's generator is out of step"
    assert np.random.random_sample() == after["np"], "NumPy's generator is out of step"


def assert_labels(labels, record: dict, arrays) -> None:
    labels = np.asarray(labels)
    if record["key"] in arrays:
        np.testing.assert_array_equal(labels, arrays[record["key"]])
    assert (list(labels.shape), str(labels.dtype)) == (record["shape"], record["dtype"])
    assert sha(labels) == record["sha256"]


def assert_image(img, record: dict, *, warped: bool = True, thumbs=None) -> None:
    """Bit equality where the recording's pixels hold; elsewhere, after a warp, the recorded tolerance."""
    img = np.asarray(img)
    assert list(img.shape) == record.get("shape", list(img.shape))
    if SAME_PIXELS or not warped:
        assert sha(img) == record["sha256"]
        return
    assert abs(img.mean() - record["mean"]) < 0.5
    if thumbs is not None and record.get("thumb") in thumbs:
        small = img[..., ::8, ::8] if img.shape[0] == 3 else img[::8, ::8]
        difference = np.abs(small.astype(int) - thumbs[record["thumb"]])
        assert difference.mean() < 0.5
        assert (difference <= 4).mean() > 0.97


class LoggedRandom:
    """The global generators, each draw written down as the recordings do: [function, arguments, result]."""

    def __init__(self):
        self.log: list[list] = []

    def __getattr__(self, name):
        function = getattr(GLOBAL, name)

        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            shown = args
            if name in ("choices", "sample"):
                shown = {"population_len": len(args[0]), "k": kwargs["k"]}
            full = f"np.random.{name[3:]}" if name.startswith("np_") else f"random.{name}"
            self.log.append([full, shown, result.tolist() if isinstance(result, np.ndarray) else result])
            return result

        return call


def assert_same_draws(log: list, trace: list) -> None:
    """Same calls, same arguments, same results, in the same order."""
    assert [entry[0] for entry in log] == [entry[0] for entry in trace]
    for mine, recorded in zip(log, trace):
        arguments = mine[1] if isinstance(mine[1], dict) else list(mine[1])
        assert [mine[0], arguments, mine[2]] == recorded
