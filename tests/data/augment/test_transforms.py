"""Letterbox, warp, colour and blending against recorded figures."""

import random

import numpy as np
import pytest

from tests.data.data_golden import assert_image, assert_labels, assert_streams, seed_all, synth
from yolov7fast.data.augment.random_source import GLOBAL, KeyedRandom
from yolov7fast.data.augment.transforms import (
    _warp_polygons,
    augment_hsv,
    box_candidates,
    draw_colour,
    draw_warp,
    letterbox,
    mixup,
    polygon_box,
    random_perspective,
    resample_polygon,
    visible_source,
    warp_image,
)
from yolov7fast.data.image_io import load_resized, read_image, resized_shape
from yolov7fast.data.labels import segments2boxes


@pytest.fixture(scope="module")
def polygons(arrays):
    return [arrays[f"persp/in_segments/{i}"] for i in range(6)]


def test_letterbox_gives_the_recorded_images_ratios_and_padding(data):
    for case in data["letterbox"]:
        img, ratio, pad = letterbox(synth(*case["hw"]), **case["args"])
        assert (list(ratio), list(pad)) == (case["ratio"], case["pad"])
        assert_image(img, case, warped=False)


def test_loaded_sizes_are_truncated_as_recorded(data):
    for case in data["load_image_shapes"]:
        assert list(resized_shape(case["h0"], case["w0"], case["size"])) == case["hw"]


def test_decoded_images_are_as_recorded(data, bccd):
    for case in data["decode"]:
        assert_image(read_image(str(bccd / "images/train" / case["name"])), case, warped=False)


def test_resized_images_are_as_recorded(data, bccd):
    path = str(bccd / "images/train/BloodImage_00001.jpg")
    for case in data["load_image"]:
        image = load_resized(path, case["size"], case["augment"])
        assert (list(image.original), list(image.resized)) == (case["hw0"], case["hw"])
        assert_image(image.img, case, warped=False)


def test_random_perspective_gives_the_recorded_matrices_images_and_labels(data, arrays, polygons):
    record = data["random_perspective"]
    for case in record["cases"]:
        img, targets = synth(96, 128, 1), arrays["persp/in_targets"]
        seed_all(case["seed"])
        border = tuple(case["args"].get("border", (0, 0)))
        warp = draw_warp(GLOBAL, case["args"], img.shape[:2], border)
        matrix = arrays[case["M"]]
        np.testing.assert_array_equal(warp.matrix[: len(matrix)], matrix)
        seed_all(case["seed"])
        out, labels = random_perspective(img, targets.copy(), polygons if case["segments"] else [], **case["args"])
        assert_image(out, case["image_hwc"])
        assert_labels(labels, case["labels"], arrays)
        assert_streams(case["after"])


def ranges(**changed) -> dict[str, float]:
    """Ranges of a warp: a shift, and what is given."""
    return {"degrees": 0, "translate": 0.3, "scale": 0, "shear": 0, "perspective": 0} | changed


def test_only_the_visible_part_of_the_source_matters():
    rng = np.random.default_rng(0)
    source = rng.integers(0, 256, (128, 96, 4), dtype=np.uint8)
    for seed in range(60):
        hyp = ranges(degrees=20 * (seed % 2), scale=0.9, shear=5 * (seed % 3), perspective=0.001 * (seed % 5 == 0))
        warp = draw_warp(KeyedRandom(seed), hyp, (128, 96), (-32, -16))
        x1, y1, x2, y2 = visible_source(warp)
        masked = rng.integers(0, 256, source.shape, dtype=np.uint8)
        masked[y1:y2, x1:x2] = source[y1:y2, x1:x2]
        np.testing.assert_array_equal(warp_image(masked, warp), warp_image(source, warp))


def test_box_candidates_are_as_recorded(data):
    record = data["box_candidates"]
    box1, box2 = np.array(record["box1"]).T, np.array(record["box2"]).T
    assert box_candidates(box1, box2, area_thr=0.10).tolist() == record["thr_0_10"]
    assert box_candidates(box1, box2, area_thr=0.01).tolist() == record["thr_0_01"]


def test_polygon_helpers_are_as_recorded(data, arrays, polygons):
    record = data["segments"]
    assert_labels(segments2boxes(polygons), record["segments2boxes"], arrays)
    np.testing.assert_array_equal(resample_polygon(polygons[0]), arrays["segments/resampled0"])
    recorded = [np.ravel(box).tolist() for box in record["segment2box"]]
    assert [polygon_box(p, width=60, height=50).tolist() for p in polygons] == recorded


@pytest.mark.parametrize("degrees", [0, 15])
def test_polygon_boxes_equal_those_of_all_thousand_points(degrees):
    rng = np.random.default_rng(2)
    kinds = {"out": 0, "cut": 0, "whole": 0}
    for seed in range(40):
        warp = draw_warp(KeyedRandom(seed), ranges(degrees=degrees, translate=0.2, scale=0.9), (256, 256), (-64, -64))
        corners = rng.integers(1, 60, 12)
        polygons = [(rng.random((k, 2)) * rng.integers(2, 120) + rng.integers(0, 200, 2)) for k in corners]
        polygons = [p.clip(0, 256).astype(np.float32 if seed % 2 else np.float64) for p in polygons]
        boxes = _warp_polygons(polygons, warp)
        for polygon, box in zip(polygons, boxes):
            points = np.concatenate((resample_polygon(polygon), np.ones((1000, 1))), 1) @ warp.matrix.T
            np.testing.assert_array_equal(box, polygon_box(points[:, :2], 128, 128))
            inside = ((points[:, :2] >= 0) & (points[:, :2] <= 128)).all(1)
            kinds["whole" if inside.all() else "cut" if inside.any() else "out"] += 1
    assert min(kinds.values()) > 20


def test_colour_tables_and_images_are_as_recorded(data, golden):
    with golden("data_images.npz") as images:
        for case in data["hsv"]:
            if not case["image"].startswith("synth"):
                continue
            seed_all(case["seed"])
            colour = draw_colour(GLOBAL, *case["gains"])
            assert colour.gains == case["r"]
            np.testing.assert_array_equal(np.stack(colour.tables), images[case["luts"]])
            img = synth(64, 96, 0)
            seed_all(case["seed"])
            augment_hsv(img, *case["gains"])
            assert_image(img, case)
            assert_streams(case["after"])


def test_colours_of_a_photograph_are_as_recorded(data, bccd):
    path = str(bccd / "images/train/BloodImage_00001.jpg")
    for case in (case for case in data["hsv"] if not case["image"].startswith("synth")):
        img = load_resized(path, 320, True).img
        seed_all(case["seed"])
        augment_hsv(img, *case["gains"])
        assert_image(img, case)


@pytest.mark.parametrize("ratio", [0.0, 0.37, 0.5, 1.0])
def test_mixup_equals_truncated_float64_arithmetic(ratio):
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (2, 50, 60, 3), dtype=np.uint8)
    np.testing.assert_array_equal(mixup(a, b, ratio), (a * ratio + b * (1 - ratio)).astype(np.uint8))


def test_keyed_numbers_are_as_recorded_and_leave_the_global_generators_alone():
    """Runs of earlier versions are resumed with these numbers."""
    seed_all(3)
    for key in ((3, 1, 7), (np.int64(3), 1, np.int64(7))):
        rng = KeyedRandom(*key)
        assert (rng.random(), rng.randint(0, 10**9)) == (0.35766995270460133, 94682375)
        assert rng.np_uniform(-1, 1, 2).tolist() == [-0.4598454363921165, 0.31821783717077756]
        assert rng.np_beta(8.0, 8.0) == pytest.approx(0.6370316213504599)
    assert_streams({"py": random.Random(3).random(), "np": np.random.RandomState(3).random()})
