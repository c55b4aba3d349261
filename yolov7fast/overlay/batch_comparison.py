"""`--check`: runs the checkout's code and the overlay's on the first batches, and prints differences and times.

Samples must be equal bit by bit; losses and their fp32 gradients within 1e-5 of the largest value. A larger difference
ends the run.
"""

import copy
import math
import random
import re
import statistics
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.overlay.checkout import Patches
from yolov7fast.overlay.replacements import plain_tensor

TOLERANCE = 1e-5
HEADER = f"\n{'check':<28}{'batches':>8}{'difference':>12}{'checkout':>12}{'overlay':>12}{'faster':>9}"


class BatchComparison:
    """Compares the first `batches` results of losses and loaders; 0 disables the comparison."""

    def __init__(self, batches: int):
        self.batches = batches
        self.rows: list[_Row] = []

    def new_row(self, name: str) -> "_Row":
        self.rows.append(_Row(self, name))
        return self.rows[-1]

    def loss(self, ours: type, theirs: type, module: ModuleType) -> type:
        """A loss class that runs both in its first calls and is `ours` afterwards. module: the module of `theirs`."""
        if not self.batches:
            return ours
        row = self.new_row(ours.__name__)

        class ComparedLoss(ours):
            def __init__(self, model, *args, **kwargs):
                super().__init__(model, *args, **kwargs)
                with Patches() as named:
                    named.set(module, ours.__name__, theirs)  # its constructor refers to itself by this name
                    self._theirs = theirs(model, *args, **kwargs)

            def __call__(self, p, targets, *images):
                if not row.complete:
                    own = copy.copy(self)
                    mine = _loss_side(lambda *a: ours.__call__(own, *a), p, targets, images)
                    row.add(mine, _loss_side(self._theirs, p, plain_tensor(targets), images))
                return super().__call__(p, targets, *images)

        return ComparedLoss

    def loader(self, ours: Callable, theirs: Callable) -> Callable:
        """A `create_dataloader` that compares the first batches of both, then calls ours with the same random state."""
        if not self.batches:
            return ours

        def create(*args, **kwargs):
            prefix = re.sub(r"\x1b\[\d+m|:", "", kwargs.get("prefix", ""))  # without colour codes
            row = self.new_row(f"samples {prefix}".strip())
            state = random.getstate(), np.random.get_state(), torch.get_rng_state()
            taken = []
            for side in (ours, theirs):
                _set_random_state(state)
                taken.append(_first_batches(side, args, kwargs, self.batches))
            _set_random_state(state)
            for our_batch, their_batch in zip(*taken):
                row.add(our_batch, their_batch)
            row.finish()
            return ours(*args, **kwargs)

        return create

    def finish(self, error: type | None, *_: Any) -> None:
        """Print the parts with fewer batches than requested, unless an error ends the run."""
        for row in self.rows if error is None else ():
            row.finish()


class _Row:
    """Differences and times of one part, batch by batch."""

    def __init__(self, table: BatchComparison, name: str):
        self.table, self.name = table, name
        self.differences: list[float] = []
        self.seconds: list[tuple[float, float]] = []
        self.complete = False

    def add(self, ours: tuple[Any, float], theirs: tuple[Any, float]) -> None:
        """Add the results of a batch, each with the seconds it took."""
        self.differences.append(difference(ours[0], theirs[0]))
        self.seconds.append((ours[1], theirs[1]))
        if len(self.differences) == self.table.batches:
            self.finish()

    def finish(self) -> None:
        """Print the row, below the header if it is the first; a difference beyond the tolerance ends the run."""
        if self.complete or not self.differences:
            return
        if not any(row.complete for row in self.table.rows):
            print(HEADER, end="")
        self.complete = True
        worst = max(self.differences)
        ours, theirs = (statistics.median(side) for side in zip(*self.seconds))
        text = "none" if worst == 0 else f"{worst:.1e}"
        times = f"{theirs * 1e3:9.1f} ms{ours * 1e3:9.1f} ms{theirs / max(ours, 1e-9):8.2f}x"
        print(f"\n{self.name:<28}{len(self.differences):>8}{text:>12}{times}", flush=True)
        if worst > TOLERANCE:
            raise UserError(
                f"--check: {self.name} differs by {worst:.1e}, more than {TOLERANCE:.0e}; keep "
                "the checkout's own (see --help for the part's switch), or leave out --check"
            )


def difference(ours: Any, theirs: Any) -> float:
    """Largest difference of two results, relative to the largest number; whole numbers and text must be equal."""
    if isinstance(ours, tuple | list):
        if not isinstance(theirs, tuple | list) or len(ours) != len(theirs):
            return math.inf
        return max((difference(a, b) for a, b in zip(ours, theirs)), default=0.0)
    if not isinstance(ours, torch.Tensor | np.ndarray | float):
        return 0.0 if ours == theirs else math.inf
    a, b = (torch.as_tensor(x).detach().cpu() for x in (ours, theirs))
    if a.shape != b.shape:
        return math.inf
    if a.dtype == b.dtype and torch.equal(a, b):
        return 0.0
    worst = float((a.double() - b).abs().max() / b.double().abs().max().clamp(min=1e-12))
    return worst if a.is_floating_point() and not math.isnan(worst) else math.inf


def _loss_side(loss: Callable, p, targets, images) -> tuple[Any, float]:
    """(items, gradients) of a loss on copies of the predictions in full precision, and its seconds."""
    leaves = [m.detach().float().clone().requires_grad_() for m in p]
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    with torch.enable_grad(), torch.autocast(leaves[0].device.type, enabled=False):
        synchronize()
        start = time.perf_counter()
        total, items = loss(leaves, targets, *images)
        total.backward()
        synchronize()
        seconds = time.perf_counter() - start
    return (items, [m.grad for m in leaves]), seconds


def _first_batches(create: Callable, args, kwargs, count: int) -> list[tuple[Any, float]]:
    """Copies of the first batches of a new loader and the seconds each took, the first including the loader's start."""
    start = time.perf_counter()
    loader = create(*args, **kwargs)[0]
    taken, batches = [], iter(loader)
    for _ in range(min(count, len(loader))):
        images, targets, paths, *_ = next(batches)
        now = time.perf_counter()
        taken.append(((images.clone(), plain_tensor(targets).clone(), list(paths)), now - start))
        start = time.perf_counter()
    if hasattr(loader, "close"):
        loader.close()
    return taken


def _set_random_state(state: tuple) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
