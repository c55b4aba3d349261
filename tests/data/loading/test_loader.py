"""Loaders on top of torch's: upstream's order and streams, and samples keyed by (seed, epoch, index)."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.data.loading.loader_fakes import FakeDataset, collate, copied, order
from yolov7fast.core.errors import UserError
from yolov7fast.data.loading.create_dataloader import make_loader, why_fewer

# Recorded from upstream: 12 integers, batch 2, rank 0 of 2, set_epoch(e) before epoch e.
PERMUTATIONS = [[8, 5, 7, 2, 3, 11], [1, 6, 11, 5, 2, 10], [0, 3, 10, 6, 8, 4], [10, 1, 4, 3, 2, 8]]
LAG = {0: [0, 1, 2, 3], 2: [0, 0, 0, 1]}
BASE_SEED = 7692698082559361259  # the first base seed after torch.manual_seed(1)


@pytest.fixture
def make():
    """`make_loader`; what it made is closed after the test."""
    made = []

    def build(dataset, batch_size, workers, **options):
        made.append(make_loader(dataset, batch_size, workers, **options))
        return made[-1]

    yield build
    for loader in made:
        loader.close()


def seed_all(seed=1):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.mark.parametrize("workers", [0, 2])
def test_distributed_order_lags_as_recorded(make, workers):
    loader = make(FakeDataset(12), 2, workers, rank=0, world_size=2)
    for epoch, permutation in enumerate(LAG[workers]):
        loader.set_epoch(epoch)
        assert [i for batch in order(loader) for i in batch] == PERMUTATIONS[permutation]


def test_leaving_an_epoch_early_shifts_the_next_one(make):
    loader = make(FakeDataset(12), 5, 0)
    for _ in loader:
        break
    assert order(loader) == [[5, 6, 7, 8, 9], [10, 11], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("options", [{}, {"worker_tensor": True}])
def test_base_seed_is_drawn_once_when_the_loader_is_made(make, options):
    torch.manual_seed(1)
    assert int(torch.empty((), dtype=torch.int64).random_()) == BASE_SEED
    after = torch.get_rng_state()
    torch.manual_seed(1)
    loader = make(FakeDataset(12), 4, 2, **options)
    list(loader), list(loader)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_those_of_one_torch_loader_running_on(make, workers):
    seed_all()
    ours = make(FakeDataset(6), 2, workers)
    got = copied(ours) + copied(ours)
    seed_all()
    keys = [[0, 1], [2, 3], [4, 5]] * 2
    want = copied(DataLoader(FakeDataset(6), batch_sampler=keys, num_workers=workers, collate_fn=collate))
    assert got == want


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"worker_tensor": True}, {"seed": 3, "worker_tensor": True}])
def test_new_indices_reach_the_workers_under_image_weights(make, persistent, options):
    dataset = FakeDataset(6, seed=options.get("seed"))
    loader = make(dataset, 4, 2, image_weights=True, persistent_workers=persistent, **options)
    for indices in ([5, 5, 4, 4, 0, 0], [1, 2, 3, 1, 2, 3], [0, 1, 2, 3, 4, 5]):
        dataset.indices = indices
        assert order(loader) == [indices[:4], indices[4:]]


@pytest.fixture(scope="module")
def keyed_epochs():
    """Three epochs of a keyed loader without workers: [epoch][batch]."""
    loader = make_loader(FakeDataset(11, seed=7), 4, 0, seed=7, shuffle=True)
    return [copied(loader) for _ in range(3)]


KEYED = [(0, False), (2, False), (2, True)]  # workers, shared memory


@pytest.mark.parametrize("workers, shared", KEYED)
def test_keyed_epoch_begins_at_any_batch_whatever_was_read_before(make, keyed_epochs, workers, shared):
    loader = make(FakeDataset(11, seed=7), 4, workers, seed=7, shuffle=True, worker_tensor=shared)
    next(iter(loader))  # left early
    for epoch, start in [(1, 0), (2, 0), (0, 1), (1, 0), (2, 1)]:
        if epoch != 2 or start:  # the next in turn need not be asked for
            loader.set_epoch(epoch, start_batch=start)
        assert copied(loader) == keyed_epochs[epoch][start:]
        assert len(loader) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_ranks_together_see_the_batches_of_one_process(make, shared):
    alone = make(FakeDataset(16, seed=5), 8, 0, seed=5, shuffle=True)
    ranks = [make(FakeDataset(16, seed=5), 4, 1, seed=5, rank=r, world_size=2, worker_tensor=shared) for r in range(2)]
    for _ in range(2):  # no lag in the second epoch
        halves = [order(loader) for loader in ranks]
        assert [sorted(a + b) for a, b in zip(*halves)] == [sorted(batch) for batch in order(alone)]


def drawing_collate(samples):
    """A collate that draws as quad does."""
    imgs, _, paths, shapes = collate(samples)
    return imgs, torch.full((1, 6), random.random()), paths, shapes


def test_quad_draws_are_keyed_too(make):
    def gates(workers, **start):
        loader = make(FakeDataset(8, seed=2), 4, workers, seed=2, quad=True, collate_fn=drawing_collate)
        loader.set_epoch(1, **start)
        return [float(targets[0, 0]) for _, targets, _, _ in loader]

    seed_all()
    state = random.getstate()
    assert gates(0) == gates(2) and gates(2, start_batch=1) == gates(0)[1:]
    assert len(set(gates(0))) == 2
    assert random.getstate() == state


def test_what_cannot_be_is_refused(make):
    with pytest.raises(UserError, match=r"--quad.*--worker-tensor"):
        make(FakeDataset(), 4, 2, quad=True, worker_tensor=True)
    with pytest.raises(UserError, match="--seed"):
        make(FakeDataset(), 4, 2, shuffle=True)
    with pytest.raises(UserError, match="--micro-batch -1"):
        make(FakeDataset(), 4, 2, worker_tensor=True, micro_batch=-1)
    for options in ({}, {"image_weights": True}, {"worker_tensor": True}):
        with pytest.raises(ValueError, match="seed"):
            make(FakeDataset(), 4, 2, **options).set_epoch(0, start_batch=1)


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"image_weights": True}, {"worker_tensor": True}])
def test_closed_loader_says_so(make, options):
    loader = make(FakeDataset(seed=1), 4, 1, **options)
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        list(loader)


def test_fewer_workers_than_asked_for_have_a_reason(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert why_fewer(64, 64) == "this machine has 16 cores"
    assert why_fewer(64, 64, world_size=4) == "this machine has 16 cores for 4 processes"
    assert why_fewer(8, 2) == "a batch has 2 images"
    assert why_fewer(8, 1) == "a batch has 1 image"
    assert why_fewer(8, 64) == why_fewer(0, 64) == ""
