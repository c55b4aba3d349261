"""torch.compile on request: USE_COMPILE=1 compiles network and loss, DIAGNOSE_COMPILE=1 says what breaks the graph."""

import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.fx.experimental._config as symbolic_shapes
from torch import nn

from yolov7fast.nn.class_paths import COMPILED_MARK

log = logging.getLogger(__name__)
PART_COMPILER = partial(torch.compile, dynamic=True, fullgraph=True)
REPORT_HEADING = "DYNAMO EXPLANATION REPORT"


def compile_wanted(flag: bool) -> bool:
    return flag or os.environ.get("USE_COMPILE", "0") == "1"


def diagnosis_wanted() -> bool:
    return os.environ.get("DIAGNOSE_COMPILE", "0") == "1"


class CompiledNet:
    """Calls the compiled network; if compiling fails, warns once and calls the network as it is.

    The plain module stays what checkpoints, EMA and validation see, so names and results do not change.
    """

    def __init__(self, model: Callable, compiler: Callable = torch.compile):
        """model: the network, or what wraps it for several processes or GPUs."""
        self.model = model
        self.call: Callable = compiler(model)
        vars(model).pop(COMPILED_MARK, None)  # else checkpoints would carry it
        self.proven: set[tuple] = set()  # shapes that compiled: each new one may be compiled anew, and may fail
        log.info("Compiling the network with torch.compile: the first batch takes longer, maybe minutes")

    def __call__(self, images: torch.Tensor):
        shape = tuple(images.shape)
        if self.call is self.model or shape in self.proven:
            return self.call(images)
        began = time.perf_counter()
        try:
            result = self.call(images)
        except torch.OutOfMemoryError:
            raise  # the plain network would need no less
        except Exception as error:  # a failing compiler raises anything from missing toolchains to internal errors
            seconds = time.perf_counter() - began
            log.warning("torch.compile failed after %.1f s, continuing without it: %s", *(seconds, _first_line(error)))
            self.call = self.model
            return self.call(images)
        if not self.proven:
            log.info("Model compiled successfully in %.1f s", time.perf_counter() - began)
        self.proven.add(shape)
        return result


class CompiledPart:
    """Calls a function compiled for sizes that change; if compiling fails, warns once and calls the function as it is.

    fits: says of the arguments whether the compiled function takes them. A compiler treats sizes of 0 and 1 apart and
    would compile anew for them: such calls, which cost next to nothing, go to the function itself.
    """

    def __init__(self, name: str, function: Callable, fits: Callable[..., bool], compiler: Callable | None = None):
        self.name, self.function, self.fits = name, function, fits
        self.call: Callable = (compiler or PART_COMPILER)(function)
        self.failure: str | None = None

    def __call__(self, *args):
        if self.call is self.function or not self.fits(*args):
            return self.function(*args)
        try:
            with _any_sizes(), _fixed_settings():
                return self.call(*args)
        except torch.OutOfMemoryError:
            raise  # the function itself would need no less
        except Exception as error:  # a failing compiler raises anything, as for the network
            self.call, self.failure = self.function, _first_line(error)
            log.warning("torch.compile of %s failed, continuing without it: %s", self.name, self.failure)
            return self.function(*args)


def _any_sizes() -> AbstractContextManager[None]:
    """While open, sizes that happen to be equal when a function is compiled need not stay so."""
    settings: Any = symbolic_shapes
    return settings.patch(use_duck_shape=False)


def _fixed_settings() -> AbstractContextManager[None]:
    """While open, floats that a function finds in its object (gains, weights) are constants of what is compiled.

    Else a compiler first takes them for inputs, finds that it cannot, and compiles the function a second time.
    """
    return torch._dynamo.config.patch(specialize_float=True)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


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
