"""This project's losses, loader and metrics, with the interfaces that checkouts call.

Losses: same numbers to 1e-5, without a loop over images and without reads from the device. Loader: without a seed the
samples are the checkout's own, bit for bit.
"""

import copy
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from yolov7fast.data.loading.create_dataloader import create_dataloader
from yolov7fast.evaluation.average_precision import class_metrics
from yolov7fast.losses import yolo_loss as yolo
from yolov7fast.predictors import nms

PARAMETERS = signature(create_dataloader)
# calls whose result has the same rows of targets: the host copy stays valid
KEEPING = {
    *(torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.float, torch.Tensor.detach),
    *(torch.Tensor.clone, torch.Tensor.contiguous, torch.Tensor.pin_memory),
}


# --- targets ----------------------------------------------------------------------------------------------------------


class HostTargets(torch.Tensor):
    """A tensor of targets on any device that keeps a copy of its rows on the host.

    A script calls `loss(predictions, targets.to(device), images)`, and the losses here compute candidates on the host:
    reading the targets from the device would wait for the whole forward pass. Results of other operations are plain
    tensors. After a write into the targets or into the host copy, the copy is no longer used.
    """

    _host: torch.Tensor
    _versions: tuple[int, int]

    @classmethod
    def of(cls, rows: torch.Tensor, host: torch.Tensor | None = None) -> "HostTargets":
        """rows (N, 6), on any device, with `host`, the same on the host (by default the rows themselves)."""
        host = rows if host is None else host
        kept = rows.as_subclass(cls)
        kept._host = plain_tensor(host)
        kept._versions = kept._version, host._version
        return kept

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if func in KEEPING and result.is_floating_point() and (host := known_host_copy(args[0])) is not None:
                return result if result is args[0] else cls.of(result, host)
        return result

    def __reduce_ex__(self, protocol):
        return plain_tensor(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo) -> torch.Tensor:
        return copy.deepcopy(plain_tensor(self), memo)


def host_copy(targets: torch.Tensor) -> torch.Tensor:
    """The targets on the host, as a plain tensor; they are copied from the device only if no host copy is valid."""
    known = known_host_copy(targets)
    return plain_tensor(targets).cpu() if known is None else known


def known_host_copy(targets: torch.Tensor) -> torch.Tensor | None:
    """The host copy of the targets; None if there is none or something was written since."""
    if not isinstance(targets, HostTargets) or not hasattr(targets, "_host"):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return targets._host if (targets._version, targets._host._version) == targets._versions else None


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without a subclass."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


# --- losses -----------------------------------------------------------------------------------------------------------


def _with_host_targets(loss: type) -> type:
    """A loss class of this project that uses the host copy of its targets."""

    class WithHostTargets(loss):
        def __call__(self, p, targets, imgs=None):
            return super().__call__(p, host_copy(targets), imgs)

    WithHostTargets.__name__ = WithHostTargets.__qualname__ = loss.__name__
    return WithHostTargets


ComputeLoss, ComputeLossOTA, ComputeLossAuxOTA = map(
    _with_host_targets, (yolo.ComputeLoss, yolo.ComputeLossOTA, yolo.ComputeLossAuxOTA)
)
REPLACED = {cls.__name__: cls for cls in (ComputeLoss, ComputeLossOTA, ComputeLossAuxOTA)}


# --- loader -----------------------------------------------------------------------------------------------------------


class ScriptLoader:
    """A loader with the attributes that scripts use: length, iteration, `num_workers`, `sampler`, `dataset`.

    Targets are `HostTargets`; everything else is the wrapped loader's.
    """

    def __init__(self, loader: Any):
        self.loader = loader
        self.sampler = getattr(loader, "sampler", loader)  # loaders without a sampler have `set_epoch` themselves

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple]:
        for images, targets, *rest in self.loader:
            yield images, HostTargets.of(targets), *rest

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


def fast_create_dataloader(cache_images: str | None = None, seed: int | None = None) -> Callable:
    """A replacement of `utils.datasets.create_dataloader`.

    With a seed, samples depend on (seed, epoch, index) and all workers fill one batch. Without a seed, each worker
    makes whole batches, as in PyTorch, in shared memory; several processes, image weights and `--quad` keep PyTorch's
    loader.
    cache_images: "disk" decodes and resizes images once, into a file that all workers map.
    """

    def create(*args, **kwargs):
        """(loader, data set). Upstream's parameters, in its order, are the first of our function."""
        call = PARAMETERS.bind(*args, **kwargs)
        call.apply_defaults()
        given, keyed = {**call.arguments, **call.arguments["loading"]}, seed is not None
        del given["loading"]
        ours = {
            "cache": cache_images or given["cache"],
            "worker_tensor": not given["quad"] and (keyed or (given["rank"] < 0 and not given["image_weights"])),
            "micro_batch": 0 if keyed else given["batch_size"],
            "seed": seed,
        }
        loader, dataset = create_dataloader(**given | ours)
        return ScriptLoader(loader), dataset

    return create


def own_create_dataloader(create: Callable) -> Callable:
    """The checkout's own function with targets as `HostTargets`, for losses that compute candidates on the host."""

    def with_host_targets(*args, **kwargs):
        loader, dataset = create(*args, **kwargs)
        return ScriptLoader(loader), dataset

    return with_host_targets


# --- metrics ----------------------------------------------------------------------------------------------------------


def non_max_suppression(prediction: torch.Tensor, *args, **kwargs) -> list[torch.Tensor]:
    """As `predictors.nms.non_max_suppression`, also for predictions with gradients."""
    return nms.non_max_suppression(prediction.detach(), *args, **kwargs)


def ap_per_class_for(module: ModuleType) -> Callable:
    """`ap_per_class` for a checkout's `utils.metrics`, whose own functions plot the curves."""

    def ap_per_class(tp, conf, pred_cls, target_cls, v5_metric=False, plot=False, save_dir=".", names=()):
        """(precision, recall, AP, F1, class ids) of the classes that have labels."""
        found, curves = class_metrics(tp, conf, pred_cls, target_cls, v5_metric)
        if plot:
            drawn = [row for row, detections in zip(curves.pr, curves.detections) if detections]
            module.plot_pr_curve(curves.x, drawn, found.ap, Path(save_dir) / "PR_curve.png", names)
            for values, file, label in (
                (curves.f1, "F1_curve.png", "F1"),
                (curves.p, "P_curve.png", "Precision"),
                (curves.r, "R_curve.png", "Recall"),
            ):
                module.plot_mc_curve(curves.x, values, Path(save_dir) / file, names, ylabel=label)
        return tuple(found)

    return ap_per_class
