"""What the tests of the Python interface share."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.mini_network import write_mini_weights


def cells(seed: int, height: int, width: int) -> np.ndarray:
    """A made-up image (BGR) with discs, on which the trained small network finds something at a low threshold."""
    rng = np.random.default_rng(seed)
    image = np.full((height, width, 3), 220, np.uint8)
    for x, y in zip(rng.integers(10, width - 10, 6).tolist(), rng.integers(10, height - 10, 6).tolist()):
        cv2.circle(image, (x, y), 14, (150, 140, 200), -1)
    return image


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> Path:
    return write_mini_weights(tmp_path_factory.mktemp("weights") / "mini.pt")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Four images of two shapes, as files without loss."""
    folder = tmp_path_factory.mktemp("images")
    for i, (height, width) in enumerate(((120, 160), (120, 160), (160, 120), (120, 160))):
        cv2.imwrite(str(folder / f"{i}.png"), cells(i, height, width))
    return folder
