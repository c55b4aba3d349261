"""Where the time of one training sample goes, by stage (CPU time of one core)."""

import time
from contextlib import contextmanager

from yolov7fast.data import dataset as datasets
from yolov7fast.data import image_io
from yolov7fast.data.augment import mosaic

# (module that calls it, function, stage). What a timed function calls is counted there only if it is not timed itself:
# loading without reading is resizing.
STAGES = [
    (image_io, "read_image", "decode"),
    (datasets, "load_resized", "resize"),
    (mosaic, "draw_canvas", "canvas"),
    (mosaic, "warp_image", "warp"),
    (mosaic, "apply_colour", "colour"),
    (mosaic, "mixup", "mixup"),
    (datasets, "mosaic_labels", "labels"),
    (datasets, "warp_labels", "labels"),
    (datasets, "paste_in", "paste-in"),
]


@contextmanager
def timed_stages():
    """Within the block, calls of the stages' functions are timed; yields {stage: seconds}, nothing counted twice."""
    spent = {stage: 0.0 for _, _, stage in STAGES}
    inner = [0.0]  # per open call, the time of timed calls within it
    replaced = []
    for module, name, stage in STAGES:
        function = getattr(module, name)

        def timed(*args, _function=function, _stage=stage, **kwargs):
            inner.append(0.0)
            start = time.thread_time()
            try:
                return _function(*args, **kwargs)
            finally:
                whole = time.thread_time() - start
                spent[_stage] += whole - inner.pop()
                inner[-1] += whole

        replaced.append((module, name, function))
        setattr(module, name, timed)
    try:
        yield spent
    finally:
        for module, name, function in replaced:
            setattr(module, name, function)


def stage_table(make_samples, count: int) -> dict[str, float]:
    """Milliseconds a sample spends in each stage; `make_samples()` makes `count` samples in this process."""
    with timed_stages() as spent:
        start = time.thread_time()
        make_samples()
        total = time.thread_time() - start
    table = {stage: seconds / count * 1e3 for stage, seconds in spent.items()}
    table["rest"] = total / count * 1e3 - sum(table.values())
    table["total"] = total / count * 1e3
    return table
