"""Micro-collate: groups of samples written into reused shared memory."""

import fcntl
import multiprocessing.context
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data._utils.worker import _generate_state

from tests.data.loading.loader_fakes import FakeDataset, copied
from yolov7fast.core.errors import UserError
from yolov7fast.data.loading.create_dataloader import make_loader
from yolov7fast.data.loading.shared_memory_loader import HELD, batches_ahead
from yolov7fast.data.loading.shared_memory_worker import BatchBuffer, ClaimBoard, _seed_like_torch

pytestmark = pytest.mark.timeout(60)
RECT = ((8, 16), (8, 16), (16, 8), (16, 8), (8, 8), (8, 8))  # as rect batches of 2 have them


@pytest.fixture
def shared():
    """A shared-memory loader with two workers over the given data set; closed after the test."""
    made = []

    def build(dataset, batch_size, workers=2, **options):
        made.append(make_loader(dataset, batch_size, workers, worker_tensor=True, **options))
        return made[-1]

    yield build
    for loader in made:
        loader.close()


@pytest.mark.parametrize("micro_batch", [0, 3, 100])
def test_any_group_size_gives_the_same_batches(shared, micro_batch):
    want = copied(make_loader(FakeDataset(17, seed=1), 7, 0, seed=1))
    assert copied(shared(FakeDataset(17, seed=1), 7, micro_batch=micro_batch, seed=1)) == want


def test_rect_batches_of_several_shapes(shared):
    want = copied(make_loader(FakeDataset(6, RECT, seed=1), 2, 0, seed=1))
    loader = shared(FakeDataset(6, RECT, seed=1), 2, seed=1)
    for _ in range(3):
        assert [tuple(imgs.shape[2:]) for imgs, *_ in loader] == [(8, 16), (16, 8), (8, 8)]
    loader.set_epoch(0)
    assert copied(loader) == want


def test_shapes_mixed_in_a_batch_are_refused(shared):
    with pytest.raises(UserError, match=r"mixes image shapes: .*leave out --rect, or leave out --shuffle"):
        list(shared(FakeDataset(6, RECT, seed=1), 3, seed=1))


def test_without_a_seed_groups_go_to_workers_in_turn(shared):
    """Worker k makes groups k, k+W, ... from streams seeded as torch seeds its worker k."""
    torch.manual_seed(1)
    base = int(torch.empty((), dtype=torch.int64).random_())
    torch.manual_seed(1)
    got = [labels.tolist() for _, labels, _, _ in shared(FakeDataset(8), 4, micro_batch=2)]
    saved = random.getstate(), np.random.get_state(), torch.get_rng_state()
    rows = {}
    for worker in range(2):
        _seed_like_torch(base, worker)
        dataset = FakeDataset(8)
        for group in range(worker, 4, 2):
            for index in (2 * group, 2 * group + 1):
                rows[index] = dataset[index][1]
                rows[index][:, 0] = index % 4
    random.setstate(saved[0]), np.random.set_state(saved[1]), torch.set_rng_state(saved[2])
    assert got == [torch.cat([rows[i] for i in batch]).tolist() for batch in (range(4), range(4, 8))]


@pytest.mark.parametrize("base_seed, worker", [(7692698082559361259, 0), (7692698082559361259, 3), (5, 1)])
def test_workers_are_seeded_as_torch_seeds_them(base_seed, worker):
    saved = random.getstate(), np.random.get_state(), torch.get_rng_state()
    _seed_like_torch(base_seed, worker)
    got = random.random(), np.random.random_sample(), torch.initial_seed()
    random.setstate(saved[0]), np.random.set_state(saved[1]), torch.set_rng_state(saved[2])
    assert got[0] == random.Random(base_seed + worker).random()
    assert got[1] == np.random.RandomState(_generate_state(base_seed, worker)).random_sample()
    assert got[2] == base_seed + worker


def test_a_batch_stays_valid_until_the_second_advance(shared):
    batches = iter(shared(FakeDataset(200, seed=1), 2, seed=1))
    kept = [(imgs, imgs.clone()) for imgs, *_ in (next(batches), next(batches))]
    for _ in range(60):
        assert all(torch.equal(view, copy) for view, copy in kept)
        imgs = next(batches)[0]
        kept = [kept[1], (imgs, imgs.clone())]


def test_late_worker_cannot_claim_from_the_slots_next_batch():
    board = ClaimBoard(1)
    board.open(0, serial=4)
    assert [board.claim(0, 4, 2) for _ in range(3)] == [0, 1, None]
    board.open(0, serial=9)
    assert board.claim(0, 4, 2) is None
    assert [board.claim(0, 9, 1) for _ in range(2)] == [0, None]
    board.close()


class FakeCuda:
    """Stands in for the CUDA runtime and its events; `done` is how many marks the device has passed."""

    def __init__(self):
        self.calls, self.marks, self.done, self.waits = [], 0, 0, 0

    def cudaHostRegister(self, pointer, size, flags):
        self.calls.append(("register", pointer, size))
        return 0

    def cudaHostUnregister(self, pointer):
        self.calls.append(("unregister", pointer))

    def event(self):
        cuda = self

        class Event:
            def record(self):
                cuda.marks += 1
                self.number = cuda.marks

            def query(self):
                return self.number <= cuda.done

            def synchronize(self):
                cuda.waits += 1
                cuda.done = max(cuda.done, self.number)

        return Event()


def test_with_cuda_pages_are_locked_and_slots_wait_for_the_device(shared, monkeypatch):
    cuda = FakeCuda()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "Event", cuda.event)
    loader = shared(FakeDataset(40, seed=1), 2, seed=1)
    batches = iter(loader)
    slots = HELD + batches_ahead(2, 2, loader.micro_batch)
    first = [next(batches)[0] for _ in range(slots)]
    before = [imgs.clone() for imgs in first]
    assert cuda.waits == 0 and len({imgs.data_ptr() for imgs in first}) == slots  # nothing passed, nothing reused
    assert all(torch.equal(view, copy) for view, copy in zip(first, before))
    for _ in batches:
        pass
    assert cuda.waits > 0  # slots ran out: the loader waited for the device instead of overwriting
    loader.close()
    (_, pointer, size), (_, released) = cuda.calls
    assert pointer == released and size >= slots * 2 * 3 * 64


def test_a_refusal_to_lock_pages_is_logged_and_leaves_no_error_behind(monkeypatch, caplog):
    """CUDA keeps the error of the refused call until it is read, and would report it at the next kernel launch."""
    launches = []

    def launch(*args, device):
        launches.append(device)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=lambda *_: 2))
    monkeypatch.setattr(torch, "ones", launch)
    buffer = BatchBuffer(1, 10)
    with caplog.at_level("INFO"):
        buffer.pin()
    assert not buffer.pinned and buffer.mark() is None
    assert launches == ["cuda"]
    assert len(caplog.records) == 1 and "ulimit -l" in caplog.text


@pytest.mark.parametrize("seed", [None, 1])
def test_pipes_of_one_page_at_a_large_batch_never_block_both_sides(shared, monkeypatch, seed):
    """Where the system grants no larger pipes, tasks and results of a batch exceed them several times over."""
    make = multiprocessing.context.BaseContext.Pipe

    def narrow(self, duplex):
        ends = make(self, duplex)
        assert fcntl.fcntl(ends[1].fileno(), fcntl.F_SETPIPE_SZ, 4096) == 4096
        return ends

    monkeypatch.setattr(multiprocessing.context.BaseContext, "Pipe", narrow)
    monkeypatch.setattr("yolov7fast.data.loading.shared_memory_loader._widen", lambda pipe: None)
    n, batch = 4 * 1024, 1024
    loader = shared(FakeDataset(n, seed=seed), batch, micro_batch=96, seed=seed)
    paths = [path for _, _, paths, _ in loader for path in paths]
    assert paths == [f"im{i}.jpg" for i in range(n)]


def test_messages_cut_into_pieces_arrive_whole(shared, monkeypatch):
    """A task pipe that takes a byte or two at a time, or nothing, delays batches but changes none."""
    want = copied(make_loader(FakeDataset(17, seed=1), 4, 0, seed=1))
    write, calls = os.write, []

    def a_little(fd, data):
        calls.append(fd)
        if len(calls) % 3 == 0:
            raise BlockingIOError
        return write(fd, bytes(data[:2]))

    loader = shared(FakeDataset(17, seed=1), 4, seed=1)
    monkeypatch.setattr("yolov7fast.data.loading.shared_memory_loader.os.write", a_little)
    assert copied(loader) == want
    assert len(calls) > 100


def test_no_memory_for_buffers_is_reported(shared, monkeypatch):
    def refuse(*args):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("yolov7fast.data.loading.shared_memory_worker.mmap.mmap", refuse)
    with pytest.raises(UserError, match="--batch-size"):
        shared(FakeDataset(8, seed=1), 4, seed=1)


def test_a_failed_start_of_workers_is_reported(shared, monkeypatch):
    def refuse(self):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.ForkProcess.start", refuse)
    with pytest.raises(UserError, match="fewer --workers"):
        shared(FakeDataset(8, seed=1), 4, seed=1)


def test_errors_of_the_code_come_with_the_workers_traceback(shared):
    dataset = FakeDataset(8, seed=1)
    dataset.sample_into = lambda key, out: 1 / 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        list(shared(dataset, 4, seed=1))


def test_an_interrupted_exchange_closes_the_loader(shared, monkeypatch):
    """Ctrl-C in the middle of a message: continuing would misread all that follows."""
    loader = shared(FakeDataset(40, seed=1), 4, seed=1)
    batches = iter(loader)
    next(batches)

    def interrupt(message):
        raise KeyboardInterrupt

    monkeypatch.setattr(loader._workers, "send", interrupt)
    with pytest.raises(KeyboardInterrupt):
        for _ in batches:
            pass
    assert all(p.exitcode is not None for p in loader._workers.processes)
    with pytest.raises(RuntimeError, match="closed"):
        next(iter(loader))
