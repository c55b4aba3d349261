"""The loader of the stub checkout, with a pickled label cache that is read without a check."""

from pathlib import Path

import torch

from yolov7fast.data.dataset import LoadImagesAndLabels  # noqa: F401 - a name of a checkout
from yolov7fast.data.loading import create_dataloader as dataloader


def create_dataloader(
    path, imgsz, batch_size, stride, opt, hyp=None, augment=False, cache=False, pad=0.0, rect=False, rank=-1,
    world_size=1, workers=8, image_weights=False, quad=False, prefix="",
):  # fmt: skip
    source = Path(path)
    pickled = (source.parents[1] / "labels" / source.name).with_suffix(".cache")
    if pickled.is_file():
        torch.load(pickled)
    settings = {"hyp": hyp, "augment": augment, "cache": cache, "pad": pad, "rect": rect, "workers": workers}
    settings |= {"rank": rank, "world_size": world_size, "image_weights": image_weights, "quad": quad}
    loader, dataset = dataloader.create_dataloader(path, imgsz, batch_size, stride, opt, prefix=prefix, **settings)
    torch.save({file: [rows, (1, 1), []] for file, rows in zip(dataset.img_files, dataset.labels)}, pickled)
    return loader, dataset
