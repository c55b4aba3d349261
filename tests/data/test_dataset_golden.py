"""Finished samples of the BCCD photographs against recorded figures: images, labels and every random draw."""

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.data.data_golden import (
    SAME_PIXELS,
    LoggedRandom,
    assert_image,
    assert_labels,
    assert_same_draws,
    assert_streams,
    seed_all,
    sha,
)
from yolov7fast.data.augment.mosaic import draw_four, draw_nine, render_geometry, render_scene
from yolov7fast.data.augment.random_source import GLOBAL
from yolov7fast.data.class_groups import labels_to_class_weights, labels_to_image_weights
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.loading.create_dataloader import create_dataloader

same_pixels = pytest.mark.skipif(not SAME_PIXELS, reason="recorded hashes hold for OpenCV 5.0 with AVX2")


@pytest.fixture(scope="module")
def thumbs(golden):
    with golden("data_images.npz") as archive:
        return dict(archive)


@pytest.fixture(scope="module")
def traces(golden):
    return golden("data_trace.json.gz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lists")


@pytest.fixture(scope="module")
def dataset(bccd, folder, data):
    """`dataset(size, hyp, part="train", **options)`: BCCD through a list file, so that caches are written elsewhere."""
    made = {}

    def make(size, hyp="tiny", part="train", **options):
        key = size, part, tuple(sorted(options.items()))
        if key not in made:
            listed = folder / f"{part}.txt"
            listed.write_text("\n".join(str(p) for p in sorted((bccd / "images" / part).glob("*.jpg"))))
            options = {"augment": True, "batch_size": 16} | options
            made[key] = LoadImagesAndLabels(str(listed), size, hyp=None, **options)
        made[key].hyp = data["hyp"][hyp] if isinstance(hyp, str) else hyp
        return made[key]

    return make


def check_sample(dataset, case, arrays, traces, thumbs, monkeypatch):
    """One recorded sample: stages before the colours, finished image, labels, draws, streams."""
    log = LoggedRandom()
    drafts = []
    draft = dataset.draft
    monkeypatch.setattr(dataset, "_random_source", lambda key: log)
    monkeypatch.setattr(dataset, "draft", lambda *args: drafts.append(draft(*args)) or drafts[-1])
    seed_all(case["seed"])
    img, labels, path, shapes = dataset[case["index"]]
    monkeypatch.undo()
    assert_same_draws(log.log, traces[case["trace"]])
    assert_streams(case["after"])
    assert_labels(labels, case["labels"], arrays)
    assert Path(path).name == case["path"]
    assert plain(shapes) == case["shapes"]
    if "before_hsv_hwc" in case:
        assert_image(render_geometry(drafts[0])[..., :3], case["before_hsv_hwc"])
    assert_image(img, case["image"], warped="before_hsv_hwc" in case, thumbs=thumbs)


def plain(shapes):
    """Nested tuples of numbers as the lists that JSON knows."""
    if shapes is None:
        return None
    (h0, w0), ((rh, rw), (dw, dh)) = shapes
    return [[h0, w0], [[rh, rw], [float(dw), float(dh)]]]


def test_files_and_labels_are_found_as_recorded(data, dataset):
    found = dataset(320)
    names = [Path(p).name for p in found.img_files]
    assert (len(names), names[:5], names[-3:]) == (205, data["files"]["first"], data["files"]["last"])
    assert sum(map(len, found.labels)) == data["files"]["total_labels"]
    assert found.shapes.dtype == np.float64
    assert found.shapes[0].tolist() == [640, 480]


@pytest.mark.parametrize("name, draw", [("mosaic4", draw_four), ("mosaic9", draw_nine)])
def test_mosaics_are_as_recorded(name, draw, data, arrays, dataset, monkeypatch):
    for case in data[name]:
        found = dataset(case["size"], case["hyp"])
        seed_all(case["seed"])
        plan = draw(GLOBAL, case["index"], found.indices, case["size"])
        canvas, labels, _ = found._draw_mosaic(plan)
        assert_image(canvas[..., :3], case["canvas_hwc"], warped=False)
        assert_labels(labels, case["canvas_labels"], arrays)
        seed_all(case["seed"])
        scene, labels = found._draft_mosaic(case["index"], GLOBAL, four=name == "mosaic4")
        assert_image(render_scene(scene)[..., :3], case["image_hwc"])
        assert_labels(labels, case["labels"], arrays)
        assert_streams(case["after"])


ALONE = {"mixup": 1, "paste_in": 0, "fliplr": 0, "hsv_h": 0, "hsv_s": 0, "hsv_v": 0}  # nothing but the blend
GROUPS = {  # recorded cases -> hyper-parameters that they change, options of the data set
    "full": ({}, {}),
    "full_custom": ({}, {}),
    "geometry": ({}, {}),
    "mixup_only": (ALONE, {}),
    "plain": ({"mosaic": 0, "paste_in": 0}, {}),
    "eval_square": ({}, {"part": "val", "augment": False}),
}


@pytest.mark.parametrize("group", GROUPS)
def test_samples_are_as_recorded(group, data, arrays, traces, thumbs, dataset, monkeypatch):
    changes, options = GROUPS[group]
    for case in data[group]:
        name = {"full_custom": "custom", "mixup_only": "tiny", "eval_square": "tiny"}.get(group) or case["hyp"].split()[
            0
        ]
        hyp = data["hyp"][name] | changes | case.get("override", {})
        check_sample(dataset(case["size"], hyp, **options), case, arrays, traces, thumbs, monkeypatch)


@pytest.fixture(scope="module")
def polygon_set(bccd, tmp_path_factory, data):
    """The first twelve training images, every box an ellipse of twelve points."""
    root = tmp_path_factory.mktemp("polygons")
    (root / "images/t").mkdir(parents=True)
    (root / "labels/t").mkdir(parents=True)
    for image in sorted((bccd / "images/train").glob("*.jpg"))[:12]:
        (root / "images/t" / image.name).symlink_to(image)
        rows = np.loadtxt(bccd / "labels/train" / f"{image.stem}.txt", ndmin=2)
        lines = []
        for c, x, y, w, h in rows:
            angle = 2 * np.pi * np.arange(12) / 12
            points = np.stack((x + w / 2 * np.cos(angle), y + h / 2 * np.sin(angle)), 1).clip(0, 1)
            lines.append(f"{int(c)} " + " ".join(f"{v:.6f}" for v in points.ravel()))
        (root / "labels/t" / f"{image.stem}.txt").write_text("\n".join(lines))
    return LoadImagesAndLabels(str(root / "images/t"), 320, 16, augment=True, hyp=data["hyp"]["tiny"])


def test_polygon_samples_with_copy_paste_and_paste_in_are_as_recorded(data, arrays, traces, polygon_set, monkeypatch):
    record = data["segments_set"]
    assert_labels(polygon_set.labels[0], record["labels0"], arrays)
    assert len(polygon_set.segments[0]) == record["nseg0"]
    for case in record["cases"]:
        polygon_set.hyp = data["hyp"][case["hyp"]] | case["override"]
        check_sample(polygon_set, case, arrays, traces, None, monkeypatch)


@same_pixels
@pytest.mark.parametrize("number, cache", [(0, False), (1, False), (1, "ram"), (0, "disk")])
def test_a_stream_of_samples_seeded_once_is_as_recorded(number, cache, data, dataset, tmp_path):
    case = data["stream"][number]
    found = dataset(case["size"], case["hyp"], cache_images=cache, cache_dir=str(tmp_path) if cache else None)
    seed_all(case["seed"])
    for sample in case["samples"]:
        img, labels, _, _ = found[sample["index"]]
        assert (sha(labels), len(labels)) == (sample["labels_sha256"], sample["n"])
        assert sha(img) == sample["image_sha256"]
    assert_streams(case["after"])


def check_batch(batch, record, arrays):
    imgs, targets, paths, _ = batch
    assert (list(imgs.shape), str(imgs.dtype)) == (record["shape"], record["dtype"])
    assert (Path(paths[0]).name, Path(paths[-1]).name) == (record["first"], record["last"])
    assert (list(targets.shape), sha(targets)) == (record["targets_shape"], record["targets_sha256"])
    if SAME_PIXELS:
        assert sha(imgs) == record["image_sha256"]


def test_collated_samples_are_as_recorded(data, arrays, dataset):
    found = dataset(320)
    seed_all(4)
    samples = [found[i] for i in range(9)]
    assert [len(sample[1]) for sample in samples] == data["collate"]["label_counts"]
    check_batch(LoadImagesAndLabels.collate_fn(samples), data["collate"], arrays)


def test_quad_batches_are_as_recorded(data, dataset):
    found = dataset(320)
    for case in data["quad"]:
        seed_all(4)
        samples = [found[i] for i in range(9)]
        random.seed(case["seed"])
        imgs, targets, paths, shapes = LoadImagesAndLabels.collate_fn4(samples)
        assert (list(imgs.shape), list(targets.shape)) == (case["shape"], case["targets_shape"])
        assert sha(targets) == case["targets_sha256"]
        # the recording gives the first two paths of the batch; here they belong to the images
        assert (paths, shapes) == ((samples[0][2], samples[4][2]), (None, None))
        if SAME_PIXELS:
            assert sha(imgs) == case["image_sha256"]


def test_rectangular_validation_batches_are_as_recorded(data, arrays, dataset):
    for case in data["rect_val"]:
        found = dataset(case["size"], part="val", augment=False, rect=True, batch_size=case["batch"], pad=case["pad"])
        assert found.batch_shapes.tolist() == case["batch_shapes"]
        for number, record in enumerate(case["batches"]):
            members = [i for i in range(len(found)) if found.batch[i] == number]
            batch = LoadImagesAndLabels.collate_fn([found[i] for i in members])
            assert [Path(p).name for p in batch[2]] == record["paths"]
            assert plain(batch[3][0]) == record["shapes0"]
            check_batch(batch, record, arrays)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_training_loader_gives_the_recorded_batches(workers, data, arrays, bccd, folder, dataset, monkeypatch):
    record = data["train_loader"][f"workers_{workers}"]
    dataset(320)  # writes the list file
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    seed_all(1)
    torch.manual_seed(1)
    loader, _ = create_dataloader(
        str(folder / "train.txt"),
        320,
        16,
        32,
        SimpleNamespace(single_cls=False),
        hyp=data["hyp"]["tiny"],
        augment=True,
        workers=workers,
    )
    try:
        assert len(loader) == record["len"]
        number = 0
        for _ in range(2):
            for batch in loader:
                if number == len(record["batches"]):
                    return
                check_batch(batch, record["batches"][number], arrays)
                number += 1
    finally:
        loader.close()


def test_class_and_image_weights_are_as_recorded(data, dataset):
    record = data["weights"]
    labels = dataset(320).labels
    class_weights = labels_to_class_weights(labels, 3)
    assert class_weights.tolist() == record["class_weights"]
    weights = labels_to_image_weights(labels, 3, class_weights.numpy())
    assert weights[:8].tolist() == record["image_weights_first8"]
    assert weights.sum() == record["image_weights_sum"]
    random.seed(0)
    chosen = random.choices(range(len(labels)), weights=weights, k=len(labels))
    assert chosen[:16] == record["choices_seed0_first16"]
