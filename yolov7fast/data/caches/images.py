"""Images at training size, decoded once (`--cache-images`): in memory, or in a packed file that all workers share."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.process.threads import ThreadPool
from yolov7fast.data.caches.image_cache import PackedImages
from yolov7fast.data.image_io import LoadedImage, load_resized

THREADS = 8


class ImagesInMemory:
    """All images, decoded and resized."""

    def __init__(
        self,
        img_files: Sequence[str],
        img_size: int,
        augment: bool,
        prefix: str = "",
    ):
        self._images: list[LoadedImage] = []
        held = 0
        with ThreadPool(THREADS) as pool, tqdm(total=len(img_files)) as bar:
            for image in pool.map(partial(load_resized, img_size=img_size, augment=augment), img_files):
                self._images.append(image)
                held += image.img.nbytes
                bar.set_description_str(f"{prefix}Caching images ({held / 1e9:.1f}GB)", refresh=False)
                bar.update()

    def get(self, i: int) -> LoadedImage:
        """Image i; copy it before changing it."""
        return self._images[i]


def open_cache(
    kind: bool | str | None,
    img_files: Sequence[str],
    img_size: int,
    augment: bool,
    prefix: str,
    folder: Path,
    cache_dir: str | os.PathLike | None,
) -> ImagesInMemory | PackedImages | None:
    """The cache asked for: none (False), in memory (True or "ram") or "disk", in `cache_dir` or else in `folder`."""
    if kind in (None, False):
        return None
    if kind in (True, "ram"):
        return ImagesInMemory(img_files, img_size, augment, prefix)
    if kind != "disk":
        raise UserError(f"--cache-images {kind}: choose ram or disk")
    return PackedImages.open_or_build(
        img_files,
        img_size,
        augment=augment,
        cache_dir=cache_dir,
        prefix=prefix,
        default_dir=folder,
    )
