"""test.py as a user runs it: flags, figures, files, tasks, and mistakes reported in one line."""

import importlib.util
import inspect
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.mini_network import write_mini_weights
from tests.small_network import small_network
from yolov7fast.checkpoint.checkpoint_reader import save_checkpoint
from yolov7fast.cli.checks import check_test
from yolov7fast.cli.commands import test as command
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.evaluation.eval_result import MAP, MAP50, SUMMARY
from yolov7fast.evaluation.run_evaluation import test
from yolov7fast.predictors import yolo_predictor

test.__test__ = False  # pytest takes it for a test by its name
ROOT = Path(__file__).resolve().parents[2]

BCCD_NAMES = ["RBC", "WBC", "Platelets"]


@pytest.fixture(scope="session")
def untrained(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("weights") / "untrained.pt"
    save_checkpoint({"model": small_network(4, ["ball", "box", "cone", "star"]).half(), "epoch": -1}, path)
    return str(path)


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> str:
    """The recorded network: trained on BCCD by upstream for 120 epochs."""
    return str(write_mini_weights(tmp_path_factory.mktemp("weights") / "mini.pt"))


@pytest.fixture(scope="session")
def bccd_yaml(tmp_path_factory, bccd) -> str:
    path = tmp_path_factory.mktemp("bccd") / "bccd.yaml"
    splits = {split: str(bccd / "images" / split) for split in ("train", "val", "test")}
    path.write_text(yaml.safe_dump({**splits, "nc": 3, "names": BCCD_NAMES}))
    return str(path)


@pytest.fixture
def in_tmp(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def quick_curves(request, monkeypatch):
    """Curves take seconds to draw: only tests that ask for `draws` do it."""
    if "draws" not in request.fixturenames:
        monkeypatch.setattr("yolov7fast.evaluation.eval_outputs.draw_curves", lambda *_: None)


@pytest.fixture
def draws():
    """Asks for the curves to be drawn."""


def run(*arguments: str):
    """test.py in this process; its result."""
    opt = parser_for("test").parse_args([*arguments, "--device", "cpu", "--workers", "0"])
    check_test(opt)
    return command.run(opt)


def on_shapes(shapes: Path, weights: str, *more: str):
    return run("--weights", weights, "--data", str(shapes / "shapes.yaml"), "--img", "64", "--batch", "4", *more)


# --- flags ------------------------------------------------------------------------------------------------------------


def test_the_function_takes_the_arguments_of_upstream_in_its_order():
    taken = inspect.signature(test).parameters.values()
    positional = [(p.name, p.default) for p in taken if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [
        ("data", inspect.Parameter.empty), ("weights", None), ("batch_size", 32), ("imgsz", 640),
        ("conf_thres", 0.001), ("iou_thres", 0.6), ("save_json", False), ("single_cls", False), ("augment", False),
        ("verbose", False), ("model", None), ("dataloader", None), ("save_dir", Path("")), ("save_txt", False),
        ("save_hybrid", False), ("save_conf", False), ("plots", True), ("wandb_logger", None), ("compute_loss", None),
        ("half_precision", True), ("trace", False), ("is_coco", False), ("v5_metric", False),
    ]  # fmt: skip
    spec = importlib.util.spec_from_file_location("test_command", ROOT / "test.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.test is test


# --- figures ----------------------------------------------------------------------------------------------------------


def check_run(golden, name: str, result, tolerance=0.003) -> None:
    want = golden("eval_bccd.json")[name]
    np.testing.assert_allclose(
        [result.summary[name] for name in SUMMARY], want["results_P_R_mAP50_mAP"], atol=tolerance
    )
    for i, cls in enumerate(BCCD_NAMES):
        np.testing.assert_allclose(result.classes.ap[i, 0], want["per_class"][cls]["AP50"], atol=2 * tolerance)
        assert result.labels[i] == want["per_class"][cls]["labels"]


def test_whole_run_on_bccd_as_recorded(golden, bccd_yaml, trained, in_tmp, draws, capsys):
    result = run(*f"--weights {trained} --data {bccd_yaml} --img 320 --batch 16 --save-txt --save-conf".split())
    check_run(golden, "val_320_b16", result)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for want in golden("eval_bccd.json")["val_320_b16"]["printed"]:
        name, images, labels, *figures = want.split()
        (row,) = [row for row in rows if row[:3] == [name, images, labels] and len(row) == 7]
        np.testing.assert_allclose([float(x) for x in row[3:]], [float(x) for x in figures], atol=0.006)
    folder = in_tmp / "runs/test/exp"
    assert {*golden("eval_bccd.json")["files_of_run"], "metrics.json", "per_class.csv"} == {
        p.name for p in folder.iterdir()
    }
    assert len(list((folder / "labels").iterdir())) == 87


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, arguments",
    [
        ("val_320_b16_v5metric", "--v5-metric"),
        ("val_320_b16_iou60", "--iou 0.6"),
        ("val_320_b16_conf25_iou45", "--conf 0.25 --iou 0.45"),
        ("val_416_b8", "--img 416 --batch 8"),
        ("test_320_b16", "--task test"),
        ("val_320_b16_tta", "--augment"),
        ("val_320_b16_traced", "--no-trace"),
        ("val_320_b16_hybrid", "--save-hybrid"),
    ],
)
def test_further_runs_on_bccd_as_recorded(golden, bccd_yaml, trained, in_tmp, name, arguments):
    given = f"--weights {trained} --data {bccd_yaml} --img 320 --batch 16 {arguments}"
    check_run(golden, name, run(*given.split()))


@pytest.mark.slow
def test_pycocotools_on_bccd_as_recorded(golden, bccd_yaml, trained, in_tmp):
    result = run(*f"--weights {trained} --data {bccd_yaml} --img 320 --batch 16 --save-json".split())
    want = golden("eval_bccd.json")
    np.testing.assert_allclose(list(result.coco.values()), want["pycocotools"]["stats"], atol=0.01)
    assert (result.metrics[MAP50], result.metrics[MAP]) == (result.coco["AP50"], result.coco["AP"])
    assert len(json.loads((in_tmp / "runs/test/exp/mini_predictions.json").read_text())) == 26100


# --- the project's own data set ---------------------------------------------------------------------------------------


def test_a_run_writes_what_is_asked_for(shapes_small, untrained, in_tmp, capsys):
    result = on_shapes(
        shapes_small, untrained, "--save-json", "--save-txt", "--save-per-class-ap", "ap.json", "--verbose"
    )
    folder = in_tmp / "runs/test/exp"
    rows = json.loads((folder / "untrained_predictions.json").read_text())
    assert rows and set(rows[0]) == {"image_id", "category_id", "bbox", "score"}
    assert len(result.coco) == 12 and result.metrics[MAP] == result.coco["AP"]
    assert set(json.loads(Path("ap.json").read_text())) == {"map50", "map", "per_class"}
    out = capsys.readouterr().out
    assert "Speed: " in out and "pycocotools" in out and f"Results saved to {folder.relative_to(in_tmp)}" in out
    document = json.loads((folder / "metrics.json").read_text())
    assert document["images"] == 8 and document["settings"]["imgsz"] == 64 and document["coco"] == result.coco


def test_the_table_names_its_thresholds_and_the_flags_that_give_those_of_training(
    shapes_small, untrained, in_tmp, capsys
):
    on_shapes(shapes_small, untrained)
    out = capsys.readouterr().out
    assert "Thresholds: confidence 0.001, NMS IoU 0.65\n" in out
    assert "Validation during training uses other thresholds: --iou-thres 0.6 reproduces its values\n" in out
    on_shapes(shapes_small, untrained, "--iou-thres", "0.6")
    out = capsys.readouterr().out
    assert "Thresholds: confidence 0.001, NMS IoU 0.6\n" in out and "other thresholds" not in out


def test_no_half_runs_in_single_precision(shapes_small, untrained, in_tmp, monkeypatch, capsys):
    def dtype_on_cuda(model, options):
        return torch.float16 if options.half else None

    monkeypatch.setattr(yolo_predictor, "half_dtype", dtype_on_cuda)
    on_shapes(shapes_small, untrained)
    assert ", in float16\n" in capsys.readouterr().out
    on_shapes(shapes_small, untrained, "--no-half", "--cache-images", "disk", "--cache-dir", "packs")
    assert ", in float32\n" in capsys.readouterr().out
    assert sorted(path.name for path in Path("runs/test").iterdir()) == ["exp", "exp2"]
    assert [path.suffix for path in Path("packs").iterdir()] == [".pack"] and not list(shapes_small.rglob("*.pack"))


def test_task_study_writes_rows_zip_and_plot(shapes_small, untrained, in_tmp, monkeypatch):
    assert list(command.STUDY_SIZES) == [256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536]
    monkeypatch.setattr(command, "STUDY_SIZES", (64, 96))
    on_shapes(shapes_small, untrained, "--task", "study")
    rows = np.loadtxt("study_shapes_untrained.txt")
    assert rows.shape == (2, 13)
    assert rows[:, 10:].tolist() == [[64, 64, 4], [96, 96, 4]]
    assert Path("study.zip").exists() and Path("study.png").stat().st_size > 1000


def test_single_class_counts_all_as_one(shapes_small, untrained, in_tmp):
    result = on_shapes(shapes_small, untrained, "--single-cls", "--save-json")
    assert result.labels.shape == (1,) and result.per_class_ap.shape == (1,)
    assert {row["category_id"] for row in json.loads(Path("runs/test/exp/untrained_predictions.json").read_text())} == {
        0
    }


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--conf 1.5", "--conf-thres is 1.5; it must be"),
        ("--iou -0.1", "--iou-thres is -0.1; it must be"),
        ("--img -1", "--img-size is -1; it must be at least 0"),
        ("--batch 0", "--batch-size is 0; it must be"),
        ("--task validate", "--task validate is not known: it is one of train, val, test, speed, study"),
        ("--annotations a.json", "--annotations is read by --save-json only"),
        ("--save-json --annotations a.json", "a.json does not exist"),
        ("--task test", "has no key 'test:'"),
        ("--weights nowhere.pt", "nowhere.pt does not exist"),
        ("--data nowhere.yaml", "nowhere.yaml does not exist"),
        ("--device 7", "--device 7: torch"),
    ],
)
def test_mistakes_are_named(shapes_small, untrained, in_tmp, arguments, message):
    given = ["--weights", untrained, "--data", str(shapes_small / "shapes.yaml"), "--img", "64", "--device", "cpu"]
    opt = parser_for("test").parse_args([*given, *arguments.split()])
    with pytest.raises(UserError) as error:
        check_test(opt)
        command.run(opt)
    assert message in str(error.value)


def test_weights_of_other_classes_are_refused(shapes_small, tmp_path, in_tmp):
    save_checkpoint({"model": small_network(2, ["cat", "dog"]).half(), "epoch": -1}, tmp_path / "two.pt")
    with pytest.raises(UserError, match=r"two\.pt has 2 classes \(cat, dog\), but .*shapes\.yaml has nc: 4"):
        on_shapes(shapes_small, str(tmp_path / "two.pt"))
    assert on_shapes(shapes_small, str(tmp_path / "two.pt"), "--single-cls").seen == 8


@pytest.fixture
def unlabelled(shapes_small, tmp_path) -> Path:
    (tmp_path / "images/val").mkdir(parents=True)
    for image in (shapes_small / "images/val").iterdir():
        os.link(image, tmp_path / "images/val" / image.name)
    data = {"val": str(tmp_path / "images/val"), "nc": 4, "names": ["ball", "box", "cone", "star"]}
    (tmp_path / "shapes.yaml").write_text(yaml.safe_dump(data))
    return tmp_path


def test_a_set_without_labels_is_refused_unless_boxes_are_wanted(unlabelled, untrained, in_tmp, caplog):
    with pytest.raises(UserError, match="none of the 8 images has a label"):
        on_shapes(unlabelled, untrained)
    result = on_shapes(unlabelled, untrained, "--save-json", "--name", "boxes")
    assert result.coco is None and "all metrics will be 0" in caplog.text
    assert json.loads(Path("runs/test/boxes/untrained_predictions.json").read_text())


def test_a_label_beyond_nc_is_named(shapes_small, untrained, in_tmp):
    data = load_data_yaml(str(shapes_small / "shapes.yaml"))
    with pytest.raises(UserError, match=r"labels/val/\d+\.txt:\d+: class [123], but .* has nc: 1"):
        test(
            {"val": data.val, "nc": 1, "names": ["ball"]},
            model=small_network(1, ["ball"]),
            imgsz=64,
            workers=0,
            save_dir=in_tmp,
        )
