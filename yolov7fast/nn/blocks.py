"""Blocks of network descriptions, and folding of BatchNorm into convolutions.

Maps are (B, C, H, W). Attribute names and their order are part of the file format: state dicts and pickled objects in
checkpoints contain them.
"""

from functools import reduce
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def autopad(k, p=None) -> Any:
    """Padding that keeps the size at stride 1: half the kernel, for each axis of a list, unless given."""
    if p is not None:
        return p
    return k // 2 if isinstance(k, int) else [x // 2 for x in k]


def activation(act) -> nn.Module:
    """True: SiLU; a module: itself; anything else: none."""
    if act is True:
        return nn.SiLU()
    return act if isinstance(act, nn.Module) else nn.Identity()


@torch.no_grad()
def fold_batchnorm(
    weight: torch.Tensor, bias: torch.Tensor | None, bn: _BatchNorm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the one convolution that equals `bn(convolution(x))` in eval mode, in the weight's dtype.

    Computed in float32 at least, so that a network in half precision can be folded too.
    """
    assert bn.running_mean is not None and bn.running_var is not None  # tracked in every network
    dtype = torch.promote_types(weight.dtype, torch.float32)
    scale = bn.weight.to(dtype) / torch.sqrt(bn.running_var.to(dtype) + bn.eps)
    shift = -bn.running_mean.to(dtype) if bias is None else bias.to(dtype) - bn.running_mean.to(dtype)
    folded = weight.to(dtype) * scale.view(-1, 1, 1, 1), bn.bias.to(dtype) + shift * scale
    return folded[0].to(weight.dtype), folded[1].to(weight.dtype)


@torch.no_grad()
def conv_like(conv: nn.Conv2d, weight: torch.Tensor, bias: torch.Tensor) -> nn.Conv2d:
    """A frozen convolution with bias: geometry of `conv`, values as given, their dtype and device."""
    geometry: Any = conv.kernel_size, conv.stride, conv.padding, conv.dilation
    # on meta: no memory and no random numbers; the values are set next
    new = nn.Conv2d(conv.in_channels, conv.out_channels, *geometry, groups=conv.groups, device="meta")
    new.weight = nn.Parameter(weight.clone(), requires_grad=False)
    new.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return new.train(conv.training)


class Conv(nn.Module):
    """Convolution, BatchNorm, activation. After `fuse()` there is no `bn`."""

    def __init__(self, c1, c2, k=1, s=1, p=None, g=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, autopad(k, p), groups=g, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = activation(act)

    def forward(self, x):
        x = self.conv(x)
        return self.act(self.bn(x) if "bn" in self._modules else x)

    def fuse(self) -> None:
        """Fold `bn` into `conv`; a second call does nothing."""
        if "bn" in self._modules:
            self.conv = conv_like(self.conv, *fold_batchnorm(self.conv.weight, self.conv.bias, self.bn))
            del self.bn


class RepConv(nn.Module):
    """A 3x3, a 1x1 and, where shapes allow, an identity branch, each with BatchNorm, summed: one 3x3 once fused."""

    def __init__(self, c1, c2, k=3, s=1, p=None, g=1, act=True, deploy=False):
        super().__init__()
        if k != 3 or autopad(k, p) != 1:
            raise ValueError(f"RepConv is 3x3 with padding 1, not kernel {k} with padding {autopad(k, p)}")
        self.deploy = deploy
        self.groups = g
        self.in_channels = c1
        self.out_channels = c2
        self.act = activation(act)
        if deploy:
            self.rbr_reparam = nn.Conv2d(c1, c2, 3, s, 1, groups=g, bias=True)
            return
        self.rbr_identity = nn.BatchNorm2d(c1) if c1 == c2 and s == 1 else None
        self.rbr_dense = nn.Sequential(nn.Conv2d(c1, c2, 3, s, 1, groups=g, bias=False), nn.BatchNorm2d(c2))
        self.rbr_1x1 = nn.Sequential(nn.Conv2d(c1, c2, 1, s, 0, groups=g, bias=False), nn.BatchNorm2d(c2))

    def forward(self, x):
        if "rbr_reparam" in self._modules:
            return self.act(self.rbr_reparam(x))
        y = self.rbr_dense(x) + self.rbr_1x1(x)
        return self.act(y if self.rbr_identity is None else y + self.rbr_identity(x))

    def fuse(self) -> None:
        """Merge the branches into `rbr_reparam`; a second call does nothing."""
        if "rbr_reparam" in self._modules:
            return
        dense, dense_bn = cast(tuple[nn.Conv2d, _BatchNorm], self.rbr_dense)
        point, point_bn = cast(tuple[nn.Conv2d, _BatchNorm], self.rbr_1x1)
        branches = [
            fold_batchnorm(dense.weight, None, dense_bn),
            fold_batchnorm(nn.functional.pad(point.weight, [1, 1, 1, 1]), None, point_bn),
        ]
        if self.rbr_identity is not None:
            unit = nn.init.dirac_(torch.empty_like(dense.weight), self.groups)
            branches.append(fold_batchnorm(unit, None, self.rbr_identity))
        weight, bias = (reduce(torch.add, parts) for parts in zip(*branches))
        for name in ("rbr_dense", "rbr_1x1", "rbr_identity"):
            delattr(self, name)
            setattr(self, name, None)
        self.rbr_reparam = conv_like(dense, weight, bias)
        self.deploy = True


class MP(nn.Module):
    """Max pooling that divides the size by k."""

    def __init__(self, k=2):
        super().__init__()
        self.m = nn.MaxPool2d(kernel_size=k, stride=k)

    def forward(self, x):
        return self.m(x)


class SP(nn.Module):
    """Max pooling that keeps the size (at s = 1)."""

    def __init__(self, k=3, s=1):
        super().__init__()
        self.m = nn.MaxPool2d(kernel_size=k, stride=s, padding=k // 2)

    def forward(self, x):
        return self.m(x)


class ReOrg(nn.Module):
    """Space to depth: (B, C, H, W) -> (B, 4C, H/2, W/2), blocks by (row, column) parity 00, 10, 01, 11."""

    def forward(self, x):
        return torch.cat([x[..., row::2, col::2] for row, col in ((0, 0), (1, 0), (0, 1), (1, 1))], 1)


class Concat(nn.Module):
    """Concatenates a list of feature maps along `dimension`."""

    def __init__(self, dimension=1):
        super().__init__()
        self.d = dimension

    def forward(self, x):
        return torch.cat(x, self.d)


class Shortcut(nn.Module):
    """Sum of the first two feature maps of a list. The argument is written in configurations and has no effect."""

    def __init__(self, dimension=0):
        super().__init__()
        self.d = dimension

    def forward(self, x):
        return x[0] + x[1]


class DownC(nn.Module):
    """Halves the size by a strided convolution and, in parallel, a pooling, with c2 / 2 channels each."""

    def __init__(self, c1, c2, n=1, k=2):
        super().__init__()
        self.cv1 = Conv(c1, c1, 1, 1)
        self.cv2 = Conv(c1, c2 // 2, 3, k)
        self.cv3 = Conv(c1, c2 // 2, 1, 1)
        self.mp = nn.MaxPool2d(kernel_size=k, stride=k)

    def forward(self, x):
        return torch.cat((self.cv2(self.cv1(x)), self.cv3(self.mp(x))), 1)


class SPPCSPC(nn.Module):
    """Spatial pyramid pooling on one of two parallel paths. n, shortcut and g exist for the argument order only."""

    def __init__(self, c1, c2, n=1, shortcut=False, g=1, e=0.5, k=(5, 9, 13)):
        super().__init__()
        h = int(2 * c2 * e)
        self.cv1 = Conv(c1, h, 1, 1)
        self.cv2 = Conv(c1, h, 1, 1)
        self.cv3 = Conv(h, h, 3, 1)
        self.cv4 = Conv(h, h, 1, 1)
        self.m = nn.ModuleList([nn.MaxPool2d(kernel_size=q, stride=1, padding=q // 2) for q in k])
        self.cv5 = Conv(4 * h, h, 1, 1)
        self.cv6 = Conv(h, h, 3, 1)
        self.cv7 = Conv(2 * h, c2, 1, 1)

    def forward(self, x):
        a = self.cv4(self.cv3(self.cv1(x)))
        b = self.cv6(self.cv5(torch.cat([a, *(pool(a) for pool in self.m)], 1)))
        return self.cv7(torch.cat((b, self.cv2(x)), 1))


class ImplicitA(nn.Module):
    """A learned vector added to every cell: x (B, channel, H, W)."""

    def __init__(self, channel, mean=0.0, std=0.02):
        super().__init__()
        self.channel = channel
        self.mean = mean
        self.std = std
        self.implicit = nn.Parameter(torch.empty(1, channel, 1, 1))
        if not self.implicit.is_meta:  # there normal_ would import PyTorch's decompositions, which takes over a second
            nn.init.normal_(self.implicit, mean=mean, std=std)

    def forward(self, x):
        return self.implicit + x


class ImplicitM(ImplicitA):
    """A learned vector that multiplies every cell."""

    def __init__(self, channel, mean=1.0, std=0.02):
        super().__init__(channel, mean, std)

    def forward(self, x):
        return self.implicit * x
