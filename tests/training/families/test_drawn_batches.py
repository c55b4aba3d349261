"""The images of the first training batches that a run draws."""

from types import SimpleNamespace

import torch

import yolov7fast.training.family as base
from yolov7fast.training.yolo_family import YoloFamily


def test_boxes_carry_the_names_of_their_classes(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(base, "plot_images", lambda *arguments: seen.append(arguments))
    family = object.__new__(YoloFamily)
    family.run_dir, family.names, family.draws_plots = tmp_path, ["cat", "dog"], True
    family.world, family.pending_plots = SimpleNamespace(is_main=True), []
    family.plot_executor = SimpleNamespace(submit=lambda function, *arguments: function(*arguments))
    batch = torch.zeros(1, 3, 8, 8), torch.zeros(2, 6), ["a.jpg"], None
    family.draw_batch(batch, 0)
    family.draw_batch(batch, YoloFamily.drawn_batches)
    ((_, _, paths, file, names),) = seen
    assert (paths, file, names) == (["a.jpg"], tmp_path / "train_batch0.jpg", ["cat", "dog"])
