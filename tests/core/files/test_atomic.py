"""A file is replaced whole or not at all, whoever else writes it, and nothing is left beside it."""

import errno
import os
import signal

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.core.files import locks
from yolov7fast.core.files.atomic import (
    atomic_file,
    atomic_folder,
    atomic_path,
    clear_abandoned,
    link_or_copy,
    write_atomically,
)


def in_child(action) -> int:
    """Run `action` in another process; how it ended, as from os.waitpid."""
    process = os.fork()
    if process == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(process, 0)[1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_block_leaves_the_old_file_alone(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), atomic_file(path) as file:
        file.write(b"new")
        raise error
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_names_the_file_and_the_remedy(tmp_path, monkeypatch, call):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(UserError, match=r"cannot write .*a\.txt: No space left on device; use another disk"):
        write_atomically(path, "new", remedy="use another disk")
    monkeypatch.undo()
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_what_a_killed_process_left_is_taken_over(tmp_path):
    path = tmp_path / "a.txt"

    def write_half():
        with atomic_file(path) as file:
            file.write(b"half of it")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    assert os.WTERMSIG(in_child(write_half)) == signal.SIGKILL
    assert os.listdir(tmp_path) == [".a.txt.tmp"]
    write_atomically(path, "new")
    assert os.listdir(tmp_path) == ["a.txt"] and path.read_text() == "new"


def test_two_writers_at_once_do_not_touch_each_others_temporary_file(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_path(path) as first:
        first.write_text("first")
        assert in_child(lambda: write_atomically(path, "second")) == 0
        assert path.read_text() == "second" and first.read_text() == "first"
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["a.txt"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "a.txt").symlink_to(tmp_path / "real" / "a.txt")
    write_atomically(tmp_path / "a.txt", "x")
    assert (tmp_path / "a.txt").is_symlink() and os.listdir(tmp_path / "real") == ["a.txt"]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
    write_atomically(tmp_path / "a.txt", "x")
    with atomic_folder(tmp_path / "b") as folder:
        (folder / "c").touch()
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b"] and os.listdir(tmp_path / "b") == ["c"]


@pytest.mark.parametrize("links", [True, False])
def test_a_second_name_for_a_file_even_where_it_has_that_name_already(tmp_path, monkeypatch, links):
    last, previous = tmp_path / "last.pt", tmp_path / "previous.pt"
    last.write_text("1")
    if not links:
        monkeypatch.setattr(os, "link", lambda *names: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))
    for _ in range(2):
        link_or_copy(last, previous)
        assert previous.read_text() == "1" and os.path.samefile(last, previous) == links
    write_atomically(last, "2")
    assert previous.read_text() == "1" and sorted(os.listdir(tmp_path)) == ["last.pt", "previous.pt"]


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_replaces_what_stood_there(tmp_path):
    for content in ("old", "new"):
        with atomic_folder(tmp_path / "set") as folder:
            (folder / content).touch()
    assert os.listdir(tmp_path) == ["set"] and os.listdir(tmp_path / "set") == ["new"]


def test_a_folder_that_fails_is_not_there(tmp_path):
    with pytest.raises(ValueError), atomic_folder(tmp_path / "set") as folder:
        (folder / "a").touch()
        raise ValueError
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_of_a_folder_is_removed(tmp_path):
    def build_half():
        with atomic_folder(tmp_path / "set") as folder:
            (folder / "a").mkdir()
            (folder / "a" / "half").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    assert os.WTERMSIG(in_child(build_half)) == signal.SIGKILL
    assert os.listdir(tmp_path) == [".set.tmp"]
    with atomic_folder(tmp_path / "set") as folder:
        (folder / "whole").touch()
    assert os.listdir(tmp_path) == ["set"] and os.listdir(tmp_path / "set") == ["whole"]


def test_a_second_name_that_a_kill_left_is_never_emptied(tmp_path):
    """Killed between linking and renaming: the temporary name is one of the good file, whose content must stay."""
    last, previous = tmp_path / "last.pt", tmp_path / "previous.pt"
    last.write_text("good")
    os.link(last, tmp_path / ".previous.pt.tmp")
    link_or_copy(last, previous)
    assert last.read_text() == previous.read_text() == "good"
    assert sorted(os.listdir(tmp_path)) == ["last.pt", "previous.pt"]


def test_what_killed_writers_left_is_cleared_and_what_others_write_is_not(tmp_path):
    (tmp_path / "last.pt").write_text("good")
    os.link(tmp_path / "last.pt", tmp_path / ".previous.pt.tmp")
    for name in (".best.pt.2.tmp", ".plot.png.tmp.png", ".results.csv.4711.tmp"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".hidden").write_text("of another program")
    with atomic_file(tmp_path / "epoch_001.pt") as file:
        clear_abandoned(tmp_path)
        file.write(b"whole")
    assert sorted(os.listdir(tmp_path)) == [".hidden", "epoch_001.pt", "last.pt"]
    assert (tmp_path / "last.pt").read_text() == "good" and (tmp_path / "epoch_001.pt").read_text() == "whole"
    clear_abandoned(tmp_path / "none")
