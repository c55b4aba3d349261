"""Labels of a data set: what becomes of them, what is missing or broken, subsets, weights of classes."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.small_set import HYP, POLYGON, make_set
from yolov7fast.core.errors import UserError
from yolov7fast.data.augment.mosaic import MosaicPlan
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.labels import Subset


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
