"""`--fast-augment`: the default path's draws and labels exactly, its pixels up to interpolation."""

import random

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.data_golden import LoggedRandom, seed_all
from yolov7fast.augment import fast as fast_augment
from yolov7fast.augment.randomness import KeyedRandom
from yolov7fast.augment.scene import render, render_scene
from yolov7fast.augment.transforms import apply_colour, draw_colour
from yolov7fast.data.dataset import LoadImagesAndLabels

HYP = {
    "mosaic": 1.0, "mixup": 0.0, "copy_paste": 0.0, "paste_in": 0.0,
    "degrees": 0.0, "translate": 0.2, "scale": 0.9, "shear": 0.0, "perspective": 0.0,
    "hsv_h": 0.015, "hsv_s": 0.7, "hsv_v": 0.4, "flipud": 0.3, "fliplr": 0.5,
}  # fmt: skip


def smooth(h: int, w: int, k: int) -> np.ndarray:
    """An image with the gentle gradients of a photograph."""
    noise = np.random.default_rng(k).integers(60, 200, (h // 16 + 2, w // 16 + 2, 3), dtype=np.uint8)
    return cv2.resize(noise, (w, h), interpolation=cv2.INTER_CUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("set")
    for part in ("images", "labels"):
        (root / part).mkdir()
    sides = [(96, 128), (128, 96), (128, 128), (60, 128), (128, 50), (100, 75)]
    for k, (h, w) in enumerate(sides):
        Image.fromarray(smooth(h, w, k)).save(root / f"images/{k}.png")
        corners = "0.3 0.2 0.7 0.2 0.7 0.8 0.3 0.8"
        (root / f"labels/{k}.txt").write_text(f"{k % 3} 0.5 0.5 0.4 0.6\n1 0.2 0.3 0.2 0.2\n")
        (root / f"labels/{k}.polygons").write_text(f"{k % 3} {corners}\n1 0.1 0.2 0.3 0.2 0.3 0.4 0.1 0.4\n")
    return root


@pytest.fixture(scope="module")
def dataset(folder):
    return LoadImagesAndLabels(str(folder / "images"), 128, 4, augment=True, hyp=dict(HYP))


@pytest.fixture(scope="module")
def polygon_set(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("polygons")
    (root / "labels").mkdir()
    (root / "images").symlink_to(folder / "images")
    for k in range(6):
        (root / f"labels/{k}.txt").write_text((folder / f"labels/{k}.polygons").read_text())
    return LoadImagesAndLabels(str(root / "images"), 128, 4, augment=True, hyp=dict(HYP))


def both(dataset, index, seed, monkeypatch, **hyp):
    """One sample by each renderer: [(img, labels, draws), ...]."""
    made = []
    for fast in (False, True):
        log = LoggedRandom()
        with monkeypatch.context() as patch:
            patch.setattr(dataset, "hyp", HYP | hyp)
            patch.setattr(dataset, "fast_augment", fast)
            patch.setattr(dataset, "_random_source", lambda key, log=log: log)
            seed_all(seed)
            img, labels, _, _ = dataset[index]
        made.append((img.numpy().astype(int), labels, log.log))
    return made


VARIANTS = {
    "mosaic": {},
    "plain": {"mosaic": 0.0},
    "blended": {"mixup": 1.0},
    "rotated": {"degrees": 20.0, "shear": 5.0},
    "perspective": {"perspective": 0.001},
    "paste-in": {"paste_in": 1.0},
    "copy-paste": {"copy_paste": 0.5},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("polygons", [False, True])
def test_draws_and_labels_are_those_of_the_default_path_exactly(variant, polygons, dataset, polygon_set, monkeypatch):
    for seed in range(12):
        (_, labels, draws), (_, fast_labels, fast_draws) = both(
            polygon_set if polygons else dataset, seed % 6, seed, monkeypatch, **VARIANTS[variant]
        )
        assert torch.equal(labels, fast_labels)
        assert draws == fast_draws


@pytest.mark.parametrize("variant, limit", [("mosaic", 1.5), ("plain", 1.0), ("blended", 1.5), ("rotated", 0.1)])
def test_images_differ_by_interpolation_only(variant, limit, dataset, monkeypatch):
    """Limits for samples of 128 pixels, where the edges of tiles take a larger part than in real ones."""
    worst = []
    for seed in range(24):
        (img, _, _), (fast, _, _) = both(dataset, seed % 6, seed, monkeypatch, **VARIANTS[variant])
        worst.append(np.abs(img - fast).mean())
    assert max(worst) < limit
    assert np.mean(worst) < limit / 2


def test_away_from_edges_geometry_is_equal_to_a_level(dataset):
    checked = 0
    for seed in range(24):
        seed_all(seed)
        draft = dataset.draft(seed % 6, LoggedRandom())
        scene = draft.scenes[0]
        fast = fast_augment._render_scene(scene, "fast")[..., :3].astype(int).copy()
        slow = render_scene(scene)[..., :3].astype(int)
        edges = edge_mask(scene)
        assert np.abs(fast - slow)[~edges].max(initial=0) <= 1
        checked += (~edges).sum()
    assert checked > 24 * 128 * 128 * 0.5


def edge_mask(scene) -> np.ndarray:
    """Where a sample pixel lies within two source pixels of an edge of any image."""
    h, w = scene.warp.size
    (zx, _, tx), (_, zy, ty) = scene.warp.matrix[:2]
    x, y = (np.arange(w) - tx) / zx, (np.arange(h) - ty) / zy
    mask = np.zeros((h, w), bool)
    for img, (ox, oy) in zip(scene.images, scene.origins):
        ih, iw = img.shape[:2]
        near_x = (np.abs(x - ox) < 2) | (np.abs(x - ox - iw) < 2)
        near_y = (np.abs(y - oy) < 2) | (np.abs(y - oy - ih) < 2)
        mask |= near_x[None, :] | near_y[:, None]
    near_x = (np.abs(x) < 2) | (np.abs(x - scene.warp.source[1]) < 2)
    near_y = (np.abs(y) < 2) | (np.abs(y - scene.warp.source[0]) < 2)
    return mask | near_x[None, :] | near_y[:, None]


def test_colours_after_the_warp_are_within_a_level_of_the_tables():
    """On noise, which holds every colour there is, rarely two: a level of value or saturation may count twice."""
    noise = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    for img, limit in ((smooth(96, 160, 3), 1), (noise, 2)):
        for seed in range(20):
            colour = draw_colour(KeyedRandom(seed), 0.015, 0.7, 0.4)
            fast = fast_augment._apply_colour(img, colour, np.empty_like(img)).astype(int)
            difference = np.abs(fast - apply_colour(img, colour))
            assert difference.max() <= limit
            assert difference.mean() < 0.01


@pytest.fixture(scope="module")
def plain_colours(tmp_path_factory):
    """Images of one colour each: every pixel of a sample is of one of them, or padding."""
    root = tmp_path_factory.mktemp("plain")
    for part in ("images", "labels"):
        (root / part).mkdir()
    colours = [(10, 250, 30), (200, 40, 90), (0, 0, 0), (255, 255, 255), (60, 120, 240), (180, 180, 20)]
    sides = [(96, 128), (128, 96), (128, 128), (60, 128), (128, 50), (100, 75)]
    for k, (colour, (h, w)) in enumerate(zip(colours, sides)):
        Image.fromarray(np.full((h, w, 3), colour, np.uint8)).save(root / f"images/{k}.png")
        (root / f"labels/{k}.txt").write_text(f"{k % 3} 0.5 0.5 0.4 0.6\n")
    found = LoadImagesAndLabels(str(root / "images"), 128, 4, augment=True, hyp=dict(HYP))
    return found, {tuple(colour[::-1]) for colour in colours} | {(114, 114, 114)}


@pytest.mark.parametrize("hyp", [{}, {"mosaic": 0.0}, {"scale": 0.95, "translate": 0.5}], ids=str)
def test_seams_of_tiles_mix_with_nothing(hyp, plain_colours, monkeypatch):
    found, allowed = plain_colours
    monkeypatch.setattr(found, "hyp", HYP | hyp)
    seen = set()
    for seed in range(60):
        scene = found.draft(seed % 6, KeyedRandom(seed)).scenes[0]
        fast = fast_augment._render_scene(scene, "fast")[..., :3]
        seen |= {tuple(colour) for colour in np.unique(fast.reshape(-1, 3), axis=0).tolist()}
    assert seen == allowed


def test_grey_padding_gets_the_changed_grey(dataset, monkeypatch):
    (img, _, _), (fast, _, _) = both(dataset, 3, 5, monkeypatch, mosaic=0.0, scale=0.0, hsv_v=0.9)
    corner = img[:, 0, 0]
    assert (corner == fast[:, 0, 0]).all()
    assert not (corner == 114).any()


def test_colours_are_changed_on_the_smaller_side_of_the_warp(dataset, monkeypatch):
    """Never on more pixels than the sample has, and on fewer when the warp enlarges."""
    real, changed = fast_augment._apply_colour, []

    def watched(img, colour, out):
        changed[-1] += img.shape[0] * img.shape[1]
        return real(img, colour, out)

    monkeypatch.setattr(fast_augment, "_apply_colour", watched)
    zooms = []
    for seed in range(40):
        changed.append(0)
        rng = KeyedRandom(seed)
        with monkeypatch.context() as patch:
            patch.setattr(dataset, "hyp", HYP | {"mosaic": 0.0})
            draft = dataset.draft(seed % 6, rng)
        fast_augment.render(draft, draw_colour(rng, 0.015, 0.7, 0.4))
        zooms.append(draft.scenes[0].warp.zoom)
    zooms, changed = np.array(zooms), np.array(changed)
    assert changed.max() <= 128 * 128
    assert changed[zooms > 1.5].max() < 128 * 128 * 0.55
    assert changed[zooms < 0.6].max() < 128 * 128 * 0.4


def test_bccd_samples_differ_by_less_than_a_level_on_average(bccd, tmp_path, golden):
    listed = tmp_path / "train.txt"
    listed.write_text("\n".join(map(str, sorted((bccd / "images/train").glob("*.jpg"))[:40])))
    hyp = golden("data.json.gz")["hyp"]["p5"]
    found = LoadImagesAndLabels(str(listed), 320, augment=True, hyp=hyp, cache_images="ram")
    differences = []
    for index in range(40):
        random.seed(index)
        np.random.seed(index)
        rng = LoggedRandom()
        draft = found.draft(index, rng)
        colour = draw_colour(rng, 0.015, 0.7, 0.4)
        fast = fast_augment.render(draft, colour)[..., :3].astype(int).copy()
        differences.append(np.abs(fast - render(draft, colour)))
    assert np.mean(differences) < 0.5
    assert max(d.mean() for d in differences) < 1.0
    assert (np.stack(differences) <= 3).mean() > 0.98
