"""The anchor check and its k-means against recorded figures."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.data.data_golden import assert_streams, seed_all, sha
from yolov7fast.core.errors import UserError
from yolov7fast.data import autoanchor
from yolov7fast.data.autoanchor import anchor_fit, box_sizes, check_anchors, kmean_anchors
from yolov7fast.data.dataset import LoadImagesAndLabels

STRIDES = torch.tensor([8.0, 16.0, 32.0])


@pytest.fixture(scope="module")
def dataset(bccd, tmp_path_factory, data):
    listed = tmp_path_factory.mktemp("list") / "train.txt"
    listed.write_text("\n".join(map(str, sorted((bccd / "images/train").glob("*.jpg")))))
    return LoadImagesAndLabels(str(listed), 320, augment=True, hyp=data["hyp"]["tiny"])


def model_with(anchors):
    pixels = torch.tensor(anchors, dtype=torch.float32).view(3, -1, 2)
    head = SimpleNamespace(
        anchors=pixels / STRIDES.view(-1, 1, 1), anchor_grid=pixels.clone().view(3, 1, -1, 1, 1, 2), stride=STRIDES
    )
    return SimpleNamespace(model=[head])


def test_the_check_reports_the_recorded_figures_and_draws_once_per_image(data, dataset, monkeypatch):
    record = data["autoanchor"]
    fits = []
    monkeypatch.setattr(autoanchor, "anchor_fit", lambda *args: fits.append(anchor_fit(*args)) or fits[-1])
    for case in record["check"]:
        model = model_with(record["anchors"])
        before = model.model[0].anchors.clone()
        seed_all(case["seed"])
        check_anchors(dataset, model, thr=4.0, imgsz=case["imgsz"])
        assert fits.pop() == (case["bpr"], case["aat"])
        assert torch.equal(model.model[0].anchors, before)
        assert_streams(case["after"])


def test_samples_after_the_check_are_as_recorded(data, dataset):
    record = data["stream_after_autoanchor"]
    seed_all(record["seed"])
    check_anchors(dataset, model_with(data["autoanchor"]["anchors"]), imgsz=320)
    for sample in record["samples"]:
        assert sha(dataset[sample["index"]][1]) == sample["labels_sha256"]
    assert_streams(record["after"])


def test_recall_is_as_recorded_for_other_anchors_and_thresholds(data, dataset):
    for case in data["autoanchor"]["metric_grid"]:
        seed_all(case["seed"])
        scale = np.random.uniform(0.9, 1.1, size=(len(dataset), 1))
        wh = box_sizes(dataset, case["imgsz"], scale).astype(np.float32)
        anchors = np.array(data["autoanchor"]["anchors"], np.float32).reshape(-1, 2) * np.float32(case["anchor_factor"])
        assert anchor_fit(wh, anchors, case["thr"]) == pytest.approx((case["bpr"], case["aat"]), abs=1e-7)


def test_a_short_evolution_gives_the_recorded_anchors(data, dataset):
    case = data["autoanchor"]["kmean_anchors"][0]
    seed_all(case["seed"])
    found = kmean_anchors(dataset, case["n"], case["img_size"], 4.0, case["gen"])
    np.testing.assert_allclose(found, case["result"], rtol=1e-12)
    assert_streams(case["after"])


def test_bad_anchors_are_replaced_by_the_recorded_ones(data, dataset):
    record = data["autoanchor"]
    case = record["forced_kmeans"]
    model = model_with((np.array(record["anchors"]) / 40).tolist())
    seed_all(0)
    check_anchors(dataset, model, imgsz=320)
    head = model.model[0]
    np.testing.assert_allclose(head.anchor_grid.view(-1, 2), case["anchor_grid_after"], rtol=1e-6)
    np.testing.assert_allclose(head.anchors.view(-1, 2), case["anchors_after"], rtol=1e-6)
    assert_streams(case["after"])


def toy(wh):
    rows = np.zeros((len(wh), 5), np.float32)
    rows[:, 3:] = wh
    return SimpleNamespace(shapes=np.array([[100.0, 100.0]]), labels=[rows])


def test_too_few_or_equal_boxes_leave_the_anchors_alone(caplog):
    for boxes in ([[0.9, 0.9]] * 4, [[0.9, 0.9]] * 50, np.zeros((0, 2))):
        model = model_with([[1, 1, 2, 2, 3, 3]] * 3)
        before = model.model[0].anchors.clone()
        check_anchors(toy(boxes), model, imgsz=640)
        assert torch.equal(model.model[0].anchors, before)
    assert caplog.text.count("anchors are not changed") == 3
    with pytest.raises(UserError, match="too few"):
        kmean_anchors(toy([[0.1, 0.2]]), n=9)
