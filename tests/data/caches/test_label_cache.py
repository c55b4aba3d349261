"""The label cache: when it is used, when it is rebuilt, what is reported, and that nothing in it is ever executed."""

import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.data_golden import synth
from yolov7fast.core.errors import UserError
from yolov7fast.data.caches import label_cache
from yolov7fast.data.caches.label_cache import Counts, cache_path, load_labels
from yolov7fast.data.image_io import read_image
from yolov7fast.data.labels import find_images

CACHE = "labels/t.yolov7fast.cache"
POLYGON = "1 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4\n2 0.2 0.2 0.6 0.2 0.4 0.6\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """images/t with a (box), b (polygons), c (no label), d (bad label)."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for part in ("images/t", "labels/t"):
        (tmp_path / part).mkdir(parents=True)
    for k, name in enumerate("abcd"):
        Image.fromarray(synth(20, 30, k)).save(tmp_path / f"images/t/{name}.png")
    (tmp_path / "labels/t/a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "labels/t/b.txt").write_text(POLYGON)
    (tmp_path / "labels/t/d.txt").write_text("0 0.5 0.5 0.2\n")
    return tmp_path


def load(tree, **options):
    source = str(tree / "images/t")
    return load_labels(find_images(source), source, "train: ", **options)


@pytest.fixture
def checks(monkeypatch):
    """How many pairs were looked at."""
    seen = []
    check_pair = label_cache.check_pair
    monkeypatch.setattr(
        label_cache, "check_pair", lambda *args, **options: seen.append(args) or check_pair(*args, **options)
    )
    return seen


def assert_same(one, two):
    assert one.img_files == two.img_files
    assert (one.counts, one.problems) == (two.counts, two.problems)
    np.testing.assert_array_equal(one.shapes, two.shapes)
    for a, b in zip(one.labels, two.labels, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype == np.float32
    for a, b in zip(one.segments, two.segments, strict=True):
        assert len(a) == len(b)
        for p, q in zip(a, b):
            np.testing.assert_array_equal(p, q)


def test_the_cache_lies_beside_the_labels_under_a_name_of_our_own(tree):
    labels = [str(tree / "labels/t/a.txt")]
    assert cache_path(str(tree / "images/t"), labels) == tree / CACHE
    (tree / "list.txt").touch()
    assert cache_path(str(tree / "list.txt"), labels) == tree / "list.yolov7fast.cache"
    assert cache_path(["elsewhere", str(tree / "list.txt")], labels) == tree / "list.yolov7fast.cache"
    assert cache_path("x", [str(tree / "labels/v1.0/a.txt")]) == tree / "labels/v1.0.yolov7fast.cache"
    theirs = tree / "labels" / "t.cache"
    theirs.write_bytes(b"upstream's")  # neither read nor written
    assert load(tree).counts.total == 4 and theirs.read_bytes() == b"upstream's" and (tree / CACHE).is_file()


def test_a_second_load_comes_from_the_cache_and_is_the_same(tree, checks):
    first = load(tree)
    assert first.counts == Counts(found=3, missing=1, empty=0, corrupt=1, total=4)
    assert [len(s) for s in first.segments] == [0, 2, 0]
    assert len(checks) == 4
    assert_same(load(tree), first)
    assert len(checks) == 4


def test_processes_find_what_threads_find(tree, monkeypatch):
    by_threads = load(tree)
    (tree / CACHE).unlink()
    monkeypatch.setattr(label_cache, "MANY", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert_same(load(tree), by_threads)


def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_ends_the_check_with_a_remedy(tree, monkeypatch):
    monkeypatch.setattr(label_cache, "MANY", 1)
    monkeypatch.setattr(label_cache, "check_pair", die)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(UserError, match=r"train: .* process that checks labels died.* fewer --workers"):
        load(tree)
    assert not (tree / CACHE).exists()


@pytest.mark.parametrize("report", ["there", "deleted"])
def test_a_run_from_the_cache_reports_the_problems_too(report, tree, checks, capsys):
    path = tree / "labels/t.problems.txt"
    assert load(tree).report == path
    text = path.read_text()
    if report == "deleted":
        path.unlink()
    capsys.readouterr()
    assert load(tree).report == path
    assert len(checks) == 4
    assert f"3 found, 1 missing, 0 empty, 1 corrupted (cached); problems: {path}" in capsys.readouterr().err
    assert path.read_text() == text


@pytest.mark.parametrize("load_again", [False, True], ids=["checked", "cached"])
def test_every_run_begins_with_what_bad_lines_and_truncated_files_cost(load_again, tree, caplog, capfd):
    (tree / "labels/t/a.txt").write_text("0 0.5 0.5 0.2 0.2\n0 0.5 0.5 0.2 0.2\n")  # doubled
    jpeg = tree / "images/t/e.jpg"
    Image.fromarray(synth(60, 80)).save(jpeg)
    jpeg.write_bytes(jpeg.read_bytes()[:-300])
    if load_again:
        load(tree)
        caplog.clear()
        capfd.readouterr()
    load(tree)
    lines = caplog.text
    assert "train: 2 of 5 images are left out, 2 of them for a bad or duplicate label line" in lines
    assert "as upstream does; --keep-partial-labels keeps the good lines" in lines
    assert "train: truncated JPEG files, grey where pixels are missing: e.jpg" in lines
    read_image(str(jpeg))  # as in every epoch
    assert "JPEG" not in capfd.readouterr().err.replace(str(tree), "")  # the decoder itself stays silent


def test_partial_labels_are_kept_on_request_in_a_cache_of_their_own(tree, checks, caplog):
    (tree / "labels/t/a.txt").write_text("0 0.5 0.5 0.2 0.2\n0 0.5 0.5 0.2\n1 0.5 0.5 0.2 0.2\n0 0.5 0.5 0.2 0.2\n")
    assert len(load(tree).img_files) == 2
    kept = load(tree, keep_partial=True)
    assert [os.path.basename(path) for path in kept.img_files] == ["a.png", "b.png", "c.png"]  # d has no good line
    assert kept.labels[0][:, 0].tolist() == [0, 1]
    assert kept.counts == Counts(found=3, missing=1, empty=0, corrupt=1, total=4)
    assert "train: --keep-partial-labels: 2 bad or duplicate label lines are left out" in caplog.text
    assert "kept  duplicate row" in kept.report.read_text()
    assert len(checks) == 8
    assert_same(load(tree, keep_partial=True), kept)
    assert len(load(tree).img_files) == 2 and len(checks) == 8  # each kind has its own file


def test_added_edited_and_removed_files_are_noticed(tree, checks):
    load(tree)
    Image.fromarray(synth(20, 30)).save(tree / "images/t/e.png")
    assert len(load(tree).img_files) == 4
    (tree / "labels/t/a.txt").write_text("0 0.5 0.5 0.3 0.3\n")
    assert load(tree).labels[0][0, 3] == np.float32(0.3)
    before = os.stat(tree / "labels/t/a.txt")
    (tree / "labels/t/a.txt").write_text("0 0.5 0.5 0.4 0.4\n")  # same size
    os.utime(tree / "labels/t/a.txt", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert load(tree).labels[0][0, 3] == np.float32(0.4)
    (tree / "images/t/b.png").unlink()
    assert [os.path.basename(p) for p in load(tree).img_files] == ["a.png", "c.png", "e.png"]
    (tree / "labels/t/a.txt").unlink()
    assert load(tree).counts.missing == 3


class Bomb:
    """Unpickling this makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("kind", ["torch", "objects", "compressed", "flipped", "empty", "cut short", "folder"])
def test_a_foreign_or_damaged_cache_is_rebuilt_and_never_executed(kind, tree, checks, caplog):
    cache, fuse = tree / CACHE, tree / "fuse"
    if kind == "torch":
        torch.save({"version": 0.1, "x": Bomb(fuse)}, cache)
    elif kind in ("objects", "compressed"):  # with the right digest
        load(tree)
        checks.clear()
        with np.load(cache) as file:
            arrays = dict(file)
        changed = np.array([Bomb(fuse)], dtype=object) if kind == "objects" else np.zeros((1 << 20, 5), np.float32)
        with open(cache, "wb") as file:
            (np.savez if kind == "objects" else np.savez_compressed)(file, **arrays | {"labels": changed})
    elif kind == "empty":
        cache.touch()
    elif kind == "folder":
        cache.mkdir()
    else:
        load(tree)
        checks.clear()
        data = cache.read_bytes()
        at = data.index(np.float32(0.2).tobytes())  # of a label
        cache.write_bytes(data[:-100] if kind == "cut short" else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    caplog.clear()
    assert load(tree).counts.total == 4
    said = f"train: {cache} is damaged or of another version, so it is not used"
    assert [r.message for r in caplog.records if "is not used" in r.message] == [said] * (kind != "folder")
    assert not fuse.exists()
    assert len(checks) == 4
    assert_same(load(tree), load(tree))
    assert len(checks) == 4


def test_a_read_only_folder_sends_cache_and_report_to_the_users_cache(tree, checks, caplog):
    (tree / "labels").chmod(0o555)
    try:
        load(tree)
        load(tree)
    finally:
        (tree / "labels").chmod(0o755)
    assert len(checks) == 4
    assert sorted(p.name for p in (tree / "labels").iterdir()) == ["t"]
    [report] = (tree / "home/.cache/yolov7-fast").glob("t-*.problems.txt")
    assert str(report) in caplog.text
