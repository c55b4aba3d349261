"""Targets that keep their host copy at hand when a script sends them to the device.

A script writes `loss(predictions, targets.to(device), images)`. The losses here plan on the host; to fetch the targets
back would wait for the whole forward pass that the device is still working on.
"""

import copy

import torch

# calls on targets whose result is still the same rows: they hand the host copy on
KEEPING = {
    torch.Tensor.to,
    torch.Tensor.cuda,
    torch.Tensor.cpu,
    torch.Tensor.float,
    torch.Tensor.detach,
    torch.Tensor.clone,
    torch.Tensor.contiguous,
    torch.Tensor.pin_memory,
}


class HostTargets(torch.Tensor):
    """A tensor of targets, on any device, that remembers the same rows on the host.

    Whatever is computed with it is a plain tensor. Writing into it, or into the host copy, makes the memory void: the
    next reader then asks the device.
    """

    _host: torch.Tensor
    _versions: tuple[int, int]

    @classmethod
    def of(cls, rows: torch.Tensor, host: torch.Tensor | None = None) -> "HostTargets":
        """rows (N, 6), on any device, with `host`, the same on the host (the rows themselves if they lie there)."""
        host = rows if host is None else host
        kept = rows.as_subclass(cls)
        kept._host = _plain(host)
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
        return _plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo) -> torch.Tensor:
        return copy.deepcopy(_plain(self), memo)


def host_copy(targets: torch.Tensor) -> torch.Tensor:
    """The targets on the host, as a plain tensor; only targets that never were `HostTargets` are fetched."""
    known = known_host_copy(targets)
    return _plain(targets).cpu() if known is None else known


def known_host_copy(targets: torch.Tensor) -> torch.Tensor | None:
    """The copy that is at hand, None where there is none or something was written since."""
    if not isinstance(targets, HostTargets) or not hasattr(targets, "_host"):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return targets._host if (targets._version, targets._host._version) == targets._versions else None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)
