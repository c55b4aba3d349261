"""The order of samples: which make up which batch of which epoch.

A batch is a list of keys: plain indices where samples draw from global generators, as upstream's do, and
`(epoch, index)` where the random numbers of a sample are a function of its key.
"""

from collections.abc import Iterator

from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler


def upstream_sampler(dataset, rank: int, world_size: int):
    """Return upstream's sampler: in order for one process, permuted by the epoch's number for several."""
    return SequentialSampler(dataset) if rank < 0 else DistributedSampler(dataset, num_replicas=world_size, rank=rank)


class RestartingBatches:
    """A batch sampler that never ends, so that one iterator, and its workers, serve all epochs.

    The order of an epoch is fixed when its first batch is handed out. With workers this happens while the previous
    epoch is still being consumed, before `DistributedSampler.set_epoch` is called: the order lags, as upstream's does.
    """

    def __init__(self, sampler, batch_size: int):
        self.batches = BatchSampler(sampler, batch_size, drop_last=False)

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from self.batches


class EpochOrder:
    """The batches of every epoch as a function of the epoch's number alone.

    Orders are those of torch's `DistributedSampler`: rank r of R takes every R-th entry of one permutation, so that
    R processes with batch B see the same samples per step as one process with batch R*B. Only the last batch of an
    epoch may differ: it is padded, with samples from the start of the epoch, to a multiple of R.
    """

    def __init__(self, dataset, batch_size: int, *, rank=-1, world_size=1, seed: int = 0, shuffle: bool | None = None):
        """shuffle: None: with several processes (`rank` >= 0), as upstream; `seed` selects the permutations."""
        self._sampler = DistributedSampler(
            dataset,
            num_replicas=world_size if rank >= 0 else 1,
            rank=max(rank, 0),
            shuffle=rank >= 0 if shuffle is None else shuffle,
            seed=seed,
        )
        self._batches = BatchSampler(self._sampler, batch_size, drop_last=False)

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self._batches)

    def batches(self, epoch: int, start: int = 0) -> list[list[int]]:
        """Return the batches of one epoch from batch `start` on, each a list of indices."""
        self._sampler.set_epoch(epoch)
        return list(self._batches)[start:]

    def onwards(self, epoch: int, start: int = 0, *, endless: bool = True) -> Iterator[tuple[int, list[int]]]:
        """Yield (epoch, indices) of each batch from the given one on; `endless`: into the following epochs."""
        while True:
            for indices in self.batches(epoch, start):
                yield epoch, indices
            if not endless:
                return
            epoch, start = epoch + 1, 0


class KeyedBatches:
    """A batch sampler of `(epoch, index)` keys that begins at `start` and, if endless, never stops."""

    def __init__(self, order: EpochOrder, *, endless: bool):
        self.order = order
        self.endless = endless
        self.start = (0, 0)  # epoch and batch at which the next iterator begins

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch, indices in self.order.onwards(*self.start, endless=self.endless):
            yield [(epoch, index) for index in indices]


class EpochByEpoch:
    """Base of loaders that can start any epoch at any batch. A loader may prepare batches of the next epoch.

    As long as epochs are requested in order, `_begin_at` is called once.
    """

    endless = True  # whether `_take` continues into the next epoch
    _wanted = (0, 0)  # (epoch, batch) that the next iteration begins with
    _ahead: tuple[int, int] | None = None  # (epoch, batch) that `_take` gives next

    def __len__(self) -> int:
        """Batches of one epoch."""
        raise NotImplementedError

    def _begin_at(self, epoch: int, start: int) -> None:
        """Make batch `start` of this epoch the next one."""
        raise NotImplementedError

    def _take(self) -> tuple:
        """Return the next batch."""
        raise NotImplementedError

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Set the epoch, and the batch within it, of the next iteration. Default: the epoch after the last one."""
        self._wanted = (epoch, start_batch)

    def __iter__(self) -> Iterator[tuple]:
        epoch, start = self._wanted
        self._wanted = (epoch + 1, 0)
        if self._ahead != (epoch, start):
            self._begin_at(epoch, start)
        for batch in range(start, len(self)):
            last = batch + 1 == len(self)
            self._ahead = (epoch + 1, 0) if last and self.endless else (epoch, batch + 1)
            yield self._take()
