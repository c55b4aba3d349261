"""One training step: forward, loss, backward, update. There is no host sync; means stay on the device until they are
logged."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from yolov7fast.training.optimizer import ModelEMA, Rates, apply_rates
from yolov7fast.training.timing import NO_TIMER, NoTimer

if TYPE_CHECKING:
    from yolov7fast.training.family import Family


class Amp(NamedTuple):
    """Mixed precision: whether it is used, its dtype, and whether gradients need scaling."""

    enabled: bool
    dtype: torch.dtype = torch.float32

    @property
    def scaled(self) -> bool:
        return self.enabled and self.dtype is torch.float16


def choose_amp(mode: str, device: torch.device) -> Amp:
    """`auto` is upstream's behaviour: half precision on CUDA, none on a CPU."""
    if mode == "off" or (mode == "auto" and device.type != "cuda"):
        return Amp(False)
    return Amp(True, torch.bfloat16 if mode == "bf16" else torch.float16)


class StepMetrics(NamedTuple):
    """The values that the host reads at a sync: mean loss parts of the epoch, and of the batches whose loss was not
    finite their count and the global step of the first (-1: none)."""

    means: list[float]
    nonfinite: int
    first_nonfinite: int


class TrainStep:
    """Runs batches through network, loss and optimizer, and keeps running means on the device."""

    def __init__(
        self,
        family: "Family",
        model: nn.Module,
        net: Callable,
        optimizer: torch.optim.Optimizer,
        ema: ModelEMA | None,
        device: torch.device,
        *,
        amp: Amp = Amp(False),  # noqa: B008 (an immutable tuple)
        loss_factor: float = 1.0,
        keep_buffers: bool = False,
        clip_norm: float = 0.0,
        vote_on_finite: bool = False,
        world_size: int = 1,
        no_sync: Callable[[], AbstractContextManager] | None = None,
    ):
        """model: the plain network; net: the module that is called (the same, compiled or wrapped for several
        processes);
        loss_factor: multiplies the loss (world size, quad); keep_buffers: undo batch-norm updates of a skipped batch;
        clip_norm: largest norm of all gradients together, 0: not clipped; vote_on_finite: a batch whose loss is not
        finite in one process is skipped by all, so that none waits for gradients that another does not send; no_sync:
        the method of a net that averages the gradients of several processes in its backward pass, in which it does not;
        None: the step averages them before an update."""
        self.family, self.model, self.net = family, model, net
        self.optimizer, self.ema, self.device, self.amp = optimizer, ema, device, amp
        self.loss_factor, self.clip_norm, self.vote_on_finite = loss_factor, clip_norm, vote_on_finite
        self.world_size, self.no_sync = world_size, no_sync
        self.is_averaged = True  # whether all gradients since the last update are those of all processes
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp.scaled)
        self.buffers = [b for b in model.buffers() if b.is_floating_point()] if keep_buffers else []
        self.nonfinite = torch.zeros(2, device=device)  # batches, global step of the first (plus one)
        self.nonfinite_since_update = torch.zeros((), device=device)
        self.begin_epoch()

    def begin_epoch(self, means: list[float] | None = None, count: int = 0) -> None:
        """Clear the running means, or set those of an epoch that is resumed after `count` batches."""
        values = means if means is not None else [0.0] * len(self.family.loss_names)
        self.means = torch.tensor(values, device=self.device)
        self.count: int | torch.Tensor = count  # a tensor if the device decides, without a sync, whether a batch counts

    def __call__(self, batch, global_step: int, rates: Rates, timer: NoTimer = NO_TIMER) -> bool:
        """Train on one batch; whether the weights were due for an update, after which there are no gradients.

        Batches that only accumulate are not averaged over processes.
        """
        is_update = global_step % rates.accumulate == 0
        with self.no_sync() if self.no_sync and not is_update else nullcontext():
            self._accumulate(batch, global_step, rates, timer, is_averaged=self.no_sync is not None and is_update)
        if is_update:
            self._update(timer)
        return is_update

    def _accumulate(self, batch, global_step: int, rates: Rates, timer: NoTimer, is_averaged: bool) -> None:
        timer.begin()
        apply_rates(self.optimizer, rates)
        kept = [buffer.clone() for buffer in self.buffers]
        batch = self.family.to_device(batch, self.device)
        timer.mark("transfer")
        with torch.autocast(self.device.type, self.amp.dtype) if self.amp.enabled else nullcontext():
            loss, items = self.family.forward_loss(self.net, batch, timer.mark)
        if self.loss_factor != 1.0:
            loss = loss * self.loss_factor
        timer.mark("loss")
        finite = self._note_finite(loss, global_step)
        if finite is not False:
            self.scaler.scale(loss).backward()
            self.is_averaged = is_averaged
            self._note_items(items, finite)
        self._undo_buffers(kept, finite)
        timer.mark("backward")

    def _note_finite(self, loss: torch.Tensor, global_step: int) -> bool | torch.Tensor:
        """Count a loss that is not finite. On a CPU the answer is a bool; elsewhere it stays on the device: no sync."""
        wrong = (~torch.isfinite(loss.detach()).all()).float()
        if self.vote_on_finite:
            dist.all_reduce(wrong, op=dist.ReduceOp.MAX)
        self.nonfinite_since_update = self.nonfinite_since_update + wrong
        self.nonfinite = self.nonfinite + torch.stack([wrong, wrong * (global_step + 1.0) * (self.nonfinite[0] == 0)])
        finite = wrong == 0
        return bool(finite) if self.device.type == "cpu" else finite

    def _undo_buffers(self, kept: list[torch.Tensor], finite: bool | torch.Tensor) -> None:
        """Undo the effect of a skipped batch on the batch-norm statistics."""
        for buffer, old in zip(self.buffers, kept, strict=True):
            if finite is False:
                buffer.copy_(old)
            elif finite is not True:
                buffer.copy_(torch.where(finite, buffer, old))

    def _note_items(self, items: torch.Tensor, finite: bool | torch.Tensor) -> None:
        """Add the loss parts of a finite batch to the means; on a device without a sync."""
        means = (self.means * self.count + items) / (self.count + 1)
        if isinstance(finite, bool):
            self.means, self.count = means, self.count + 1
        else:
            self.means, self.count = torch.where(finite, means, self.means), self.count + finite.long()

    def _update(self, timer: NoTimer) -> None:
        if any(parameter.grad is not None for parameter in self.trained):  # else all batches were skipped
            if self.world_size > 1 and not self.is_averaged:
                average_gradients(self.trained)
            self._step_optimizer()
        timer.mark("optimizer")
        if self.ema is not None:
            self.ema.update(self.model)
        timer.mark("ema")

    def _step_optimizer(self) -> None:
        if self.clip_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.trained, self.clip_norm)
        if not self.scaler.is_enabled() and self.device.type == "cuda":
            # the fused optimizer does not change the weights if this is set, without a sync
            found = self.nonfinite_since_update.clamp(max=1.0)
            self.optimizer.found_inf = found  # pyright: ignore[reportAttributeAccessIssue]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.zero_grad()
        self.nonfinite_since_update = torch.zeros_like(self.nonfinite_since_update)

    def zero_grad(self) -> None:
        """Drop the gradients, or set those to zero that CUDA graphs write."""
        if graphed := getattr(self.net, "gradients", ()):
            torch._foreach_zero_(graphed)  # pyright: ignore[reportPrivateImportUsage]
        else:
            self.optimizer.zero_grad()

    def sync_metrics(self) -> StepMetrics:
        """The only place where the host waits for the device: at the logging interval and at the end of an epoch."""
        values = torch.cat([self.means.float(), self.nonfinite]).tolist()
        return StepMetrics(values[:-2], int(values[-2]), int(values[-1]) - 1)

    def weights_finite(self) -> bool:
        """Whether every weight is finite: a finite loss can have a gradient that is not. This is a host sync."""
        return bool(torch.stack([p.detach().isfinite().all() for p in self.model.parameters()]).all())


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace the gradients by their means over all processes, in one collective."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = (flat / dist.get_world_size()).split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts):
        gradient.copy_(part.view_as(gradient))
