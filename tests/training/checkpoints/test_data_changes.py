"""--resume on data that is no longer that of the checkpoint: named and refused, or accepted by a flag."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.training.commands import assert_same_weights, here, small_run
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, save_checkpoint
from yolov7fast.core.errors import UserError, one_line
from yolov7fast.training.checkpoints.resume import changes, check_unchanged, fingerprint

# --- fingerprints -----------------------------------------------------------------------------------------------------


class Images:
    def __init__(self, labels: dict[str, list], folder: str = "/data/images"):
        self.img_files = [f"{folder}/{name}" for name in labels]
        self.labels = [np.array(rows, np.float32).reshape(-1, 5) for rows in labels.values()]
        self.segments = [[] for _ in labels]


ROW, OTHER = [0, 0.5, 0.5, 0.2, 0.2], [1, 0.5, 0.5, 0.2, 0.2]


def mark(labels: dict[str, list], names=("a", "b"), folder: str = "/data/images"):
    return fingerprint({"train": Images(labels, folder)}, names)


BEFORE = {"a.jpg": [ROW], "b.jpg": [ROW], "sub/c.jpg": []}


@pytest.mark.parametrize(
    "now, names, difference",
    [
        (BEFORE, ("a", "b"), ""),
        (dict(reversed(BEFORE.items())), ("a", "b"), ""),  # another order
        (BEFORE | {"b.jpg": [OTHER]}, ("a", "b"), "train: 1 image with other labels (b.jpg)"),
        (
            {f"{name}.jpg": [] for name in "pqr"} | {"a.jpg": [OTHER]},
            ("a", "b"),
            "train: 1 image with other labels (a.jpg); train: 3 images new (p.jpg, q.jpg, ...); "
            "train: 2 images gone (b.jpg, sub/c.jpg)",
        ),
        (BEFORE, ("b", "a"), "classes were ['a', 'b'] and are ['b', 'a']"),
    ],
)
def test_a_difference_is_named_with_counts_and_first_files(now, names, difference):
    assert changes(mark(BEFORE), mark(now, names)) == difference


def test_a_data_set_that_was_moved_is_the_same():
    assert changes(mark(BEFORE), mark(BEFORE, folder="/elsewhere/copied/images")) == ""


def test_outlines_are_labels_too():
    plain, outlined = Images(BEFORE), Images(BEFORE)
    outlined.segments[1] = [np.zeros((3, 2), np.float32)]
    marks = [fingerprint({"val": images}, ["a"]) for images in (plain, outlined)]
    assert changes(*marks) == "val: 1 image with other labels (b.jpg)"


@pytest.mark.parametrize("stored", [[], {"classes": 3}, {"classes": "a"}, mark(BEFORE) | {"splits": {"train": {}}}])
def test_a_damaged_fingerprint_is_an_error_of_one_line(stored):
    with pytest.raises(UserError, match=r"^last\.pt: its fingerprint of the data set is damaged"):
        check_unchanged(stored, mark(BEFORE), "last.pt")


def test_a_checkpoint_without_a_fingerprint_resumes_as_before():
    assert check_unchanged(None, mark(BEFORE), "last.pt") == ""


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory, shapes_small) -> Path:
    """A run stopped inside its second epoch, with a data set of its own beside it."""
    folder = tmp_path_factory.mktemp("begun")
    data = copy_data(shapes_small, folder)
    arguments = small_run(folder, data, "--epochs", "2", "--seed", "5", "--notest", "--save-every", "0.00001")
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(Stopped):
            here(*arguments)
    return folder


class Stopped(BaseException):
    """As sudden as a signal that cannot be caught."""


def stop_after(patch, steps: int) -> None:
    from yolov7fast.training.trainer import Trainer

    def saving(self, names):
        save(self, names)
        if self.progress.global_step == steps:
            raise Stopped

    save = Trainer.save
    patch.setattr(Trainer, "save", saving)


def copy_data(source: Path, folder: Path) -> Path:
    data = Path(shutil.copytree(source, folder / "shapes"))
    content = yaml.safe_load((data / "shapes.yaml").read_text())
    splits = {split: str(data / "images" / split) for split in ("train", "val")}
    (data / "shapes.yaml").write_text(yaml.safe_dump(content | splits))
    return data


@pytest.fixture
def changed(begun, tmp_path) -> Path:
    """A copy of that run whose data set has one other label file, one image less, and classes of other names."""
    folder = Path(shutil.copytree(begun, tmp_path / "run"))
    repoint(begun, folder)
    labels = sorted((folder / "shapes/labels/train").glob("*.txt"))
    labels[0].write_text("0 0.5 0.5 0.25 0.25\n")
    next((folder / "shapes/images/train").glob(f"{labels[1].stem}.*")).unlink()
    return folder


def repoint(begun: Path, folder: Path) -> None:
    for file in (folder / "shapes/shapes.yaml", folder / "runs/run/opt.yaml"):
        file.write_text(file.read_text().replace(str(begun), str(folder)))


def test_resume_on_changed_data_stops_and_names_the_change(changed):
    last = changed / "runs/run/weights/last.pt"
    content = last.read_bytes()
    with pytest.raises(UserError) as caught:
        here("--resume", str(changed / "runs/run"))
    text = one_line(caught.value)
    assert "the data set has changed" in text and "--allow-changed-data" in text
    first = sorted((changed / "shapes/labels/train").glob("*.txt"))
    assert f"train: 1 image with other labels ({first[0].stem}" in text
    assert f"train: 1 image gone ({first[1].stem}" in text
    assert last.read_bytes() == content


def test_changed_data_can_be_accepted_once(changed, caplog):
    """The epoch begins again, on the data as it is; the next checkpoint knows that data."""
    folder = str(changed / "runs/run")
    assert here("--resume", folder, "--allow-changed-data") == 0
    assert "--allow-changed-data accepts it" in caplog.text
    assert "allow_changed_data" not in (changed / "runs/run/opt.yaml").read_text()
    (changed / "runs/run/weights/last.pt").unlink()
    shutil.copy(changed / "runs/run/weights/epoch_001.pt", changed / "runs/run/weights/last.pt")
    assert here("--resume", folder, "--epochs", "3") == 0


def test_a_moved_run_resumes_on_its_moved_data_and_so_does_one_without_a_fingerprint(begun, tmp_path):
    folders = [tmp_path / name for name in ("moved", "old")]
    for folder in folders:
        shutil.copytree(begun, folder)
        repoint(begun, folder)
    last = folders[1] / "runs/run/weights/last.pt"
    checkpoint = load_checkpoint(last)
    assert checkpoint["resume"].pop("data")["splits"].keys() == {"train", "val"}
    save_checkpoint(checkpoint, last)
    for folder in folders:
        assert here("--resume", str(folder / "runs/run")) == 0
    assert_same_weights(*(folder / "runs/run/weights/epoch_001.pt" for folder in folders))
