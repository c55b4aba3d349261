"""The data set on small images drawn here: grouping, caches, keys, batches."""

import random
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.data_golden import assert_image, assert_labels, assert_streams, seed_all, synth
from tests.data.small_set import HYP, POLYGON, make_set
from yolov7fast.core.errors import UserError
from yolov7fast.data import dataset as datasets
from yolov7fast.data.dataset import LoadImagesAndLabels


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, data):
    """The recorded set of thirteen aspect ratios."""
    root = tmp_path_factory.mktemp("mixed")
    for part in ("images/a", "labels/a"):
        (root / part).mkdir(parents=True)
    for k, (h, w) in enumerate(data["mixed_aspect"]["hw"]):
        cv2.imwrite(str(root / f"images/a/{k:02d}.png"), synth(h, w, k))
        rows = [(j % 3, 0.2 + 0.05 * j, 0.7 - 0.04 * j, 0.1 + 0.02 * k, 0.3 - 0.01 * k) for j in range(k % 4)]
        lines = [f"{c} " + " ".join(f"{v:.6f}" for v in box) for c, *box in rows]
        (root / f"labels/a/{k:02d}.txt").write_text("\n".join(lines))
    return str(root / "images/a")


def names(paths) -> list[str]:
    return [Path(p).name for p in paths]


def as_lists(shapes):
    (h0, w0), ((rh, rw), (dw, dh)) = shapes
    return [[h0, w0], [[rh, rw], [float(dw), float(dh)]]]


# --- rectangular batches ----------------------------------------------------------------------------------------------


def test_rectangular_batches_of_mixed_images_are_as_recorded(data, arrays, mixed):
    for case in data["mixed_aspect"]["rect"]:
        found = LoadImagesAndLabels(
            mixed, case["size"], case["batch"], augment=case["augment"], hyp=data["hyp"]["tiny"], rect=True,
            stride=case["stride"], pad=case["pad"],
        )  # fmt: skip
        assert names(found.img_files) == case["order"]
        assert found.batch.tolist() == case["batch_of"]
        assert found.batch_shapes.tolist() == case["batch_shapes"]
        seed_all(case["seed_once"])
        for i, sample in enumerate(case["samples"]):
            img, labels, path, shapes = found[i]
            assert Path(path).name == sample["path"]
            assert as_lists(shapes) == sample["shapes"]
            assert tuple(img.shape[1:]) == found.shape_of(i)
            assert_labels(labels, sample["labels"], arrays)
            assert_image(img, sample["image"], warped=case["augment"])
        assert_streams(case["after"])


def test_square_evaluation_of_mixed_images_is_as_recorded(data, arrays, mixed):
    found = LoadImagesAndLabels(mixed, 320)
    for i, sample in enumerate(data["mixed_aspect"]["square_eval_320"]):
        img, labels, path, shapes = found[i]
        assert (Path(path).name, as_lists(shapes)) == (sample["path"], sample["shapes"])
        assert_labels(labels, sample["labels"], arrays)
        assert_image(img, sample["image"], warped=False)


def test_polygons_are_ordered_with_their_images(tmp_path):
    source = make_set(tmp_path, 4, lambda k: POLYGON.replace("1 ", f"{k} ", 1) * 1)
    Image.fromarray(synth(64, 30, 0)).save(tmp_path / "images/t/0.png")  # tall: last in rectangular order
    found = LoadImagesAndLabels(source, 64, 2, augment=True, hyp=HYP | {"paste_in": 1.0}, rect=True)
    assert names(found.img_files) == ["1.png", "2.png", "3.png", "0.png"]
    assert [rows[0, 0] for rows in found.labels] == [1, 2, 3, 0]
    assert [len(s) for s in found.segments] == [1, 1, 1, 1]
    for i in range(4):
        assert found[i][0].shape[1:] == found.shape_of(i)


# --- samples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"rect": True}, {"augment": False}])
def test_sample_into_writes_what_indexing_gives(options, mixed):
    options = {"augment": True, "hyp": HYP, "seed": 3} | options
    found = LoadImagesAndLabels(mixed, 64, 4, **options)
    for key in [(0, 1), (2, 5), (7, 12)]:
        img, labels, path, shapes = found[key]
        out = np.zeros((3, *found.shape_of(key)), np.uint8)
        again = found.sample_into(key, out)
        assert (img.dtype, img.is_contiguous(), labels.dtype) == (torch.uint8, True, torch.float32)
        np.testing.assert_array_equal(out, img)
        assert torch.equal(again[0], labels)
        assert (again[1], again[2]) == (path, shapes)


def test_keyed_samples_depend_on_seed_epoch_and_index_alone(mixed):
    found = LoadImagesAndLabels(mixed, 64, augment=True, hyp=HYP, seed=1)
    first = [found[(0, i)] for i in range(4)]
    random.seed(5)
    np.random.seed(5)
    other = LoadImagesAndLabels(mixed, 64, augment=True, hyp=HYP, seed=1)
    for i in (3, 0, 2, 1):
        img, labels, *_ = other[(0, i)]
        assert torch.equal(img, first[i][0]) and torch.equal(labels, first[i][1])
    assert random.random() == random.Random(5).random()  # the global streams were left alone
    assert not torch.equal(found[(1, 0)][0], first[0][0])
    assert not torch.equal(LoadImagesAndLabels(mixed, 64, augment=True, hyp=HYP, seed=2)[(0, 0)][0], first[0][0])


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("cache", ["ram", "disk"])
def test_cached_samples_are_bit_identical(cache, augment, mixed, tmp_path):
    plain = LoadImagesAndLabels(mixed, 96, augment=augment, hyp=HYP, seed=1)
    cached = LoadImagesAndLabels(
        mixed, 96, augment=augment, hyp=HYP, seed=1, cache_images=cache, cache_dir=str(tmp_path)
    )
    for i in range(13):
        assert torch.equal(cached[(0, i)][0], plain[(0, i)][0])


def test_a_disk_cache_in_a_read_only_folder_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    source = make_set(tmp_path)
    built = LoadImagesAndLabels(source, 64, cache_images="disk")
    (tmp_path / "labels").chmod(0o555)
    try:
        found = LoadImagesAndLabels(source, 64, cache_images="disk")
        with pytest.raises(UserError, match="--cache-dir"):
            LoadImagesAndLabels(source, 32, cache_images="disk")  # another size would have to be built
    finally:
        (tmp_path / "labels").chmod(0o755)
    assert found._images.path == built._images.path
    assert torch.equal(found[3][0], built[3][0])


@pytest.mark.parametrize("hyp", [{}, {"degrees": 30.0, "shear": 5.0}, {"perspective": 0.001}], ids=str)
def test_images_out_of_sight_are_not_loaded_and_samples_are_the_same(hyp, tmp_path, monkeypatch):
    found = LoadImagesAndLabels(make_set(tmp_path), 64, augment=True, hyp=HYP | hyp)
    loaded, load = [], found.load_image
    monkeypatch.setattr(found, "load_image", lambda i: loaded.append(i) or load(i))

    def samples() -> list:
        seed_all(3)
        loaded.clear()
        return [found[i % len(found)][:2] for i in range(40)]

    seen = samples()
    few = len(loaded)
    monkeypatch.setattr(datasets, "visible_images", lambda origins, shapes, warp: [True] * len(shapes))
    for (img, labels), (all_img, all_labels) in zip(seen, samples(), strict=True):
        assert torch.equal(img, all_img) and torch.equal(labels, all_labels)
    assert few < len(loaded) * (1 if hyp.get("perspective") else 0.9)  # a projected canvas is taken to show whole


def test_an_image_that_changed_its_size_since_labels_were_checked_is_laid_out_as_it_is(tmp_path):
    source = make_set(tmp_path)
    found = LoadImagesAndLabels(source, 64, augment=True, hyp=HYP | {"mosaic": 1.0})
    for path in found.img_files:
        img = cv2.imread(path)
        cv2.imwrite(path, cv2.resize(img, (img.shape[1] * 2, img.shape[0])))
    anew = LoadImagesAndLabels(source, 64, augment=True, hyp=HYP | {"mosaic": 1.0}, cache_dir=tmp_path / "anew")
    assert not np.array_equal(found.shapes, anew.shapes)
    for i in range(12):
        seed_all(i)
        img, labels, *_ = found[i % 6]
        seed_all(i)
        again, labels_again, *_ = anew[i % 6]
        assert torch.equal(img, again) and torch.equal(labels, labels_again)


# --- batches ----------------------------------------------------------------------------------------------------------


def sample(value: int, rows: int):
    labels = torch.zeros(rows, 6)
    labels[:, 2:] = torch.tensor([0.5, 0.5, 0.2, 0.4])
    return torch.full((3, 4, 4), value, dtype=torch.uint8), labels, f"{value}.jpg", None


def test_a_quad_batch_of_fewer_than_four_enlarges_its_first_sample():
    imgs, targets, paths, _ = LoadImagesAndLabels.collate_fn4([sample(7, 2), sample(8, 1)])
    assert imgs.shape == (1, 3, 8, 8)
    assert (imgs == 7).all()
    assert (len(targets), paths) == (2, ("7.jpg",))
