"""The data set on small images drawn here: grouping, caches, keys, batches."""

import random
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.data.data_golden import assert_image, assert_labels, assert_streams, seed_all, synth
from tests.data.small_set import HYP, POLYGON, make_set
from yolov7fast.core.errors import UserError
from yolov7fast.data import dataset as datasets
from yolov7fast.data.augment.mosaic import MosaicPlan
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.labels import Subset


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


# --- labels -----------------------------------------------------------------------------------------------------------


def test_single_class_changes_labels_in_memory_only(tmp_path):
    source = make_set(tmp_path)
    assert {rows[0, 0] for rows in LoadImagesAndLabels(source, 64, single_cls=True).labels} == {0}
    assert {rows[0, 0] for rows in LoadImagesAndLabels(source, 64).labels} == {0, 1, 2}


def test_boxes_among_polygons_get_their_rectangle(tmp_path):
    source = make_set(tmp_path, 4, lambda k: POLYGON if k == 0 else "2 0.5 0.5 0.25 0.5\n")
    found = LoadImagesAndLabels(source, 64, augment=True, hyp=HYP | {"mixup": 0.0, "paste_in": 0.0})
    assert found.segments[1][0].tolist() == [[0.375, 0.25], [0.625, 0.25], [0.625, 0.75], [0.375, 0.75]]
    _, labels, segments = found._draw_mosaic(MosaicPlan([1, 0, 2, 3], (60, 70)))
    assert len(labels) == len(segments) == 4
    for row, polygon in zip(labels, segments):
        np.testing.assert_allclose([*polygon.min(0), *polygon.max(0)], row[1:], atol=1e-4)


def test_training_without_any_label_is_an_error_that_names_the_paths_tried(tmp_path):
    source = make_set(tmp_path, 5, lambda k: None)
    with pytest.raises(UserError, match=r"no labels .*labels/t/0\.txt.* and 2 more; put a \.txt file there for each"):
        LoadImagesAndLabels(source, 64, augment=True, hyp=HYP, prefix="train: ")
    assert len(LoadImagesAndLabels(source, 64)) == 5  # evaluation may do without


def test_a_bare_images_folder_is_an_error_that_says_where_labels_were_sought(tmp_path, monkeypatch):
    make_set(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"write \./images"):
        LoadImagesAndLabels("images/t", 64, augment=True, hyp=HYP)


def test_a_set_of_which_nothing_is_usable_is_an_error(tmp_path):
    source = make_set(tmp_path, 3, lambda k: "0 1 2\n")
    with pytest.raises(UserError, match=r"none of the 3 images .* 3 x wrong columns.*labels/t/0\.txt:1.*problems\.txt"):
        LoadImagesAndLabels(source, 64)


def test_a_list_of_images_that_do_not_exist_names_the_first_and_the_report(tmp_path):
    (tmp_path / "list.txt").write_text("./images/a.jpg\n./images/b.jpg\n")
    for _ in range(2):  # looked at, then from the cache
        with pytest.raises(UserError) as caught:
            LoadImagesAndLabels(str(tmp_path / "list.txt"), 64, prefix="train: ")
        assert "2 x missing image; the first: missing image, " + str(tmp_path / "images/a.jpg") in str(caught.value)
        assert str(tmp_path / "list.problems.txt") in str(caught.value)
    assert len((tmp_path / "list.problems.txt").read_text().splitlines()) == 4


def test_a_subset_keeps_order_and_labels(tmp_path):
    source = make_set(tmp_path, 10)
    whole = LoadImagesAndLabels(source, 64)
    first = LoadImagesAndLabels(source, 64, subset=Subset(3)).img_files
    assert [Path(path).name for path in first] == ["0.png", "1.png", "2.png"]
    part = LoadImagesAndLabels(source, 64, subset=Subset(4, seed=3))
    picked = [int(Path(p).stem) for p in part.img_files]
    assert picked == sorted(picked) == Subset(4, seed=3).pick(10)
    for i, k in enumerate(picked):
        np.testing.assert_array_equal(part.labels[i], whole.labels[k])
        assert part.label_files[i] == whole.label_files[k]
