"""The data set on small images drawn here: grouping, caches, keys, batches."""

import copy
import pickle
import random
from pathlib import Path
from types import SimpleNamespace

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
from yolov7fast.data.loading.create_dataloader import create_dataloader


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


def test_image_weights_switch_rectangles_off(mixed):
    found = LoadImagesAndLabels(mixed, 64, augment=True, hyp=HYP, rect=True, image_weights=True)
    assert (found.rect, found.mosaic, found.batch_shapes) == (False, True, None)


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


def test_an_array_of_another_shape_is_refused(mixed):
    found = LoadImagesAndLabels(mixed, 64, augment=True, hyp=HYP)
    for out in (np.zeros((3, 64, 32), np.uint8), np.zeros((64, 64, 3), np.uint8), np.zeros((3, 64, 64), np.float32)):
        with pytest.raises(ValueError, match="64 x 64"):
            found.sample_into(0, out)


def test_a_sample_does_not_share_memory_with_the_next(mixed):
    found = LoadImagesAndLabels(mixed, 64, augment=True, hyp=HYP)
    first = found[0]
    kept = first[0].clone(), first[1].clone()
    for i in range(1, 8):
        found[i]
    assert torch.equal(first[0], kept[0]) and torch.equal(first[1], kept[1])


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


def test_without_a_seed_the_global_streams_are_drawn_from(mixed):
    found = LoadImagesAndLabels(mixed, 64, augment=True, hyp=HYP)
    seed_all(7)
    img = found[2][0]
    assert not torch.equal(found[2][0], img)
    seed_all(7)
    assert torch.equal(found[(9, 2)][0], img)


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("cache", [True, "ram", "disk"])
def test_cached_samples_are_bit_identical(cache, augment, mixed, tmp_path):
    plain = LoadImagesAndLabels(mixed, 96, augment=augment, hyp=HYP, seed=1)
    cached = LoadImagesAndLabels(
        mixed, 96, augment=augment, hyp=HYP, seed=1, cache_images=cache, cache_dir=str(tmp_path)
    )
    for i in range(13):
        assert torch.equal(cached[(0, i)][0], plain[(0, i)][0])


def test_rendering_leaves_the_ram_cache_as_it_was(mixed):
    found = LoadImagesAndLabels(mixed, 64, augment=True, hyp=HYP, cache_images="ram")
    before = [found.load_image(i).img.copy() for i in range(13)]
    for i in range(26):
        found[i % 13]
    for i, kept in enumerate(before):
        np.testing.assert_array_equal(found.load_image(i).img, kept)


def test_a_data_set_survives_pickling(mixed):
    found = LoadImagesAndLabels(mixed, 64, augment=True, hyp=HYP, seed=1)
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again[(0, 3)][0], found[(0, 3)][0])


def test_an_unknown_kind_of_cache_is_refused(mixed):
    with pytest.raises(UserError, match="ram or disk"):
        LoadImagesAndLabels(mixed, 64, cache_images="tape")


def test_a_disk_cache_needs_a_place_where_the_labels_are_read_only(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    source = make_set(tmp_path)
    (tmp_path / "labels").chmod(0o555)
    try:
        with pytest.raises(UserError, match="--cache-dir"):
            LoadImagesAndLabels(source, 64, cache_images="disk")
        found = LoadImagesAndLabels(source, 64, cache_images="disk", cache_dir=tmp_path / "packs")
    finally:
        (tmp_path / "labels").chmod(0o755)
    assert len(found) == 6


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


def test_an_absent_labels_folder_is_made_for_the_disk_cache(tmp_path):
    source = make_set(tmp_path, labels=lambda k: None)
    (tmp_path / "labels/t").rmdir()
    (tmp_path / "labels").rmdir()
    found = LoadImagesAndLabels(source, 64, cache_images="disk", cache_dir=None)
    assert found._images.path.parent == tmp_path / "labels"


def test_an_absent_folder_is_not_made_in_a_read_only_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    source = make_set(tmp_path / "set", labels=lambda k: None)
    (tmp_path / "set/labels/t").rmdir()
    (tmp_path / "set/labels").rmdir()
    (tmp_path / "set").chmod(0o555)
    try:
        with pytest.raises(UserError, match=r"set cannot be written.*--cache-dir"):
            LoadImagesAndLabels(source, 64, cache_images="disk")
    finally:
        (tmp_path / "set").chmod(0o755)


def test_paste_in_without_polygons_loads_nothing(tmp_path, monkeypatch):
    found = LoadImagesAndLabels(make_set(tmp_path), 64, augment=True, hyp=HYP | {"paste_in": 1.0, "mixup": 0.0})
    loaded = []
    load = found.load_image
    monkeypatch.setattr(found, "load_image", lambda i, *seen: loaded.append(i) or load(i, *seen))
    seed_all(0)
    found[0]
    assert 1 <= len(loaded) <= 4  # the tiles of the mosaic that show


@pytest.mark.parametrize("hyp", [{}, {"degrees": 30.0, "shear": 5.0}, {"perspective": 0.001}], ids=str)
def test_images_out_of_sight_are_not_loaded_and_samples_are_the_same(hyp, tmp_path, monkeypatch):
    found = LoadImagesAndLabels(make_set(tmp_path), 64, augment=True, hyp=HYP | hyp)
    loaded, load = [], found.load_image
    monkeypatch.setattr(found, "load_image", lambda i, *seen: loaded.append(i) or load(i, *seen))

    def samples() -> list:
        seed_all(3)
        loaded.clear()
        return [found[i % len(found)][:2] for i in range(40)]

    seen = samples()
    few = len(loaded)
    monkeypatch.setattr(datasets, "shown", lambda origins, shapes, warp: shapes)
    for (img, labels), (all_img, all_labels) in zip(seen, samples(), strict=True):
        assert torch.equal(img, all_img) and torch.equal(labels, all_labels)
    assert few < len(loaded) * (1 if hyp.get("perspective") else 0.9)  # a projected canvas is taken to show whole


def test_parts_of_photographs_give_the_samples_of_whole_ones(bccd, tmp_path, monkeypatch, golden):
    listed = tmp_path / "train.txt"
    listed.write_text("\n".join(map(str, sorted((bccd / "images/train").glob("*.jpg"))[:20])))
    found = LoadImagesAndLabels(str(listed), 320, augment=True, hyp=golden("data.json.gz")["hyp"]["p5"])
    load, parts = found.load_image, []
    for part in (True, False):
        monkeypatch.setattr(found, "load_image", lambda i, seen=None, part=part: load(i, seen if part else None))
        seed_all(5)
        parts.append([found[i][:2] for i in range(20)])
    for (img, labels), (whole, whole_labels) in zip(*parts, strict=True):
        assert torch.equal(img, whole) and torch.equal(labels, whole_labels)


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


def test_hyper_parameter_files_without_the_pasting_keys_still_take_the_gate_draw(tmp_path):
    found = LoadImagesAndLabels(make_set(tmp_path), 64, augment=True, hyp=HYP | {"paste_in": 0.0, "copy_paste": 0.0})
    seed_all(1)
    img = found[0][0]
    state = random.getstate()
    found.hyp = {k: v for k, v in HYP.items() if k != "paste_in"}
    seed_all(1)
    assert torch.equal(found[0][0], img)
    assert random.getstate() == state


# --- batches ----------------------------------------------------------------------------------------------------------


def sample(value: int, rows: int):
    labels = torch.zeros(rows, 6)
    labels[:, 2:] = torch.tensor([0.5, 0.5, 0.2, 0.4])
    return torch.full((3, 4, 4), value, dtype=torch.uint8), labels, f"{value}.jpg", None


def test_collated_labels_carry_the_position_in_the_batch():
    imgs, targets, paths, shapes = LoadImagesAndLabels.collate_fn([sample(1, 2), sample(2, 0), sample(3, 1)])
    assert imgs.shape == (3, 3, 4, 4)
    assert targets[:, 0].tolist() == [0, 0, 2]
    assert (paths, shapes) == (("1.jpg", "2.jpg", "3.jpg"), (None, None, None))


def test_quad_tiles_lie_where_their_labels_say(monkeypatch):
    monkeypatch.setattr(random, "random", lambda: 0.9)
    batch = [sample(v, 1) for v in (10, 20, 30, 40, 50)]
    imgs, targets, paths, _ = LoadImagesAndLabels.collate_fn4(batch)
    assert imgs.shape == (1, 3, 8, 8)
    assert [imgs[0, 0, y, x].item() for y, x in ((0, 0), (7, 0), (0, 7), (7, 7))] == [10, 20, 30, 40]
    assert targets[:, 2:4].tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]
    torch.testing.assert_close(targets[:, 4:], torch.tensor([[0.1, 0.2]] * 4))
    assert paths == ("10.jpg",)


def test_a_quad_batch_of_fewer_than_four_enlarges_its_first_sample():
    imgs, targets, paths, _ = LoadImagesAndLabels.collate_fn4([sample(7, 2), sample(8, 1)])
    assert imgs.shape == (1, 3, 8, 8)
    assert (imgs == 7).all()
    assert (len(targets), paths) == (2, ("7.jpg",))


def load_all(source, **options):
    hyp = copy.copy(HYP)
    loader, found = create_dataloader(
        source, 64, 4, 32, SimpleNamespace(single_cls=False), hyp=hyp, augment=True, **options
    )
    try:
        return len(loader), [(imgs.clone(), targets.clone(), paths) for imgs, targets, paths, _ in loader], found
    finally:
        loader.close()


def test_create_dataloader_gives_batches_in_order_and_a_short_last_one(tmp_path):
    length, batches, found = load_all(make_set(tmp_path, 10), workers=0)
    assert (length, len(found)) == (3, 10)
    assert [tuple(imgs.shape) for imgs, _, _ in batches] == [(4, 3, 64, 64), (4, 3, 64, 64), (2, 3, 64, 64)]
    assert names(sum((paths for _, _, paths in batches), ())) == [f"{k}.png" for k in range(10)]


def test_seeded_batches_do_not_depend_on_how_they_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    source = make_set(tmp_path, 10)
    _, expected, _ = load_all(source, workers=0, seed=5)
    for options in ({"workers": 2}, {"workers": 2, "worker_tensor": True, "micro_batch": 3}):
        _, batches, _ = load_all(source, seed=5, cache="ram", **options)
        for (imgs, targets, paths), (imgs2, targets2, paths2) in zip(batches, expected, strict=True):
            assert torch.equal(imgs, imgs2) and torch.equal(targets, targets2) and paths == paths2


def test_the_batch_size_is_limited_to_the_data_set(tmp_path):
    length, batches, _ = load_all(make_set(tmp_path, 3), workers=0)
    assert (length, len(batches[0][0])) == (1, 3)
