"""Two processes never train in one folder, and a dead one never keeps it."""

import os
import signal
import socket

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.core.files import locks
from yolov7fast.core.files.locks import FolderLock, NoLocks


def child_holding(folder, then=lambda: None) -> tuple[int, int]:
    """A process that has the lock, and a pipe that ends when it does what comes then."""
    ready, done = os.pipe()
    process = os.fork()
    if process == 0:
        with FolderLock(folder):
            os.write(done, b"x")
            then()
            signal.pause()
        os._exit(0)
    os.close(done)
    assert os.read(ready, 1) == b"x"
    return process, ready


def test_the_second_process_names_the_first(tmp_path):
    process, _ = child_holding(tmp_path)
    try:
        with pytest.raises(UserError) as caught:
            FolderLock(tmp_path).__enter__()
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    text = str(caught.value)
    assert f"process {process} on {socket.gethostname()}, since 20" in text and "UTC" in text and "--name" in text


def test_a_dead_process_loses_its_lock_though_its_children_live(tmp_path):
    children = os.pipe()

    def start_worker():
        worker = os.fork()
        if worker == 0:
            signal.pause()
        os.write(children[1], f"{worker}\n".encode())

    process, _ = child_holding(tmp_path, start_worker)
    worker = int(os.read(children[0], 20))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    try:
        assert (tmp_path / locks.NAME).is_file()
        with FolderLock(tmp_path):
            assert f"process {os.getpid()} " in (tmp_path / locks.NAME).read_text()
    finally:
        os.kill(worker, signal.SIGKILL)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_made_when_the_lock_is_taken(tmp_path):
    with FolderLock(tmp_path / "a" / "b") as lock:
        assert os.listdir(tmp_path) == []
        lock.take()
        lock.take()
        with pytest.raises(UserError, match="is in use"):
            FolderLock(tmp_path / "a" / "b").take()
    FolderLock(tmp_path / "a" / "b").take()
    with FolderLock(tmp_path / "c", wanted=False) as lock:
        lock.take()
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_system_without_locks_is_no_reason_to_stop(tmp_path, monkeypatch):
    def none(path):
        raise NoLocks

    monkeypatch.setattr(locks, "try_lock", none)
    with FolderLock(tmp_path) as lock:
        lock.take()


def test_a_lock_whose_folder_was_removed_is_taken_again_unless_another_process_has_it(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with FolderLock(folder) as lock:
        lock.path.unlink()
        lock.renew()
        with pytest.raises(UserError, match=f"process {os.getpid()}"):
            FolderLock(folder).take()
        lock.path.unlink()
        process, _ = child_holding(folder)
        try:
            with pytest.raises(UserError, match=f"process {process}"):
                lock.renew()
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
