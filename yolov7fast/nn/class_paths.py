"""Class paths in pickles: those of upstream (WongKinYiu/yolov7), whose programs read our files."""

from collections.abc import Callable

PATHS_IN_FILES = {  # module here -> module in a pickle
    "yolov7fast.nn.blocks": "models.common",
    "yolov7fast.nn.heads": "models.yolo",
    "yolov7fast.nn.model": "models.yolo",
    "yolov7fast.nn.multihead": "models.multihead",
}
COMPILED_MARK = "_is_torch_compile"  # set by torch.compile on the network; not stored in checkpoints


def class_path(cls: type | Callable) -> str:
    """The dotted path under which pickles name a class."""
    return f"{PATHS_IN_FILES.get(cls.__module__, cls.__module__)}.{cls.__qualname__}"
