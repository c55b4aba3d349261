"""NmsSettings inside an ONNX file against `evaluation.nms`, on boxes made for it."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from yolov7fast.inference.export.export_plan import NmsSettings
from yolov7fast.inference.export.onnx_graph import add_end2end, add_nms, add_tensorrt, add_threshold
from yolov7fast.predictors.nms import non_max_suppression

DETECTIONS = ["num_dets", "det_boxes", "det_scores", "det_classes"]
ROWS = {"boxes": ["batch", "rows", 4], "score": ["batch", "rows"], "label": ["batch", "rows"]}


def network(outputs: dict[str, list]) -> onnx.ModelProto:
    """A graph that hands its inputs on, as a network would its answer."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    inputs = [helper.make_tensor_value_info(f"in_{name}", TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    nodes = [helper.make_node("Identity", [f"in_{name}"], [name]) for name in outputs]
    graph = helper.make_graph(nodes, "network", inputs, values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run(model: onnx.ModelProto, boxes, score, label) -> dict[str, np.ndarray]:
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    inputs = {"in_boxes": boxes, "in_score": score, "in_label": label}
    return dict(zip(names, session.run(None, {k: v.numpy() for k, v in inputs.items()}), strict=True))


def predictions(batch: int, rows: int, nc: int = 3) -> torch.Tensor:
    """Clustered boxes, so that much is suppressed; some scores are equal."""
    generator = torch.Generator().manual_seed(rows)
    corner = torch.randint(0, 6, (batch, rows, 2), generator=generator) * 60.0
    centre = corner + torch.rand(batch, rows, 2, generator=generator)
    size = 40 + 30 * torch.rand(batch, rows, 2, generator=generator)
    confidence = torch.rand(batch, rows, 1 + nc, generator=generator).mul(16).round() / 16
    return torch.cat((centre, size, confidence), -1)


def rows_of(prediction: torch.Tensor):
    centre, half = prediction[..., :2], prediction[..., 2:4] / 2
    score, label = (prediction[..., 5:] * prediction[..., 4:5]).max(-1)
    return torch.cat((centre - half, centre + half), -1), score, label.float()


@pytest.mark.parametrize(("batch", "rows"), [(1, 400), (3, 200), (2, 5), (1, 1)])
@pytest.mark.parametrize("offset", [4096.0, 0.0])
def test_nms_keeps_what_the_project_keeps_in_its_order_for_any_batch(batch, rows, offset):
    settings = NmsSettings(conf_thres=0.2, iou_thres=0.45, class_offset=offset)
    model = network(ROWS)
    add_nms(model, settings, "batch")
    prediction = predictions(batch, rows)
    wanted = non_max_suppression(prediction, 0.2, 0.45, agnostic=offset == 0)
    found = run(model, *rows_of(prediction))
    assert found["num_dets"][:, 0].tolist() == [len(rows) for rows in wanted]
    for image, rows in enumerate(wanted):
        kept = len(rows)
        assert np.array_equal(found["det_boxes"][image, :kept], rows[:, :4].numpy())
        assert np.array_equal(found["det_scores"][image, :kept], rows[:, 4].numpy())
        assert np.array_equal(found["det_classes"][image, :kept], rows[:, 5].numpy())


def test_rows_behind_the_last_detection_are_blank_and_their_number_is_fixed():
    model = network(ROWS)
    add_nms(model, NmsSettings(conf_thres=0.5, topk=7), "batch")
    boxes = torch.tensor([[[0.0, 0, 10, 10], [50, 50, 60, 60]], [[0, 0, 10, 10], [0, 0, 10, 10]]])
    found = run(model, boxes, torch.tensor([[0.9, 0.6], [0.2, 0.1]]), torch.tensor([[2.0, 1.0], [0.0, 0.0]]))
    assert [found[name].shape for name in DETECTIONS] == [(2, 1), (2, 7, 4), (2, 7), (2, 7)]
    assert found["num_dets"].tolist() == [[2], [0]]
    assert found["det_classes"].tolist() == [[2, 1, -1, -1, -1, -1, -1], [-1] * 7]
    assert found["det_scores"][0, 2:].tolist() == [0] * 5 and not found["det_boxes"][0, 2:].any()
    assert not found["det_boxes"][1].any() and not found["det_scores"][1].any()


def test_end2end_gives_a_row_for_each_detection_of_every_image():
    model = network(ROWS)
    add_end2end(model, NmsSettings(conf_thres=0.2, iou_thres=0.45, class_offset=640.0))
    prediction = predictions(3, 200)
    rows = run(model, *rows_of(prediction))["output"]
    wanted = non_max_suppression(prediction, 0.2, 0.45)
    assert rows.shape == (sum(map(len, wanted)), 7)
    for image, boxes in enumerate(wanted):
        assert np.array_equal(rows[rows[:, 0] == image][:, [1, 2, 3, 4, 6, 5]], boxes.numpy())


def test_a_network_that_needs_no_suppression_is_cut_at_the_confidence_threshold():
    model = network(ROWS)
    add_threshold(model, NmsSettings(conf_thres=0.5, topk=3), "batch")
    boxes = torch.arange(12.0).view(1, 3, 4)
    found = run(model, boxes, torch.tensor([[0.9, 0.7, 0.5]]), torch.tensor([[1.0, 0.0, 2.0]]))
    assert found["num_dets"].tolist() == [[2]] and found["det_classes"].tolist() == [[1, 0, -1]]
    assert found["det_boxes"][0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 0, 0, 0]]


def test_tensorrt_gets_its_plugin_with_the_attributes_it_asks_for():
    model = network({"boxes": ["batch", 50, 4], "scores": ["batch", 50, 3]})
    add_tensorrt(model, NmsSettings(conf_thres=0.3, iou_thres=0.6, topk=20), "batch")
    node = model.graph.node[-1]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert (node.op_type, list(node.input), list(node.output)) == ("EfficientNMS_TRT", ["boxes", "scores"], DETECTIONS)
    assert attributes.pop("score_threshold") == pytest.approx(0.3)
    assert attributes.pop("iou_threshold") == pytest.approx(0.6)
    assert attributes == {
        "background_class": -1,
        "box_coding": 1,
        "max_output_boxes": 20,
        "plugin_version": b"1",
        "score_activation": 0,
    }
    outputs = model.graph.output
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in outputs}
    assert shapes == {
        "num_dets": ["batch", 1],
        "det_boxes": ["batch", 20, 4],
        "det_scores": ["batch", 20],
        "det_classes": ["batch", 20],
    }
    types = [value.type.tensor_type.elem_type for value in outputs]
    assert types == [TensorProto.INT32, TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT32]
