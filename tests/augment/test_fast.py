"""`--fast-augment`: the default path's draws and labels exactly, nearly its pixels, for less work."""

import random

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.data_golden import LoggedRandom, seed_all
from yolov7fast.augment import fast as fast_augment
from yolov7fast.augment.randomness import KeyedRandom
from yolov7fast.augment.scene import Draft, Scene, render, render_scene
from yolov7fast.augment.transforms import Colour, Warp, apply_colour, draw_colour, draw_warp
from yolov7fast.data import dataset as datasets
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
    "rotated and blended": {"degrees": 20.0, "mixup": 1.0},
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


@pytest.mark.parametrize(
    "variant, limit",
    [("mosaic", 2.0), ("plain", 2.0), ("blended", 2.0), ("rotated", 1.5), ("rotated and blended", 1.5)],
)
def test_images_are_nearly_those_of_the_default_path(variant, limit, dataset, monkeypatch):
    """Grey levels, mean over samples of 128 pixels, whose images have stronger gradients than photographs."""
    differences = []
    for seed in range(24):
        (img, _, _), (fast, _, _) = both(dataset, seed % 6, seed, monkeypatch, **VARIANTS[variant])
        differences.append(np.abs(img - fast).mean())
    assert np.mean(differences) < limit
    assert max(differences) < 2 * limit


@pytest.fixture(scope="module")
def ramps(tmp_path_factory):
    """Images whose first two channels grow by two levels a pixel to the right and downwards: colours are places."""
    root = tmp_path_factory.mktemp("ramps")
    for part in ("images", "labels"):
        (root / part).mkdir()
    for k, (h, w) in enumerate([(96, 120), (120, 96), (120, 120), (60, 120)]):
        y, x = np.mgrid[:h, :w]
        cv2.imwrite(str(root / f"images/{k}.png"), np.stack((2 * x, 2 * y, 0 * x), 2).astype(np.uint8))
        (root / f"labels/{k}.txt").write_text("0 0.5 0.5 0.4 0.6\n")
    return LoadImagesAndLabels(str(root / "images"), 120, 4, augment=True, hyp=dict(HYP))


def test_no_pixel_is_more_than_half_a_pixel_beside_its_place(ramps):
    """Away from edges of images, where the default path mixes them; half a pixel of the sample, or of the image."""
    checked = 0
    for seed in range(60):
        scene = ramps.draft(seed % 4, KeyedRandom(seed)).scenes[0]
        fast = fast_augment._render_scene(scene, "fast").astype(int).copy()
        slow = render_scene(scene)[..., :3].astype(int)
        inside = ~edge_mask(scene)
        a_pixel = 2 / min(scene.warp.zoom, 1)  # levels from a pixel of the sample to the next
        assert np.abs(fast - slow)[inside].max(initial=0) <= 0.5 * a_pixel + 1.5
        checked += inside.sum()
    assert checked > 60 * 120 * 120 * 0.5


def test_no_line_of_grey_is_left_where_an_image_is_cut_or_meets_the_next():
    """Four squares that fill the canvas, and warps that look at it alone."""
    square = np.full((128, 128, 3), 200, np.uint8)
    origins = [(0, 0), (128, 0), (0, 128), (128, 128)]
    for seed in range(200):
        warp = draw_warp(
            KeyedRandom(seed), (256, 256), (-64, -64), degrees=0, translate=0.1, scale=0.4, shear=0, perspective=0
        )
        assert (fast_augment._render_scene(Scene([square] * 4, origins, warp), "fast") == 200).all()


def test_the_choice_of_resize_is_put_back(dataset, monkeypatch):
    """Intel's resize serves this renderer alone: the default path's bits rest on OpenCV's own."""
    scene = dataset.draft(0, KeyedRandom(1)).scenes[0]
    resize, seen = cv2.resize, []

    def watched(*args, **kwargs):
        seen.append(cv2.ipp.useIPP_NotExact())
        if len(seen) > 3:
            raise MemoryError
        return resize(*args, **kwargs)

    cv2.ipp.setUseIPP_NotExact(True)
    allowed = cv2.ipp.useIPP_NotExact()  # not in a build without it
    cv2.ipp.setUseIPP_NotExact(False)
    monkeypatch.setattr(cv2, "resize", watched)
    with pytest.raises(MemoryError):
        for _ in range(4):
            fast_augment._render_scene(scene, "fast")
            assert not cv2.ipp.useIPP_NotExact()
    assert not cv2.ipp.useIPP_NotExact() and seen == [allowed] * 4


def edge_mask(scene) -> np.ndarray:
    """Where a sample pixel lies within two source pixels of an edge of any image."""
    h, w = scene.warp.size
    (zx, _, tx), (_, zy, ty) = scene.warp.matrix[:2]
    x, y = (np.arange(w) - tx) / zx, (np.arange(h) - ty) / zy
    mask = np.zeros((h, w), bool)
    for img, (ox, oy) in zip(scene.images, scene.origins):
        if img is None:
            continue
        ih, iw = img.shape[:2]
        near_x = (np.abs(x - ox) < 2) | (np.abs(x - ox - iw) < 2)
        near_y = (np.abs(y - oy) < 2) | (np.abs(y - oy - ih) < 2)
        mask |= near_x[None, :] | near_y[:, None]
    near_x = (np.abs(x) < 2) | (np.abs(x - scene.warp.source[1]) < 2)
    near_y = (np.abs(y) < 2) | (np.abs(y - scene.warp.source[0]) < 2)
    return mask | near_x[None, :] | near_y[:, None]


@pytest.mark.parametrize("value", [0.6, 1.0, 1.4])
@pytest.mark.parametrize("saturation", [0.3, 1.0, 1.7])
def test_saturation_and_value_are_changed_as_in_hsv(saturation, value):
    """On noise, which holds every colour there is; OpenCV's own way to HSV and back loses a level or two."""
    noise = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    for img in (smooth(96, 160, 3), noise, noise // 8 + 220):
        colour = colour_of(1.0, saturation, value)
        difference = np.abs(fast_augment.coloured(img, colour).astype(int) - apply_colour(img, colour))
        high, low = img.max(2).astype(int), img.min(2)
        within = saturation * (high - low) < high - 1  # beyond it the default path stops saturating
        assert within.mean() > 0.2
        assert difference[within].max() <= 6
        assert difference[within].mean() < 1


def colour_of(*gains: float) -> Colour:
    """A change of colours by these gains, with the default path's tables."""

    class Given:
        def np_uniform(self, low, high, size):
            return np.array(gains) - 1

    return draw_colour(Given(), 1, 1, 1)


@pytest.mark.parametrize("gain", [0.97, 1.03])
def test_hues_turn_by_what_the_default_path_gives_the_middle_one(gain):
    """Near hue 90 of 180 as by default, elsewhere by the same angle, up to the rounding of channels."""
    hues = np.arange(0, 180, 2, dtype=np.uint8)
    hsv = np.stack((hues, np.full(90, 130, np.uint8), np.full(90, 200, np.uint8)), 1)[None]
    img = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)
    colour = colour_of(gain, 1.0, 1.0)
    turned = cv2.cvtColor(fast_augment.coloured(img, colour), cv2.COLOR_BGR2HSV)[0, :, 0].astype(int)
    shift = (turned - hues + 90) % 180 - 90
    np.testing.assert_allclose(shift, 90 * (gain - 1), atol=1.6)
    default = apply_colour(img, colour)[0, 43:48].astype(int)
    np.testing.assert_allclose(fast_augment.coloured(img, colour)[0, 43:48], default, atol=8)


def test_greys_keep_their_hue_and_follow_the_value_table_exactly():
    img = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, 2)
    for value in (0.5, 0.83, 1.0, 1.19, 1.4):
        colour = colour_of(1.01, 0.4, value)
        fast = fast_augment.coloured(img, colour)
        assert (fast == fast[..., :1]).all()
        assert np.abs(fast[0, :, 0].astype(int) - colour.tables[2]).max() <= 1


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
        fast = fast_augment._render_scene(scene, "fast")
        packed = np.unique(fast.astype(np.int32) @ (1 << 16, 1 << 8, 1))  # a hundred times faster than unique rows
        seen |= {(colour >> 16, colour >> 8 & 255, colour & 255) for colour in packed.tolist()}
    assert seen == allowed


def test_grey_padding_gets_the_changed_grey(dataset, monkeypatch):
    (img, _, _), (fast, _, _) = both(dataset, 3, 5, monkeypatch, mosaic=0.0, scale=0.0, hsv_v=0.9)
    corner = img[:, 0, 0]
    assert (corner == fast[:, 0, 0]).all()
    assert not (corner == 114).any()


def enlarged(dataset, k: int):
    """A sample as drawn, of one image at zoom 1.5 with padding beside it, and a change of its colours."""
    rng = KeyedRandom(k)
    img = dataset.load_image(3).img  # 60 x 128
    matrix = np.array([[1.5, 0, -20.3 - k], [0, 1.5, -22.7 + k], [0, 0, 1]])
    warp = Warp(matrix, 1.5, (128, 128), (128, 128), False)
    draft = Draft([Scene([img], [(0, 34)], warp)], 1.0, np.zeros((0, 5), np.float32), None)
    return draft, draw_colour(rng, 0.015, 0.7, 0.4)


def test_colours_of_enlarged_images_are_changed_first_with_nearly_the_same_result(dataset, monkeypatch):
    for k in range(12):
        draft, colour = enlarged(dataset, k)
        first, left_over = fast_augment.render(draft, colour)
        first = first.astype(int)
        assert left_over is None
        monkeypatch.setattr(fast_augment, "ENLARGED", 2.0)
        plain, left_over = fast_augment.render(draft, colour)
        assert left_over is colour
        difference = np.abs(first - fast_augment.coloured(plain, colour))
        monkeypatch.undo()
        assert difference.mean() < 0.6 and difference.max() <= 6


def test_padding_beside_enlarged_images_gets_the_changed_grey(dataset):
    for k in range(12):
        draft, colour = enlarged(dataset, k)
        fast = fast_augment.render(draft, colour)[0][0, 64].tolist()
        assert fast == render(draft, colour)[0, 64].tolist() == [colour.tables[2][114]] * 3


def test_blended_samples_are_coloured_after_blending(dataset):
    draft, colour = enlarged(dataset, 0)
    assert fast_augment.render(draft._replace(scenes=draft.scenes * 2, blend=0.4), colour)[1] is colour


def test_what_is_pasted_keeps_its_colours(polygon_set, monkeypatch):
    """Colours are changed before objects are pasted in, as by default."""
    calls = []
    monkeypatch.setattr(polygon_set, "hyp", HYP | {"paste_in": 1.0})
    monkeypatch.setattr(polygon_set, "fast_augment", True)
    for name, module in (("coloured", fast_augment), ("paste_in", datasets)):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, _real=real, _name=name: calls.append(_name) or _real(*a))
    seed_all(0)
    assert polygon_set._augmented(0, LoggedRandom()).colour is None
    assert calls == ["coloured", "paste_in"]


def test_bccd_samples_differ_by_a_level_on_average(bccd, tmp_path, golden):
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
        fast = fast_augment.coloured(fast_augment.render_geometry(draft), colour).astype(int).copy()
        differences.append(np.abs(fast - render(draft, colour)))
    assert np.mean(differences) < 1.5
    assert max(d.mean() for d in differences) < 2.5
    assert (np.stack(differences) <= 6).mean() > 0.97
