"""Starts scripts in processes of their own that need not import PyTorch first: each is forked from this one.

Requests come on standard input, one JSON object a line: `script`, `arguments`, `folder`, `out` and `err` (files), and
`environments`, one for each process to start. The answer is a JSON list of their exit codes. Nothing is trained in this
process, so there is no thread or random state that a child could inherit half-way.
"""

import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.drawing import draw_nothing


def preload(script: str) -> None:
    """What the script will import, once for all that come after it."""
    ours = ("yolov7fast.training.yolo_family", "yolov7fast.training.train")
    for module in (*ours, "torch.utils.tensorboard", "torch._dynamo"):  # the last by the first optimizer, two seconds
        importlib.import_module(module)
    if "detr" in script:
        from yolov7fast.nn.detr_model import transformers

        library = transformers()  # its members are imported on first use
        assert library.DetrForObjectDetection and library.RTDetrV2ForObjectDetection


def become(request: dict, environment: dict[str, str]) -> None:
    """Run the script as if this process had been started for it; its end is this process's."""
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        (2, request["err"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(environment)
    draw_nothing(pytest.MonkeyPatch())
    sys.argv = [request["script"], *request["arguments"]]
    sys.path[0] = str(Path(request["script"]).parent)
    runpy.run_path(request["script"], run_name="__main__")


def serve() -> None:
    faulthandler.register(signal.SIGUSR2)  # in children, and in their workers, too: where does one hang?
    for line in sys.stdin:
        request = json.loads(line)
        preload(request["script"])
        gc.freeze()  # else each child's collector touches, and so copies, all of PyTorch: a second and more at its end
        children = []
        for environment in request["environments"]:
            child = os.fork()
            if child == 0:
                return become(request, environment)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    serve()
