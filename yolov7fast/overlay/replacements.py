"""`create_dataloader` as scripts call it, with this project's data set and loaders inside.

Without a seed the samples are the checkout's own, bit for bit: in one process each worker makes whole batches, as
PyTorch's do, but writes them straight into memory that is shared and used again; several processes, image weights and
`--quad` keep PyTorch's loader. With a seed, samples are keyed by (seed, epoch, index) and all workers fill one batch.
"""

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any, NamedTuple

from yolov7fast.data.loading.dataloader import create_dataloader
from yolov7fast.overlay.host_targets import HostTargets

PARAMETERS = signature(create_dataloader)


class LoaderOptions(NamedTuple):
    """What changes pixels, files or timing, and is off by default."""

    cache_images: str | None = None  # "disk": images decoded and resized once, in a file that all workers map
    seed: int | None = None


class ScriptLoader:
    """A loader with what scripts use of one: length, iteration, `num_workers`, `sampler.set_epoch`, `dataset`.

    Targets come as `HostTargets`. The rest is the loader's own.
    """

    def __init__(self, loader: Any):
        self.loader = loader
        self.sampler = getattr(loader, "sampler", loader)  # loaders without one take `set_epoch` themselves

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple]:
        for images, targets, *rest in self.loader:
            yield images, HostTargets.of(targets), *rest

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


def fast_create_dataloader(options: LoaderOptions) -> Callable:
    """What takes the place of `utils.datasets.create_dataloader`."""

    def create(*args, **kwargs):
        """(loader, data set). Upstream's parameters, in its order, are the first of our function."""
        call = PARAMETERS.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        keyed = options.seed is not None
        loader, dataset = create_dataloader(
            **given
            | {
                "cache": options.cache_images or given["cache"],
                "worker_tensor": not given["quad"] and (keyed or (given["rank"] < 0 and not given["image_weights"])),
                "micro_batch": 0 if keyed else given["batch_size"],
                "seed": options.seed,
            }
        )
        return ScriptLoader(loader), dataset

    return create


def own_create_dataloader(create: Callable) -> Callable:
    """The checkout's own function, for losses that plan on the host: targets come as `HostTargets`."""

    def with_host_targets(*args, **kwargs):
        loader, dataset = create(*args, **kwargs)
        return ScriptLoader(loader), dataset

    return with_host_targets
