"""The proof refuses files that answer otherwise, and leaves nothing behind."""

import numpy as np
import onnx
import pytest
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.inference.export import export_files as export_run
from yolov7fast.inference.export.export_files import export_files
from yolov7fast.inference.export.export_plan import ExportPlan, NmsSettings
from yolov7fast.inference.export.export_proof import (
    OTHER,
    DenseRows,
    Difference,
    YoloComparison,
    paired_difference,
    prove,
    sample_images,
)
from yolov7fast.predictors.export_metadata import AXES, ExportForm


def sabotaged(monkeypatch, change):
    """Every ONNX model of an export is changed before it is written."""
    build = export_run.onnx_model

    def changed(*arguments):
        model = build(*arguments)
        change(model)
        return model

    monkeypatch.setattr(export_run, "onnx_model", changed)


def initializer(model, name: str):
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def scale_first_weights(model) -> None:
    """The first convolution is a little off, as after a wrong fusion."""
    weights = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 4)
    changed = onnx.numpy_helper.to_array(weights) * np.float32(1.01)
    weights.CopyFrom(onnx.numpy_helper.from_array(changed, weights.name))


def set_constant(name: str, values):
    def change(model) -> None:
        tensor = initializer(model, name)
        array = np.array(values, onnx.numpy_helper.to_array(tensor).dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))

    return change


@pytest.mark.parametrize(
    "change",
    [
        scale_first_weights,
        set_constant("iou_thres", [0.9]),
        set_constant("class_offset", 0.0),
        set_constant("most", [5]),
    ],
    ids=["weights", "iou", "offset", "most"],
)
def test_a_file_that_answers_otherwise_is_refused_and_none_is_left(mini, tmp_path, monkeypatch, change):
    (tmp_path / "mini.onnx").write_bytes(b"an older file")
    sabotaged(monkeypatch, change)
    plan = ExportPlan(ExportForm.NMS, (96, 96), free=AXES, nms=NmsSettings(0.001, 0.3))
    with pytest.raises(UserError, match=r"mini\.onnx is not written: at 1x96x96 its result differs by "):
        export_files(mini, plan, ["onnx"], folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mini.onnx"]
    assert (tmp_path / "mini.onnx").read_bytes() == b"an older file"


def test_a_pair_of_files_that_is_refused_leaves_nothing(mini, tmp_path, monkeypatch):
    sabotaged(monkeypatch, scale_first_weights)
    with pytest.raises(UserError, match=r"mini\.xml is not written"):
        export_files(mini, ExportPlan(ExportForm.GRID, (64, 64)), ["openvino"], folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_network_whose_answer_rounding_changes_proves_nothing(mini, tmp_path, monkeypatch):
    from yolov7fast.inference.export import export_proof as proof

    (file,) = export_files(mini, ExportPlan(ExportForm.GRID, (64, 64)), ["onnx"], folder=tmp_path)
    monkeypatch.setattr(proof, "BOUNDS", Difference(0.0, 0.0))
    monkeypatch.setattr(proof, "ROUNDING_LIMIT", Difference(0.0, 0.0))
    with pytest.raises(UserError, match=r"nothing can be compared, since the result of .* itself changes"):
        prove(file.path, mini, ExportPlan(ExportForm.GRID, (64, 64)), sample_images(None), file.path)


def test_beyond_the_bounds_the_rounding_of_the_checkpoint_itself_is_allowed(mini, tmp_path, monkeypatch):
    from yolov7fast.inference.export import export_proof as proof

    plan = ExportPlan(ExportForm.GRID, (64, 64))
    (file,) = export_files(mini, plan, ["onnx"], folder=tmp_path)
    monkeypatch.setattr(proof, "BOUNDS", Difference(1e-9, 1e-9))
    monkeypatch.setattr(proof, "rounding_error", lambda _, batch: [Difference(0.04, 4e-4)] * len(batch.images))
    report = prove(file.path, mini, plan, sample_images(None), file.path)
    assert "within float32 rounding of the .pt file itself" in str(report)
    monkeypatch.setattr(proof, "rounding_error", lambda _, batch: [Difference(1e-9, 1e-9)] * len(batch.images))
    with pytest.raises(UserError, match="is not written"):
        prove(file.path, mini, plan, sample_images(None), file.path)


# --- the measures -----------------------------------------------------------------------------------------------------


def test_rows_are_compared_image_by_image():
    boxes, scores = torch.rand(2, 50, 4), torch.rand(2, 50, 3)
    other = DenseRows(boxes.clone(), scores.clone())
    other.boxes[1, int(scores[1].amax(-1).argmax())] += 0.5
    other.scores[0, 7, 2] += 0.25
    first, second = YoloComparison.compare(other, DenseRows(boxes, scores))
    assert first == pytest.approx((0.0, 0.25)) and second == pytest.approx((0.5, 0.0), abs=1e-6)
    assert YoloComparison.compare(DenseRows(boxes[:, :4], scores), DenseRows(boxes, scores)) == [OTHER, OTHER]
    other.scores[0, 0, 0] = float("nan")
    assert YoloComparison.compare(other, DenseRows(boxes, scores))[0].score == float("inf")


def test_detections_in_any_order_are_paired_by_class_and_place():
    rows = torch.tensor([[0.0, 0, 9, 9, 0.9, 1], [50, 50, 80, 80, 0.5, 1], [50, 50, 80, 80, 0.4, 0]])
    assert paired_difference(rows.flip(0), rows) == Difference()
    changed = rows.clone()
    changed[1, 4] = 0.75
    assert paired_difference(changed.flip(0), rows) == Difference(0.0, 0.25)
    changed[1, 5] = 0
    assert paired_difference(changed, rows) == OTHER and paired_difference(rows[:2], rows) == OTHER
