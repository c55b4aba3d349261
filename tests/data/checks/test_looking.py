"""Images are looked at while labels are read, and what was begun ends with the examination."""

import cv2
import numpy as np
import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.data import image_facts
from yolov7fast.data.checks import examine as visit
from yolov7fast.data.image_facts import Looking, look_at


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("YOLOV7FAST_CACHE", str(tmp_path / "cache"))
    for part in ("images/train", "labels/train"):
        (tmp_path / part).mkdir(parents=True)
    for k in range(5):
        noise = np.random.default_rng(k).integers(0, 256, (48, 64, 3), np.uint8)
        cv2.imwrite(str(tmp_path / f"images/train/{k}.png"), noise)
        (tmp_path / f"labels/train/{k}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    path = tmp_path / "data.yaml"
    path.write_text(f"path: {tmp_path}\ntrain: images/train\nnames: [thing]\n")
    return path


@pytest.fixture
def steps(monkeypatch):
    """What happens in an examination, in order."""
    made = []

    class Watched(Looking):
        def __init__(self, paths, source, stamps):
            made.append(f"look at {len(paths)}")
            super().__init__(paths, source, stamps)

        def finish(self, desc=""):
            made.append("wait")
            return super().finish(desc)

        def __exit__(self, *error):
            super().__exit__(*error)
            made.append("end")

    real = visit.collect
    monkeypatch.setattr(visit, "Looking", Watched)
    monkeypatch.setattr(visit, "collect", lambda annotated: made.append("labels") or real(annotated))
    return made


def test_images_are_looked_at_while_labels_are_read(data, steps, monkeypatch):
    monkeypatch.setattr(visit, "look_at", None)  # no second look
    assert len(visit.examine(data, visit.Options()).samples) == 5
    assert steps == ["look at 5", "labels", "wait", "end"]


def test_an_error_in_the_labels_ends_the_look(data, steps, monkeypatch):
    def fail(annotated):
        raise UserError("labels")

    monkeypatch.setattr(visit, "collect", fail)
    with pytest.raises(UserError, match="labels"):
        visit.examine(data, visit.Options())
    assert steps == ["look at 5", "end"]


def test_both_halves_together_are_a_look(data, monkeypatch):
    paths = sorted(map(str, (data.parent / "images/train").glob("*.png")))
    with Looking(paths, "a") as looking:
        facts = looking.finish()
    assert (facts == look_at(paths, "b")).all() and (facts["width"] == 64).all()
    monkeypatch.setattr(image_facts, "read_facts", None)  # all is in the cache now
    assert (look_at(paths, "a") == facts).all()
