"""`models` and `utils`: the import paths of WongKinYiu/yolov7 (upstream), as re-exports and nothing else."""

import ast
import importlib
import inspect

import pytest
import torch

from tests.conftest import ROOT

# what upstream's scripts, and scripts written for it, import; a name that goes from here breaks somebody's program
NAMES = {
    "models.common": (
        *("MP", "SP", "SPPCSPC", "Concat", "Conv", "DownC", "ImplicitA", "ImplicitM", "ReOrg", "RepConv", "Shortcut"),
        "autopad",
    ),
    "models.experimental": ("Ensemble", "attempt_load"),
    "models.yolo": ("Detect", "IAuxDetect", "IDetect", "Model"),
    "utils.autoanchor": ("check_anchors", "kmean_anchors"),
    "utils.datasets": (
        *("LoadImages", "LoadImagesAndLabels", "LoadStreams", "augment_hsv", "create_dataloader", "img2label_paths"),
        *("letterbox", "random_perspective"),
    ),
    "utils.general": (
        *("bbox_iou", "box_iou", "check_file", "check_img_size", "clip_coords"),
        *("coco80_to_coco91_class", "get_latest_run", "increment_path", "labels_to_class_weights"),
        *("labels_to_image_weights", "non_max_suppression", "scale_coords", "strip_optimizer", "wh_iou", "xyn2xy"),
        *("xywh2xyxy", "xywhn2xyxy", "xyxy2xywh"),
    ),
    "utils.loss": ("ComputeLoss", "ComputeLossAuxOTA", "ComputeLossOTA"),
    "utils.metrics": ("ConfusionMatrix", "ap_per_class", "compute_ap", "fitness"),
    "utils.plots": ("plot_images", "plot_mc_curve", "plot_pr_curve", "plot_results"),
    "utils.torch_utils": ("ModelEMA", "select_device", "time_synchronized"),
}
OURS = {"models.multihead": ("MultiHeadDetect", "MultiHeadDetectAttention")}  # a class path in our own checkpoints
FURTHER = {"utils.datasets": {"IMG_FORMATS"}}


@pytest.mark.parametrize("path", [*NAMES, *OURS])
def test_a_module_has_its_names_and_all_of_them_live_in_the_package(path):
    module = importlib.import_module(path)
    names = (NAMES | OURS)[path]
    assert set(module.__all__) == {*names, *FURTHER.get(path, ())}
    assert all(getattr(module, name).__module__.startswith("yolov7fast.") for name in names)


def test_there_are_no_other_modules():
    files = {
        path.relative_to(ROOT).with_suffix("") for top in ("models", "utils") for path in (ROOT / top).glob("*.py")
    }
    assert {".".join(path.parts) for path in files} == {*NAMES, *OURS, "models.__init__", "utils.__init__"}


@pytest.mark.parametrize("path", [*NAMES, *OURS])
def test_a_module_is_imports_alone(path):
    text = (ROOT / path.replace(".", "/")).with_suffix(".py").read_text()
    kinds = {type(node) for node in ast.parse(text).body}
    assert kinds <= {ast.Expr, ast.ImportFrom, ast.Assign, ast.AugAssign, ast.If} and len(text.splitlines()) < 35


@pytest.mark.parametrize(
    ("path", "name", "parameters"),
    [
        ("utils.general", "non_max_suppression", "prediction conf_thres iou_thres classes agnostic multi_label labels"),
        ("utils.general", "scale_coords", "img1_shape coords img0_shape ratio_pad"),
        ("utils.general", "bbox_iou", "box1 box2 x1y1x2y2 GIoU DIoU CIoU eps"),
        ("utils.general", "increment_path", "path exist_ok sep"),
        ("utils.datasets", "letterbox", "img new_shape color auto scaleFill scaleup stride"),
        (
            *("utils.datasets", "create_dataloader"),
            "path imgsz batch_size stride opt hyp augment cache pad rect rank world_size workers image_weights quad",
        ),
        ("models.experimental", "attempt_load", "weights map_location"),
        ("models.yolo", "Model", "cfg ch nc anchors"),
        ("utils.torch_utils", "select_device", "device batch_size"),
    ],
)
def test_calls_written_for_upstream_fit(path, name, parameters):
    """Same parameters in the same order; our own come behind them."""
    ours = list(inspect.signature(getattr(importlib.import_module(path), name)).parameters)
    wanted = parameters.split()
    assert ours[: len(wanted)] == wanted


def test_the_pieces_work_together_as_in_a_script_for_upstream(tmp_path):
    """Build, average, save, strip, load, predict: with nothing but the import paths of upstream."""
    from models.experimental import attempt_load
    from models.yolo import Model
    from utils.general import non_max_suppression, strip_optimizer
    from utils.torch_utils import ModelEMA, select_device
    from yolov7fast.checkpoint.checkpoint_reader import save_checkpoint

    network = Model("cfg/training/yolov7-tiny.yaml", nc=3)
    average = ModelEMA(network)
    average.update(network)
    path = tmp_path / "last.pt"
    save_checkpoint({"epoch": 1, "model": network, "ema": average.ema, "optimizer": None}, path)
    strip_optimizer(path)
    loaded = attempt_load(path, map_location=select_device("cpu"))
    with torch.no_grad():
        boxes = non_max_suppression(loaded(torch.zeros(1, 3, 64, 64))[0], 0.25, 0.45)
    assert len(boxes) == 1 and boxes[0].shape[1] == 6
