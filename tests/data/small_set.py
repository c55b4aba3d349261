"""A few drawn images with labels, as files."""

from pathlib import Path

from PIL import Image

from tests.data.data_golden import synth

HYP = {
    "mosaic": 1.0, "mixup": 0.3, "paste_in": 0.3, "degrees": 0.0, "translate": 0.1, "scale": 0.5, "shear": 0.0,
    "perspective": 0.0, "hsv_h": 0.015, "hsv_s": 0.7, "hsv_v": 0.4, "flipud": 0.0, "fliplr": 0.5,
}  # fmt: skip
POLYGON = "1 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4\n"


def make_set(root: Path, n: int = 6, labels=lambda k: f"{k % 3} 0.5 0.5 0.4 0.4\n", size=(48, 64)) -> str:
    for part in ("images/t", "labels/t"):
        (root / part).mkdir(parents=True, exist_ok=True)
    for k in range(n):
        Image.fromarray(synth(*size, k)).save(root / f"images/t/{k}.png")
        text = labels(k)
        if text is not None:
            (root / f"labels/t/{k}.txt").write_text(text)
    return str(root / "images/t")
