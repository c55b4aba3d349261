"""`--compile`: the checkout's network by torch.compile while it trains; validation, EMA and files see it as it is."""

from collections.abc import Callable

import torch
from torch import nn

from yolov7fast.nn.compiling import CompiledNet
from yolov7fast.overlay.patches import Patches


class _Eager(nn.Module):
    """A network's own call, not the one that takes its place."""

    def __init__(self, network: nn.Module, call: Callable):
        super().__init__()
        self.network, self.call = network, call

    def forward(self, images: torch.Tensor):
        return self.call(self.network, images)


def put_in(network_class: type[nn.Module], patches: Patches) -> None:
    """Compile each network of this class at its first training step; where that fails it runs as it is."""
    original = network_class.__call__
    now: list[tuple[nn.Module, CompiledNet]] = []  # the network in training: none or one

    def call(self, *args, **kwargs):
        if not self.training or len(args) != 1 or kwargs or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        if not now or now[0][0] is not self:
            eager = _Eager(self, original)
            now[:] = [(self, CompiledNet(eager, lambda eager: torch.compile(eager.network.forward)))]
        return now[0][1](args[0])

    patches.set(network_class, "__call__", call)
