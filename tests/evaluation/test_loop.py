"""The evaluation loop with made-up detectors: it must not know, or care, which one it measures."""

import csv
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.test_detection_matching import stub_shapes
from yolov7fast.evaluation.confusion_matrix import ConfusionMatrix
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_loop import HEADER, evaluate
from yolov7fast.evaluation.eval_outputs import (
    ImageSink,
    TextSink,
    per_class_rows,
    print_speed,
    print_table,
    write_files,
    write_per_class_ap,
)
from yolov7fast.evaluation.eval_result import MAP, MAP50, SUMMARY
from yolov7fast.predictors.nms import non_max_suppression
from yolov7fast.predictors.predictor import Prediction

NAMES = ["a", "b", "c"]


@pytest.fixture
def stub_loader(golden):
    """The recorded stub run: three batches of four images."""
    g = golden("eval_match.npz")
    paths = [tuple(f"images/{b}_{i}.jpg" for i in range(4)) for b in range(3)]
    images = torch.zeros(4, 3, 256, 352, dtype=torch.uint8)
    return [(images, torch.from_numpy(g[f"b{b}_targets"].copy()), paths[b], stub_shapes(g)) for b in range(3)]


@pytest.fixture
def stub_predict(golden):
    """A detector that answers with the recorded predictions, batch after batch."""
    predictions = iter([golden("eval_match.npz")[f"b{b}_pred"] for b in range(3)])

    def predict(images, shapes, targets):
        found = non_max_suppression(torch.from_numpy(next(predictions)), 0.001, 0.6, multi_label=True)
        return Prediction(found, 40.0, 20.0, {"box": torch.tensor(1.0), "giou": torch.tensor(2.0)})

    return predict


def test_recorded_run(golden, stub_loader, stub_predict, capsys):
    want = golden("eval_match.json")["train_defaults"]
    result = evaluate(stub_predict, stub_loader, nc=3, config=EvalConfig(img_size=320, batch_size=4))
    np.testing.assert_allclose([result.summary[name] for name in SUMMARY], want["results"][:4], atol=1e-6)
    np.testing.assert_allclose(result.per_class_ap, want["maps"], atol=1e-6)
    assert result.losses == {"box": 1.0, "giou": 2.0}
    assert (*result.speed, result.speed.total_ms) == (10.0, 5.0, 320, 4, 15.0)
    assert result.seen == 12 and result.labels.tolist() == [12, 14, 6]
    figures, per_class_ap, times = result.as_upstream()
    assert figures == (*(result.metrics[name] for name in SUMMARY), 1.0, 2.0, 0.0)
    assert per_class_ap is result.per_class_ap and times == (10.0, 5.0, 15.0, 320, 320, 4)
    assert HEADER in capsys.readouterr().err
    print_table(result, NAMES, per_class=True)
    assert capsys.readouterr().out.splitlines()[:4] == want["printed"]


def perfect(images, shapes, targets):
    """Any detector will do: this one knows the answers."""
    b, _, h, w = images.shape
    scale = torch.tensor([w, h, w, h])
    found = []
    for i in range(b):
        own = targets[targets[:, 0] == i]
        xywh = own[:, 2:] * scale
        xyxy = torch.cat((xywh[:, :2] - xywh[:, 2:] / 2, xywh[:, :2] + xywh[:, 2:] / 2), 1)
        found.append(torch.cat((xyxy, torch.full((len(own), 1), 0.9), own[:, 1:2]), 1))
    return Prediction(found)


def blind(images, shapes, targets):
    return Prediction([torch.zeros(0, 6) for _ in images])


def test_no_images_at_all(capsys):
    result = evaluate(blind, [], nc=2)
    assert result.metrics == dict.fromkeys(SUMMARY, 0) and result.seen == 0
    print_table(result, ["a", "b"], per_class=True)
    print_speed(result, "float32")
    assert "0.0/0.0/0.0 ms" in capsys.readouterr().out


def test_classes_without_labels_get_the_overall_figure(stub_loader):
    result = evaluate(perfect, stub_loader, nc=5)
    assert result.per_class_ap.tolist() == pytest.approx([1, 1, 1, 1, 1])
    replaced = result.with_coco({"AP": 0.25, "AP50": 0.5})
    assert replaced.per_class_ap.tolist() == pytest.approx([1, 1, 1, 0.25, 0.25])
    assert (replaced.metrics[MAP50], replaced.metrics[MAP]) == (0.5, 0.25)
    assert replaced.fitness == pytest.approx(0.1 * 0.5 + 0.9 * 0.25)
    assert replaced.summary[MAP50] == pytest.approx(1) and replaced.summary[MAP] == pytest.approx(1)


def test_single_class_counts_every_detection_as_class_0(stub_loader):
    for _, targets, _, _ in stub_loader:
        targets[:, 1] = 0  # as a single-class data set does

    def wrong_classes(images, shapes, targets):
        found = perfect(images, shapes, targets).detections
        for d in found:
            d[:, 5] = 2
        return Prediction(found)

    matrix = ConfusionMatrix(1)
    sinks = [lambda seen: matrix.update(seen.native)]
    result = evaluate(wrong_classes, stub_loader, nc=1, config=EvalConfig(single_cls=True), sinks=sinks)
    assert result.metrics == pytest.approx(dict.fromkeys(SUMMARY, 1))
    assert matrix.matrix.tolist() == [[32, 0], [0, 0]]


def test_sizes_without_labels_show_a_dash(stub_loader, tmp_path, capsys):
    for _, targets, _, _ in stub_loader:
        targets[:, 4:] = 0.02  # all boxes are small
    result = evaluate(perfect, stub_loader, nc=3)
    print_table(result, NAMES, per_class=True)
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["large"] == ["12", "0", "-", "-", "-"] and rows["small"][1:] == ["32", "1", "1", "1"]
    write_files(result, NAMES, tmp_path, {})
    sizes = json.loads((tmp_path / "metrics.json").read_text())["sizes"]
    assert sizes["medium"] == {"labels": 0, "ap50": None, "ap": None, "ar": None}


# --- what is written --------------------------------------------------------------------------------------------------


def test_each_run_overwrites_label_files(stub_loader, tmp_path):
    for _ in range(2):
        evaluate(perfect, stub_loader, nc=3, sinks=[TextSink(tmp_path, save_conf=True)])
    lines = [line for file in tmp_path.glob("*.txt") for line in file.read_text().splitlines()]
    assert len(lines) == 32
    assert all(len(line.split()) == 6 and line.endswith(" 0.9") for line in lines)
    assert not (tmp_path / "0_3.txt").exists()  # this image has neither labels nor, here, detections


def test_label_lines_hold_native_normalised_boxes(golden, tmp_path):
    """The recorded detections give the recorded lines."""
    g, want = golden("eval_bccd.npz"), golden("eval_bccd.json")["save_txt_save_conf_sample"]
    stems = g["stems"][:3].tolist()
    dets = list(torch.from_numpy(g["det"]).split(g["n_det"].tolist()))[:3]
    rows = g["h0_w0_rh_rw_padw_padh"][:3].tolist()
    shapes = [((h, w), ((rh, rw), (px, py))) for h, w, rh, rw, px, py in rows]
    images = torch.zeros(3, 3, *g["letterbox_hw"][0], dtype=torch.uint8)
    loader = [(images, torch.zeros(0, 6), tuple(f"{s}.jpg" for s in stems), shapes)]
    evaluate(lambda *_: Prediction(dets), loader, nc=3, sinks=[TextSink(tmp_path, save_conf=True)])
    for stem in stems:
        lines = (tmp_path / f"{stem}.txt").read_text().splitlines()
        recorded = want[f"{stem}.txt"]
        assert len(lines) == recorded["lines"] and lines[:6] == recorded["first"] and lines[-1] == recorded["last"]


def test_drawings_of_the_first_batches_survive_a_loader_that_reuses_its_memory(stub_loader, tmp_path, monkeypatch):
    drawn = {}

    def record(images, targets, paths, fname, names):
        drawn[Path(fname).name] = (int(images.float().mean()), len(targets), list(paths), names)

    monkeypatch.setattr("yolov7fast.evaluation.eval_outputs.plot_images", record)
    buffer = torch.zeros(4, 3, 256, 352, dtype=torch.uint8)

    def reusing():
        for number, (_, *rest) in enumerate([*stub_loader, *stub_loader]):
            yield buffer.fill_(number), *rest
        buffer.fill_(99)

    sink = ImageSink(tmp_path, NAMES)
    evaluate(perfect, reusing(), nc=3, sinks=[sink])
    assert sorted(drawn) == sorted(f"test_batch{i}_{kind}.jpg" for i in range(3) for kind in ("labels", "pred"))
    for i in range(3):
        assert drawn[f"test_batch{i}_labels.jpg"][0] == i
        assert drawn[f"test_batch{i}_pred.jpg"][1] == drawn[f"test_batch{i}_labels.jpg"][1]


def test_a_drawing_that_fails_costs_no_figures(stub_loader, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("no ink")

    monkeypatch.setattr("yolov7fast.evaluation.eval_outputs.plot_images", fail)
    sink = ImageSink(tmp_path, NAMES)
    assert evaluate(perfect, stub_loader, nc=3, sinks=[sink]).metrics[MAP] == pytest.approx(1)
    assert "no ink" in caplog.text


def test_tables_as_files(stub_loader, stub_predict, tmp_path):
    result = evaluate(stub_predict, stub_loader, nc=3)
    write_files(result, NAMES, tmp_path, {"imgsz": 320})
    with (tmp_path / "per_class.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert [row["name"] for row in rows] == NAMES and [row["labels"] for row in rows] == ["12", "14", "6"]
    document = json.loads((tmp_path / "metrics.json").read_text())
    assert document["settings"] == {"imgsz": 320} and document["mAP"] == pytest.approx(result.summary[MAP])
    assert document["per_class"] == per_class_rows(result, NAMES)
    assert set(document["sizes"]) == {"all", "small", "medium", "large"}
    assert document["losses"] == {"box": 1.0, "giou": 2.0}
    write_per_class_ap(result, NAMES, tmp_path / "new" / "ap.json")
    document = json.loads((tmp_path / "new" / "ap.json").read_text())
    assert document["map50"] == pytest.approx(result.summary[MAP50])
    assert document["map"] == pytest.approx(result.summary[MAP])
    assert document["per_class"]["1"] == {"ap50": result.classes.ap[1, 0], "ap": result.per_class_ap[1], "name": "b"}


@pytest.mark.parametrize("read", [0, 3], ids=["without images", "with images"])
def test_sinks_do_not_hold_up_the_network(stub_loader, read):
    """The sink of the first batch waits until the network sees the second: possible only where the two overlap."""
    second, seen = threading.Event(), []

    class Waiting:
        image_batches = read

        def __call__(self, batch):
            assert second.wait(60), "the network waits for the sinks"
            seen.append(batch.batch_index)

    calls = []

    def watched(*args):
        calls.append(1)
        if len(calls) == 2:
            second.set()
        return perfect(*args)

    result = evaluate(watched, stub_loader, nc=3, sinks=[Waiting()])
    assert len(calls) > 1 and seen == list(range(len(calls)))
    assert result.metrics == evaluate(perfect, stub_loader, nc=3).metrics


def test_an_error_of_a_sink_ends_the_evaluation(stub_loader):
    class Failing:
        image_batches = 0

        def __call__(self, batch):
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        evaluate(perfect, stub_loader, nc=3, sinks=[Failing()])
