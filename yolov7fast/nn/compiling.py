"""torch.compile on request: USE_COMPILE=1 compiles network and loss, DIAGNOSE_COMPILE=1 reports graph breaks."""

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch
import torch.fx.experimental._config as symbolic_shapes
from torch import nn

from yolov7fast.nn.class_paths import COMPILED_MARK

log = logging.getLogger(__name__)
PART_COMPILER = partial(torch.compile, dynamic=True, fullgraph=True)
REPORT_HEADING = "DYNAMO EXPLANATION REPORT"
# of compiled parts: sizes that are equal by chance are not assumed to stay equal, and floats of an object (gains,
# weights) are constants; otherwise each part would be compiled twice
PART_SETTINGS = ((symbolic_shapes, {"use_duck_shape": False}), (torch._dynamo.config, {"specialize_float": True}))


def compile_mode(flag: str) -> str:
    """The mode of torch.compile that `--compile` or USE_COMPILE=1 asks for; empty: none."""
    return flag or ("default" if os.environ.get("USE_COMPILE", "0") == "1" else "")


def diagnosis_wanted() -> bool:
    return os.environ.get("DIAGNOSE_COMPILE", "0") == "1"


class CompiledNet:
    """Calls the compiled network; if compilation fails, logs one warning and calls the network uncompiled.

    Checkpoints, EMA and validation keep using the plain module, so names and results do not change.
    """

    def __init__(self, model: Callable, compiler: Callable = torch.compile, *, mode: str = "default"):
        """model: the network, or its wrapper for several processes; mode: of torch.compile."""
        self.model = model
        self.call: Callable = (compiler if mode == "default" else partial(compiler, mode=mode))(model)
        vars(model).pop(COMPILED_MARK, None)  # would be stored in checkpoints
        self.proven: set[tuple] = set()  # shapes that have been compiled; each new one may fail
        log.info("Compiling the network with torch.compile: the first batch takes longer, maybe minutes")

    def __call__(self, images: torch.Tensor):
        shape = tuple(images.shape)
        if self.call is self.model or shape in self.proven:
            return self.call(images)
        began = time.perf_counter()
        try:
            result = self.call(images)
        except torch.OutOfMemoryError:
            raise  # the plain network needs as much
        except Exception as error:  # from missing toolchains to internal errors of the compiler
            seconds = time.perf_counter() - began
            log.warning("torch.compile failed after %.1f s, continuing without it: %s", seconds, _first_line(error))
            self.call = self.model
            return self.call(images)
        if not self.proven:
            log.info("Model compiled successfully in %.1f s", time.perf_counter() - began)
        self.proven.add(shape)
        return result


class CompiledPart:
    """Calls a function compiled for dynamic sizes; if compilation fails, logs one warning and calls it uncompiled.

    fits: whether the compiled function accepts the arguments. torch.compile specialises on sizes of 0 and 1: such
    calls, which are cheap, run uncompiled.
    """

    def __init__(self, name: str, function: Callable, fits: Callable[..., bool], compiler: Callable | None = None):
        self.name, self.function, self.fits = name, function, fits
        self.call: Callable = (compiler or PART_COMPILER)(function)
        self.failure: str | None = None

    def __call__(self, *args):
        if self.failure or not self.fits(*args):
            return self.function(*args)
        try:
            with ExitStack() as stack:
                for settings, values in PART_SETTINGS:  # not every version of PyTorch has each of them
                    known = {name: value for name, value in values.items() if hasattr(settings, name)}
                    stack.enter_context(settings.patch(known))
                return self.call(*args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.failure = _first_line(error)
            log.warning("torch.compile of %s failed, continuing without it: %s", self.name, self.failure)
            return self.function(*args)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def diagnose(model: nn.Module, example: torch.Tensor) -> int:
    """Print dynamo's report on the network in training mode; exit code 0 without a graph break, 1 with one."""
    torch._dynamo.reset()
    report = torch._dynamo.explain(model.train())(example)
    print(REPORT_HEADING)
    print(f"graphs: {report.graph_count}   graph breaks: {report.graph_break_count}   operators: {report.op_count}")
    for number, reason in enumerate(report.break_reasons, 1):
        print(f"break {number}: {reason.reason}")
        for frame in reason.user_stack:
            print(f"    {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}")
    if report.graph_break_count == 0:
        print("no graph break: USE_COMPILE=1 compiles the network as a whole")
    torch._dynamo.reset()
    return 0 if report.graph_break_count == 0 else 1
