"""Where the time of one training sample goes, by stage (CPU time of one core)."""

import time
from contextlib import contextmanager

import utils.datasets
import utils.fast_augment
import utils.images
import utils.scene

# (module, function, stage); a function that is absent is skipped. Resizing is loading without reading.
STAGES = [
    (utils.images, "read_image", "decode"),
    (utils.datasets, "load_resized", "resize"),
    (utils.datasets, "draw_canvas", "canvas"),
    (utils.datasets, "letterbox", "canvas"),
    (utils.scene, "draw_canvas", "canvas"),
    (utils.scene, "warp_image", "warp"),
    (utils.scene, "apply_colour", "colour"),
    (utils.scene, "mixup", "mixup"),
    (utils.fast_augment, "_assemble", "warp"),
    (utils.fast_augment, "_apply_colour", "colour"),
    (utils.datasets, "mosaic_labels", "labels"),
    (utils.datasets, "warp_labels", "labels"),
    (utils.datasets, "paste_in", "paste-in"),
]


@contextmanager
def timed_stages():
    """Within the block, calls of the stages' functions are timed; yields {stage: seconds}, each without its inner."""
    spent: dict[str, float] = {}
    inner = [0.0]  # per open call, the time of timed calls within it
    replaced = []
    for module, name, stage in STAGES:
        function = getattr(module, name, None)
        if function is None:
            continue
        spent.setdefault(stage, 0.0)

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
