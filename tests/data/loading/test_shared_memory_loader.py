"""Micro-collate: groups of samples written into reused shared memory."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from tests.data.loading.loader_fakes import FakeDataset, collate, copied
from yolov7fast.core.errors import UserError
from yolov7fast.data.loading.create_dataloader import make_loader
from yolov7fast.data.loading.shared_memory_loader import HELD, QUEUED, BatchBuffer

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


def test_shapes_mixed_in_a_batch_are_refused(shared):
    with pytest.raises(UserError, match=r"mixes image shapes: .*leave out --rect, or leave out --shuffle"):
        list(shared(FakeDataset(6, RECT, seed=1), 3, seed=1))


def test_without_a_seed_groups_go_to_workers_in_turn(shared):
    """Worker k makes groups k, k+W, ... from streams seeded as torch seeds its worker k: torch's batches of a group."""
    torch.manual_seed(1)
    groups = [[0, 1, 2], [3], [4, 5, 6], [7]]
    torchs = DataLoader(FakeDataset(8), batch_sampler=groups, num_workers=2, collate_fn=collate)
    want = [(imgs.tolist(), [row[1:] for row in labels.tolist()]) for imgs, labels, _, _ in torchs]
    torch.manual_seed(1)
    got = copied(shared(FakeDataset(8), 4, micro_batch=3))
    assert [imgs for imgs, *_ in got] == [want[0][0] + want[1][0], want[2][0] + want[3][0]]
    assert [[row[1:] for row in rows] for _, rows, _, _ in got] == [want[0][1] + want[1][1], want[2][1] + want[3][1]]


def test_a_batch_stays_valid_until_the_second_advance(shared):
    batches = iter(shared(FakeDataset(200, seed=1), 2, seed=1))
    kept = [(imgs, imgs.clone()) for imgs, *_ in (next(batches), next(batches))]
    for _ in range(60):
        assert all(torch.equal(view, copy) for view, copy in kept)
        imgs = next(batches)[0]
        kept = [kept[1], (imgs, imgs.clone())]


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
    first = [next(batches)[0] for _ in range(HELD + QUEUED)]
    before = [imgs.clone() for imgs in first]
    assert cuda.waits == 0 and len({imgs.data_ptr() for imgs in first}) == len(first)  # nothing passed, nothing reused
    assert all(torch.equal(view, copy) for view, copy in zip(first, before))
    for _ in batches:
        pass
    assert cuda.waits > 0  # slots ran out: the loader waited for the device instead of overwriting
    loader.close()
    (_, pointer, size), (_, released) = cuda.calls
    assert pointer == released and size >= len(first) * 2 * 3 * 64


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


def test_a_failed_start_of_workers_is_reported(shared, monkeypatch):
    def refuse(self):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.ForkProcess.start", refuse)
    with pytest.raises(UserError, match=r"cannot start 2 data workers .*fewer --workers"):
        list(shared(FakeDataset(8, seed=1), 4, seed=1))


def test_errors_of_the_code_come_with_the_workers_traceback(shared):
    dataset = FakeDataset(8, seed=1)
    dataset.sample_into = lambda key, out: 1 / 0
    with pytest.raises(ZeroDivisionError, match="Original Traceback"):
        list(shared(dataset, 4, seed=1))
