"""What stands for torchvision where the installed one does not load, as beside a torch of another build.

A checkout imports it at module level for a handful of names; `ops.nms` is the only one that training, evaluation and
detection call. Any other name can be imported, and says what is missing when it is called.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch

from yolov7fast.core.errors import UserError
from yolov7fast.overlay.patches import Patches
from yolov7fast.predictors.nms import greedy_nms

SUBMODULES = ("ops", "utils", "transforms", "models", "datasets", "io")


def torchvision_loads() -> bool:
    """Whether the installed torchvision can be imported; what a failed attempt leaves behind is removed."""
    before = set(sys.modules)
    if "torchvision" in before:
        # the stand-in has no file, and where `nn.detr_model` has hidden it there is no module
        return bool(getattr(sys.modules["torchvision"], "__file__", None))
    try:
        import torchvision  # noqa: F401
    except Exception:  # ImportError where it is absent; RuntimeError where its operators do not fit torch
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision" and n not in before]:
            del sys.modules[name]
        return False
    return True


def put_in(patches: Patches) -> None:
    """Have `import torchvision` and imports of its submodules find the stand-in."""
    top = _module("torchvision", is_package=True)  # so that submodules can be imported by name
    for part in SUBMODULES:
        module = _module(f"torchvision.{part}")
        setattr(top, part, module)
        patches.set_item(sys.modules, module.__name__, module)
    top.ops.nms = nms
    patches.set_item(sys.modules, "torchvision", top)


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Indices of the boxes (n, 4) xyxy that greedy suppression keeps, best first, of the best 30000."""
    rows, order = (x.detach().float().cpu().numpy() for x in (boxes, scores))
    return torch.from_numpy(greedy_nms(rows, order, iou_threshold, most=len(boxes))).to(boxes.device)


def _module(path: str, is_package: bool = False) -> ModuleType:
    """An empty module with a spec, without which `importlib.util.find_spec` raises."""
    module = ModuleType(path, "A stand-in of yolov7fast.overlay.")
    module.__spec__ = ModuleSpec(path, loader=None, is_package=is_package)
    if is_package:
        module.__path__ = []

    def absent(name: str):
        if name.startswith("__"):
            raise AttributeError(f"module {path!r} has no attribute {name!r}")
        return _complaint(f"{path}.{name}")

    module.__getattr__ = absent
    return module


def _complaint(name: str):
    def missing(*_, **__):
        raise UserError(
            f"{name} was called, but the installed torchvision does not load beside torch {torch.__version__}: "
            "install the torchvision built for this torch"
        )

    return missing
