"""`--cuda-graph`: forward and backward pass of the network as two CUDA graphs, two launches instead of thousands.

A graph replays the kernels that were launched while it was captured, with the same memory: the images are copied into
the graph's input, and the gradients of all weights are added to buffers that stay where they are. The loss is not part
of it, because its shapes depend on the labels.

Not `torch.cuda.make_graphed_callables`: it gives each weight's gradient to autograd, which costs a call for each weight
and step, and autograd would take the graph's memory as the gradient, which the next replay of an accumulation
overwrites. Not `--compile reduce-overhead` either: it needs a C++ toolchain and minutes, and changes the kernels. Here
they are those of the eager step, so the numbers are the same.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from yolov7fast.core.errors import one_line

log = logging.getLogger(__name__)
CAPTURED_AFTER = 3  # batches of one shape in a row: cuDNN has chosen its algorithms, the optimizer has its state


class GraphedNet:
    """Calls a network in training through CUDA graphs for one shape of images, and eagerly for others.

    A shape is captured when it comes for the fourth time in a row; until then, and where capture fails, the network
    runs eagerly. Smaller last batches of an epoch therefore run eagerly, and another size of a resize schedule is
    captured again. Batch-norm statistics, EMA and checkpoints use the network's own tensors, which the graphs read and
    write.

    gradients: the buffers that hold the weights' gradients from the first capture on. They must be set to zero, not
    dropped (`TrainStep.zero_grad`).
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.gradients: list[torch.Tensor] = []
        self.passes: _Passes | None = None
        self.seen, self.times = (), 0  # the last shape, and how often it came in a row
        self.has_failed = False

    def __call__(self, images: torch.Tensor) -> Any:
        shape = (*images.shape, *images.stride())
        if self.passes is not None and self.passes.shape == shape:
            return self.passes(images)
        self.seen, self.times = shape, self.times + 1 if shape == self.seen else 1
        if self.times <= CAPTURED_AFTER or self.has_failed:
            return self.model(images)
        try:
            self._capture(images, shape)
        except Exception as error:  # whatever a layer does that cannot be captured
            self.has_failed = True
            end_capture_of_generators()
            log.warning("CUDA graphs cannot be captured, continuing without them: %s", one_line(error, 200))
        return self.model(images) if self.passes is None else self.passes(images)

    def _capture(self, images: torch.Tensor, shape: tuple[int, ...]) -> None:
        self.passes = None  # its memory is free for the new graphs
        passes = _Passes(self.model, self.trained, images, shape)
        self.gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        self.passes = passes
        log.info("CUDA graphs of the network captured for batches of %s", "x".join(map(str, images.shape)))


def end_capture_of_generators() -> None:
    """After a capture that failed, which leaves CUDA's random generators refusing to draw outside of one."""
    for generator in torch.cuda.default_generators:
        generator.graphsafe_set_state(generator.clone_state())


class _Graph(NamedTuple):
    """A captured pass, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


class _Passes:
    """The two graphs of one shape. They are captured only: weights, statistics and gradients have not changed."""

    def __init__(self, model: nn.Module, trained: Sequence[nn.Parameter], images: torch.Tensor, shape: tuple[int, ...]):
        self.shape = shape
        pool = torch.cuda.graph_pool_handle()
        capture = {"pool": pool, "capture_error_mode": "thread_local"}  # loaders' threads may pin memory meanwhile
        # the cache of autocast would keep casts of weights that belong to this pass for the eager ones
        amp = torch.autocast("cuda", torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda"), False)
        source, forward = images.detach().clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, **capture), amp:
            outputs, self.structure = tree_flatten(model(source))
        self.forward = _Graph(forward, [source], [output.detach() for output in outputs])
        grads, backward = [torch.zeros_like(output) for output in outputs], torch.cuda.CUDAGraph()
        kept = [parameter.grad for parameter in trained]
        buffers = [torch.zeros_like(p) if grad is None else grad for p, grad in zip(trained, kept)]
        with torch.cuda.graph(backward, **capture), torch.autocast("cuda", enabled=False):
            found = torch.autograd.grad(outputs, trained, grads, allow_unused=True)
            used = [(buffer, grad) for buffer, grad in zip(buffers, found) if grad is not None]
            torch._foreach_add_(*map(list, zip(*used)))  # pyright: ignore[reportPrivateImportUsage]
        self.backward = _Graph(backward, grads, [])
        for parameter, buffer, grad in zip(trained, buffers, found):
            if grad is not None:  # weights that no output depends on stay without, so that no update reaches them
                parameter.grad = buffer
        self.anchor = torch.zeros((), device=images.device, requires_grad=True)

    def __call__(self, images: torch.Tensor) -> Any:
        outputs: Any = _Replay.apply(self.anchor, images, self)
        return tree_unflatten(list(outputs), self.structure)


class _Replay(torch.autograd.Function):
    """Replays both passes. `anchor` needs a gradient, so that the outputs do; the weights are no inputs of autograd."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, images: torch.Tensor, passes: _Passes) -> tuple[torch.Tensor, ...]:
        ctx.backward_pass = passes.backward
        passes.forward.inputs[0].copy_(images)
        passes.forward.graph.replay()
        return tuple(output.detach() for output in passes.forward.outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        torch._foreach_copy_(ctx.backward_pass.inputs, list(grads))  # pyright: ignore[reportPrivateImportUsage]
        ctx.backward_pass.graph.replay()
        return None, None, None
