"""Plots: the file is there, nothing stays open, odd inputs are drawn, arrays are left as they were.

How they look was judged by eye; here stands what can be held by a test.
"""

import gc
import math
import threading

import cv2
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from yolov7fast.core.drawing import class_colour, class_name, draw_boxes, plot_images, save_image
from yolov7fast.core.errors import UserError
from yolov7fast.evaluation import curve_plots as plots_curves
from yolov7fast.evaluation.curve_plots import plot_confusion, plot_mc_curve, plot_pr_curve
from yolov7fast.reports.run_plots import plot_evolution, plot_results, plot_study
from yolov7fast.reports.run_results import read_run


def size_of(path) -> tuple[int, int]:
    image = cv2.imread(str(path))
    assert image is not None and image.std() > 1, f"{path} is missing or blank"
    return image.shape[1], image.shape[0]


@pytest.fixture
def legends(monkeypatch):
    """The legend texts of every figure that is saved."""
    texts = []

    def record(self, *args, **kwargs):
        texts.append([t.get_text() for legend in self.legends for t in legend.get_texts()])
        return original(self, *args, **kwargs)

    original = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", record)
    return texts


@pytest.mark.parametrize("nc", [3, 80])
def test_curves_have_a_legend_for_few_classes_and_grey_lines_for_many(tmp_path, legends, nc):
    x = np.linspace(0, 1, 50)
    rows = np.linspace(0.9, 0.1, nc)[:, None] * (1 - x)
    plot_pr_curve(x, rows, rows.max(1), tmp_path / "PR_curve.png", [f"class {i}" for i in range(nc)])
    plot_mc_curve(x, rows, tmp_path / "F1_curve.png", [f"class {i}" for i in range(nc)])
    assert size_of(tmp_path / "PR_curve.png") == size_of(tmp_path / "F1_curve.png") == (2250, 1500)
    lines = nc if nc <= 20 else 1
    assert [len(texts) for texts in legends] == [lines + 1] * 2
    assert legends[0][-1].startswith("all classes")
    assert not list(tmp_path.glob(".*")), "a temporary file was left behind"


def test_legend_names_classes_by_their_id_not_by_their_position(tmp_path, legends):
    x = np.linspace(0, 1, 10)
    plot_pr_curve(x, np.ones((2, 10)), np.array([0.5, 0.25]), tmp_path / "p.png", ["RBC", "WBC", "Platelets"], [0, 2])
    assert legends[0] == ["RBC 0.500", "Platelets 0.250", "all classes 0.375 mAP@0.5"]


@pytest.mark.parametrize("nc, named", [(80, True), (3, False)])
def test_confusion_matrix_is_drawn_for_any_number_of_classes(tmp_path, nc, named):
    matrix = np.eye(nc + 1) * 5 + 1
    before = matrix.copy()
    plot_confusion(matrix, tmp_path / "confusion_matrix.png", [f"class {i}" for i in range(nc)] if named else None)
    assert size_of(tmp_path / "confusion_matrix.png") == (3000, 2250)
    assert np.array_equal(matrix, before)


def test_figures_are_freed_and_may_be_drawn_from_threads(tmp_path):
    x = np.linspace(0, 1, 10)

    def draw(i):
        plot_mc_curve(x, np.ones((1, 10)), tmp_path / f"{i}.png")

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert len(list(tmp_path.glob("?.png"))) == 3
    assert not [o for o in gc.get_objects() if type(o) is Figure]


def test_a_failed_plot_leaves_no_file_and_no_lock(tmp_path):
    with pytest.raises(RuntimeError), plots_curves.figure(tmp_path / "x.png", (1, 1)):
        raise RuntimeError("drawing failed")
    assert not list(tmp_path.iterdir())
    plot_mc_curve(np.array([0.0, 1.0]), np.ones((1, 2)), tmp_path / "y.png")


# --- results.txt ------------------------------------------------------------------------------------------------------


def results_line(epoch: int, last: int, values) -> str:
    return ("%10s%10s" + "%10.4g" * len(values) + "\n") % (f"{epoch}/{last}", "3.2G", *values)


FULL = (0.1, 0.05, 0.08, 0.23, 254, 320, 0.6, 0.5, 0.4, 0.25, 0.07, 0.04, 0.02)


def test_results_file_is_read_by_epoch_with_gaps_for_what_was_not_measured(tmp_path):
    file = tmp_path / "results.txt"
    untested = (*FULL[:6], 0, 0, 0, 0, 0, 0, 0)
    no_obj_loss = (*FULL[:1], 0, *FULL[2:])
    lines = [results_line(0, 2, untested), results_line(1, 2, FULL), "torn\n", results_line(1, 2, no_obj_loss)]
    file.write_text("".join(lines) + results_line(2, 2, FULL)[:60] + "\n")
    run = read_run(file)
    assert run.epoch.tolist() == [0, 1, 2] and run.planned == 3
    np.testing.assert_equal(run.metrics["map"], [math.nan, 0.25, math.nan])
    assert np.isnan(run.losses["obj"][1]), "the last line of an epoch counts, and a loss of 0 is a gap"


@pytest.mark.parametrize("values", [(*FULL, 7, 8), FULL[:7]])
def test_results_png_of_lines_with_more_or_fewer_columns(tmp_path, values):
    (tmp_path / "results.txt").write_text("".join(results_line(e, 29, values) for e in range(30)))
    assert plot_results(tmp_path) == tmp_path / "results.png"
    assert size_of(tmp_path / "results.png") == (2800, 1200)


@pytest.fixture
def panels(monkeypatch):
    """Title -> (epochs, values) of each panel of the figure that would be saved."""
    drawn = {}

    def record(self, *args, **kwargs):
        for ax in self.axes:
            drawn[ax.get_title()] = [tuple(map(list, line.get_data())) for line in ax.get_lines()]

    monkeypatch.setattr(Figure, "savefig", record)
    return drawn


def test_epochs_without_validation_are_no_points(tmp_path, panels):
    """results.txt repeats the last validation; results.csv leaves it out."""
    (tmp_path / "results.txt").write_text("".join(results_line(e, 3, FULL) for e in range(4)))
    rows = ["epoch,train/box,metrics/mAP_0.5,val/box", "0,0.1,,", "1,0.1,0.4,0.07", "2,0.1,,", "3,0.1,0.4,0.07"]
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    plot_results(tmp_path)
    assert panels["mAP@0.5"] == [([1, 3], [0.4, 0.4])] and panels["val Box"] == [([1, 3], [0.07, 0.07])]
    assert panels["Box"] == [([0, 1, 2, 3], [0.1] * 4)]


def test_panels_have_the_names_of_the_losses_in_results_csv(tmp_path, panels):
    (tmp_path / "results.txt").write_text(results_line(0, 0, FULL))
    heading = "epoch,train/box,train/giou,train/cls,train/total,val/box,val/giou,val/cls,metrics/precision"
    (tmp_path / "results.csv").write_text(f"{heading}\n0,1,2,3,6,4,5,6,0.6\n")
    plot_results(tmp_path)
    assert panels["GIoU"] == [([0], [2.0])] and panels["val GIoU"] == [([0], [5.0])]
    assert "Objectness" not in panels and panels["Precision"] == [([0], [0.6])]


def test_results_without_a_file_or_an_epoch_say_so(tmp_path):
    with pytest.raises(UserError, match="holds neither results"):
        plot_results(tmp_path)
    (tmp_path / "results.txt").write_text("hello\n")
    with pytest.raises(UserError, match="holds no epoch"):
        plot_results(tmp_path)


def test_study_and_evolution_are_drawn(tmp_path):
    sizes = np.arange(256, 640, 128)
    rows = np.column_stack([np.full((3, 7), 0.3), np.ones((3, 2)), sizes / 100, sizes, sizes, np.full(3, 32)])
    np.savetxt(tmp_path / "study_coco_a.txt", rows, fmt="%10.4g")
    plot_study([tmp_path / "study_coco_a.txt"], tmp_path / "study.png")
    assert size_of(tmp_path / "study.png") == (1800, 1200)
    (tmp_path / "bad.txt").write_text("1 2 3\n")
    with pytest.raises(UserError, match=r"bad\.txt"):
        plot_study([tmp_path / "bad.txt"], tmp_path / "x.png")
    rng = np.random.default_rng(0)
    plot_evolution(rng.random((5, 8)), rng.random(5), [f"key{i}" for i in range(8)], tmp_path / "evolve.png")
    assert size_of(tmp_path / "evolve.png")[0] == 2100


# --- images -----------------------------------------------------------------------------------------------------------


def test_grid_goes_down_columns_and_leaves_its_inputs_alone(tmp_path):
    images = np.zeros((3, 3, 40, 60), np.uint8)
    for i in range(3):
        images[i, i] = 200  # red, green, blue
    labels = np.array([[0, 1, 0.5, 0.5, 0.5, 0.5]])
    kept = images.copy(), labels.copy()
    grid = plot_images(images, labels, fname=tmp_path / "g.png")
    assert grid.shape == (80, 120, 3)
    assert [grid[y, x].argmax() for x, y in ((6, 6), (6, 46), (66, 6))] == [2, 1, 0], "BGR of red, green, blue"
    assert (grid[60, 90] == 255).all(), "the place of a fourth image stays white"
    assert np.array_equal(images, kept[0]) and np.array_equal(labels, kept[1])
    assert size_of(tmp_path / "g.png") == (120, 80)


def test_grid_is_at_most_1280_and_takes_tensors_pixels_and_confidences(tmp_path):
    images = torch.zeros(20, 3, 640, 480)
    weak_and_strong = torch.tensor([[0, 0, 240, 320, 100, 100, 0.2], [1, 0, 240, 320, 100, 100, 0.9]])
    grid = plot_images(images, weak_and_strong, fname=None, names=["cell"], paths=[f"a/{i}.jpg" for i in range(20)])
    assert max(grid.shape) == 1280 and grid.shape == (1280, 960, 3)
    blue = class_colour(0)
    drawn = (grid == blue).all(-1)
    assert not drawn[:320, :240].any(), "a prediction of 0.2 is not shown"
    assert drawn[320:640, :240].any()


@pytest.mark.parametrize("height, width", [(60, 80), (480, 640), (3000, 4000)])
def test_boxes_and_labels_grow_with_the_image_and_stay_inside(height, width):
    image = np.zeros((height, width, 3), np.uint8)
    corners = [(width * 0.9, 0, width, height * 0.2), (0, height * 0.9, width * 0.1, height)]
    draw_boxes(image, corners, ["a long class name 0.99"] * 2, [class_colour(0)] * 2)
    font = max(round((height + width) * 0.0125), 8)
    assert (image[: font * 2].any(-1).sum(1).max()) >= min(font * 4, width * 0.5), "the text moved inside, unclipped"


def test_an_unknown_image_format_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"\.xyz"):
        save_image(np.zeros((4, 4, 3), np.uint8), tmp_path / "a.xyz")


ODD_NAMES = ["$\\frac{$", "$x$ and $y_$", "\x1b[31mred", "two\nlines", "\0", "x" * 5000, "\udcff"]


def test_names_that_are_no_plain_text_are_drawn_as_characters(tmp_path, legends):
    """`$` begins no formula, escape codes and line breaks are written out, and no name is wider than a legend."""
    precision, ids = np.full((len(ODD_NAMES), 10), 0.5), range(len(ODD_NAMES))
    plot_pr_curve(np.linspace(0, 1, 10), precision, np.full(len(ids), 0.5), tmp_path / "pr.png", ODD_NAMES, ids)
    texts = " ".join(map(str, legends))
    assert "\\x1b[31mred" in texts.replace("\\\\", "\\") and "\x1b" not in texts and len(texts) < 1000
    plot_confusion(np.eye(len(ids) + 1), tmp_path / "matrix.png", ODD_NAMES)
    draw_boxes(np.zeros((64, 64, 3), np.uint8), np.array([[1, 1, 40, 40]]), [class_name(ODD_NAMES, 2)], [(0, 0, 0)])
    for name in ("pr", "matrix"):
        size_of(tmp_path / f"{name}.png")
