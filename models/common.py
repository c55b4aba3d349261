"""Upstream's import path for the blocks of networks; the names live in the package."""

from yolov7fast.nn.blocks import (
    MP,
    SP,
    SPPCSPC,
    Concat,
    Conv,
    DownC,
    ImplicitA,
    ImplicitM,
    ReOrg,
    RepConv,
    Shortcut,
    autopad,
)

__all__ = ["MP", "SP", "SPPCSPC", "Concat", "Conv", "DownC", "ImplicitA", "ImplicitM"]
__all__ += ["ReOrg", "RepConv", "Shortcut", "autopad"]
