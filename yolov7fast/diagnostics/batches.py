"""Do batches reach the device as the workers wrote them? Shared, reused, page-locked memory against known pixels."""

import numpy as np
import torch

from yolov7fast.diagnostics.results import Line, judged
from yolov7fast.diagnostics.setting import Setting
from yolov7fast.loading.samplers import EpochOrder
from yolov7fast.loading.shared_loader import SharedLoader

BATCHES, BATCH, SIDE, SAMPLES, WORKERS = 200, 16, 64, 320, 2
REMEDY = "train without --fast-dataloader and --worker-tensor on this machine, and report this line"


class KnownImages:
    """A data set whose pixels follow from the key alone: every epoch shows others."""

    def __len__(self) -> int:
        return SAMPLES

    def shape_of(self, key) -> tuple[int, int]:
        return SIDE, SIDE

    def sample_into(self, key, out: np.ndarray):
        out[:] = pixels(*key)
        return np.zeros((0, 6), np.float32), "{}-{}".format(*key), ((SIDE, SIDE), None)


def pixels(epoch: int, index: int) -> np.ndarray:
    """uint8 (3, SIDE, SIDE) of one sample."""
    count = np.arange(3 * SIDE * SIDE, dtype=np.uint32)
    return ((count * (2 * index + 3) + count // 7 * (epoch + 1)) % 251).astype(np.uint8).reshape(3, SIDE, SIDE)


def checksum(images: torch.Tensor) -> torch.Tensor:
    """int64 (B,) of uint8 images, wherever they lie: a sum in which places have weights."""
    weights = torch.arange(1, images[0].numel() + 1, device=images.device)
    return (images.flatten(1).long() * weights).sum(1)


def check_shared_batches(setting: Setting) -> Line:
    """Every image of 200 batches, copied as the training step copies it while the workers write the next ones."""
    loader = SharedLoader(KnownImages(), BATCH, WORKERS, EpochOrder(KnownImages(), BATCH), keyed=0)
    sums, keys, busy = [], [], torch.zeros(256, 256, device=setting.device)
    try:
        pinned = loader.pinned
        for epoch in range(BATCHES // len(loader)):
            loader.set_epoch(epoch)
            for images, _, paths, _ in loader:
                if setting.on_gpu:  # the device lags behind, as it does in training
                    for _ in range(20):
                        busy = busy @ busy
                sums.append(checksum(images.to(setting.device, non_blocking=True)))
                keys += paths
    finally:
        loader.close()
    found = torch.cat(sums).cpu()
    expected = torch.cat([checksum(torch.from_numpy(pixels(*map(int, key.split("-"))))[None]) for key in keys])
    wrong = (found != expected).nonzero()[:, 0].tolist()
    batches = sorted({row // BATCH for row in wrong})
    memory = "page-locked" if pinned else "pageable"
    text = f"{len(sums) - len(batches)} of {len(sums)} batches from {memory} shared memory arrived as written"
    places = tuple(f"batch {number}" for number in batches)
    line = judged("shared batches on the device", not wrong, text, REMEDY, places, wrong=len(batches), pinned=pinned)
    if line.status == "passed" and setting.on_gpu and not pinned:
        slow = f"{text}; the system refused to lock the memory, so copies wait for the host"
        return judged(line.name, False, slow, "ulimit -l unlimited, or docker run --ulimit memlock=-1", pinned=False)
    return line
