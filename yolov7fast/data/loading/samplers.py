"""The order of samples: which make up which batch of which epoch."""

from collections.abc import Iterator

from torch.utils.data import BatchSampler, DistributedSampler


class BatchOrder:
    """A batch sampler over all epochs, so that one iterator, and its workers, can serve them all.

    Permutations are those of torch's `DistributedSampler`: rank r of R takes every R-th entry of one permutation, so
    that R processes with batch B see the same samples per step as one process with batch R*B. Only the last batch of
    an epoch may differ: it is padded, with samples from the start of the epoch, to a multiple of R.

    With a seed (`keyed`) a batch is a list of `(epoch, index)` keys, and each epoch's order a function of its number.
    Without one it is a list of indices in upstream's order: the order of an epoch is fixed when its first batch is
    handed out. With workers this happens while the previous epoch is still being consumed, before
    `DistributedSampler.set_epoch` is called: the order lags, as upstream's does.
    """

    def __init__(
        self,
        dataset,
        batch_size: int,
        *,
        rank: int = -1,
        world_size: int = 1,
        seed: int | None = None,
        shuffle: bool | None = None,
        endless: bool = True,
    ):
        """shuffle: None: with several processes (`rank` >= 0), as upstream. endless: continue into the next epoch."""
        self.seed = seed
        self.endless = endless
        self.start: tuple[int, int] = (0, 0)  # epoch and batch at which the next iterator begins; only with a seed
        self.sampler = DistributedSampler(
            dataset,
            num_replicas=world_size if rank >= 0 else 1,
            rank=max(rank, 0),
            shuffle=rank >= 0 if shuffle is None else shuffle,
            seed=seed or 0,
        )
        self._batches = BatchSampler(self.sampler, batch_size, drop_last=False)

    @property
    def keyed(self) -> bool:
        return self.seed is not None

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self._batches)

    def __iter__(self) -> Iterator[list]:
        epoch, start = self.start
        while True:
            if self.keyed:
                self.sampler.set_epoch(epoch)
                for indices in list(self._batches)[start:]:
                    yield [(epoch, index) for index in indices]
            else:
                yield from self._batches
            if not self.endless:
                return
            epoch, start = epoch + 1, 0
