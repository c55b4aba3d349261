"""What a run prints first and last, and what it warns of before it begins."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import config_of
from yolov7fast.evaluation.eval_result import MAP, MAP50
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.detr_family import DetrFamily
from yolov7fast.training.distributed import World
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.logging import messages
from yolov7fast.training.logging.reporter import make_loggers
from yolov7fast.training.optimizer import YoloSchedule
from yolov7fast.training.trainer import Outcome
from yolov7fast.training.yolo_family import YoloFamily


def config(*flags: str, family: str = "yolo", folder="runs/train/exp"):
    opt = parser_for("train", family).parse_args(["--data", "my.yaml", *flags])
    return replace(config_of(opt, family), save_dir=str(folder))


def family(config, images: int = 205, batches: int = 10, generate: str | None = None) -> YoloFamily:
    """A family of which nothing is built but what the first lines need."""
    made = object.__new__(YoloFamily)
    made.config, made.hyp = config, load_hyp(config.hyp)
    made.loader = type("Loader", (), {"__len__": lambda _: batches, "num_workers": 2})()
    made.dataset = range(images)
    made.data = SimpleNamespace(generate=generate)
    made.img_size = made.test_size = 320
    made.schedule = YoloSchedule(made.hyp, batches, config.epochs, 16)
    return made


def first_lines(capsys, *flags: str, is_fresh: bool = True, **facts) -> str:
    messages.print_header(family(config(*flags), **facts), is_fresh)
    return capsys.readouterr().out


# --- the warm-up ------------------------------------------------------------------------------------------------------


def test_a_run_that_never_leaves_its_warm_up_says_what_to_add(capsys):
    text = first_lines(capsys, "--epochs", "26", "--weights", "own.pt")
    assert "WARNING: the learning rate warms up for 1,000 iterations, and this run has 260" in text
    assert "Add more --epochs, or choose --hyp small or a file with lower warmup_epochs and warmup_min_iters" in text
    assert "WARNING" not in first_lines(capsys, "--epochs", "26", "--weights", "own.pt", "--hyp", "small")


# --- start weights ----------------------------------------------------------------------------------------------------


def test_a_small_data_set_without_start_weights_is_told_of_them(capsys):
    text = first_lines(capsys, "--cfg", "cfg/training/yolov7-tiny.yaml", "--hyp", "small")
    assert "WARNING: no start weights (--weights is empty)" in text and "205 images" in text
    assert "Add --weights yolov7-tiny.pt" in text


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--weights", "own.pt"], {}),
        ([], {"images": 118_000}),
        ([], {"generate": "shapes"}),
        (["--subset-size", "100"], {}),
        (["--cfg", "mine.yaml"], {}),
        ([], {"is_fresh": False}),
    ],
)
def test_nobody_else_is(capsys, flags, facts):
    text = first_lines(capsys, "--cfg", "cfg/training/yolov7.yaml", "--hyp", "small", *flags, **facts)
    assert "no start weights" not in text


# --- the length of a run ----------------------------------------------------------------------------------------------


def test_the_header_announces_what_will_be_trained(capsys):
    shorter = first_lines(capsys, "--epochs", "3", "--max-iter", "4")
    assert shorter.endswith("Starting training for 4 iterations (--max-iter), 10 an epoch...\n")


# --- the end ----------------------------------------------------------------------------------------------------------


def last_lines(capsys, folder, progress: Progress, *flags: str, family=YoloFamily) -> list[str]:
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    for name in ("best", "last"):
        (folder / "weights" / f"{name}{family.checkpoint_suffix}").touch()
    for name in ("results.png", "index.html", "opt.yaml"):
        (folder / name).touch()
    made = object.__new__(family)
    made.config, made.test_size, made.world = config(*flags, family=family.name, folder=folder), 320, World()
    messages.print_end(Outcome({}, progress, 0, 0.1), made)
    return capsys.readouterr().out.splitlines()


BEST = {"best_epoch": 21, "best_metrics": {MAP50: 0.7853, MAP: 0.5012}}


def test_the_last_lines_name_the_best_epoch_its_file_and_what_to_do_next(tmp_path, capsys):
    progress = Progress(epoch=26, global_step=260, seconds=360.0, **BEST)
    done, best, results, _, test, detect = last_lines(capsys, tmp_path, progress, "--epochs", "26")
    file = tmp_path / "weights" / "best.pt"
    assert done == "26 epochs completed in 0.100 hours."
    assert best == f"Best epoch: 21/25, mAP@.5 0.785, mAP@.5:.95 0.501: {file}"
    assert results == f"Results in {tmp_path}: index.html, results.png"
    assert test == f"  python test.py --weights {file} --data my.yaml --img-size 320 --iou-thres 0.6"
    assert detect == f"  python detect.py --weights {file} --source FOLDER --img-size 320"


def test_the_commands_of_the_last_lines_are_understood(tmp_path, capsys):
    flags = ["--single-cls", "--keep-partial-labels", "--v5-metric"]
    *_, test, detect = last_lines(capsys, tmp_path / "my run", Progress(epoch=300), *flags)
    assert "'" in test  # a folder with a blank
    for command, line in (("test", test), ("detect", detect)):
        opt = parser_for(command).parse_args(line.replace("'", "").replace("my run", "my_run").split()[2:])
        assert opt.img_size == 320
        if command == "test":
            assert opt.iou_thres == 0.6 and opt.single_cls and opt.keep_partial_labels and opt.v5_metric


def test_what_some_runs_end_with(tmp_path, capsys):
    """By their iterations; by older versions, which do not know the best epoch; of DETR; with the verdict alone."""
    done, best, *_ = last_lines(capsys, tmp_path, Progress(epoch=1, global_step=4), "--max-iter", "4")
    assert done.startswith("4 iterations (--max-iter) completed in ")
    assert best == f"Best epoch: {tmp_path / 'weights' / 'best.pt'}"
    *_, test, detect = last_lines(capsys, tmp_path, Progress(epoch=50), family=DetrFamily)
    assert test.startswith("  python test.py --weights ") and "best.pth --data my.yaml" in test
    assert detect.startswith("  python detect.py ")
    assert not any("test.py" in line for line in last_lines(capsys, tmp_path, Progress(epoch=3), "--overfit"))


def test_printed_commands_are_quoted(tmp_path, capsys, caplog):
    folder = tmp_path / "é runs"
    made = SimpleNamespace(name="yolo", world=World())
    made.config = config("--project", str(folder), "--epochs", "3", folder=folder)
    with caplog.at_level("INFO"):
        for logger in make_loggers(made.config, folder, None):
            logger.close()
    assert f"tensorboard --logdir '{folder}'" in caplog.text
    assert messages.print_end(Outcome({}, Progress(epoch=1), 130, 0.1), made) == 130
    assert capsys.readouterr().out == f"stopped in epoch 1/2; resume with: python train.py --resume '{folder}'\n"
