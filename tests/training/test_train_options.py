"""What the flags of train.py do, on a network and a data set small enough to run in this process."""

import csv
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import yolov7fast.nn.compiling
import yolov7fast.training.family
import yolov7fast.training.yolo_family
from tests.training.commands import assert_same_weights, small_run
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.predictors.predictor import PredictOptions, input_size, load_predictor
from yolov7fast.search import evolve
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training.checkpoints.resume import VERSION, Progress
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.start import trained_so_far
from yolov7fast.training.yolo_family import YoloFamily


def train(folder: Path, shapes: Path, *extra: str) -> tuple[int, Path]:
    """Exit code and run folder of one small training."""
    code = run(parser_for("train").parse_args(small_run(folder, shapes, "--epochs", "1", *extra)))
    return code, folder / "runs" / "run"


def rows(run_dir: Path) -> list[dict]:
    with (run_dir / "results.csv").open() as f:
        return list(csv.DictReader(f))


def test_a_run_leaves_the_files_that_upstream_leaves(tmp_path, shapes_small, draws):
    code, folder = train(tmp_path, shapes_small, "--seed", "1")
    assert code == 0
    for name in ("opt.yaml", "hyp.yaml", "results.txt", "results.csv", "results.png", "train_batch0.jpg"):
        assert (folder / name).stat().st_size > 0, name
    assert list(folder.glob("events.out.tfevents.*"))
    assert len((folder / "results.txt").read_text().split()) == 15
    stripped = load_checkpoint(folder / "weights" / "last.pt")
    assert list(stripped) == CHECKPOINT_KEYS
    assert stripped["epoch"] == -1 and stripped["ema"] is None and "resume" not in stripped
    assert next(stripped["model"].parameters()).dtype == torch.float16
    full = load_checkpoint(folder / "weights" / "epoch_000.pt")
    assert full["epoch"] == 0 and full["optimizer"] and full["resume"]
    hyp = yaml.safe_load((folder / "hyp.yaml").read_text())
    assert hyp == hyper.load_hyp("data/hyp.small.yaml")
    predictor = load_predictor(folder / "weights" / "best.pt", torch.device("cpu"), PredictOptions())
    assert predictor.img_size == 64 and input_size(predictor, 0) == 64  # the checkpoint says its image size


CHECKPOINT_KEYS = ["epoch", "best_fitness", "training_results", "model", "ema", "updates", "optimizer", "wandb_id"]
CHECKPOINT_KEYS += ["img_size", "family"]  # beyond upstream's
FAST = ["--fast-dataloader", "--workers", "2", "--cache-images", "disk", "--channels-last", "--amp", "bf16"]


def test_fast_flags_train_on_the_same_samples(tmp_path, shapes_small, monkeypatch):
    """With a seed, micro-collate and the disk cache give the very batches of the default path."""
    seen = []
    original = yolov7fast.training.yolo_family.YoloFamily.to_device

    def noted(self, batch, device):
        seen[-1].append((batch[0].clone(), batch[1].clone()))
        return original(self, batch, device)

    monkeypatch.setattr(yolov7fast.training.yolo_family.YoloFamily, "to_device", noted)
    for name, extra in (("default", []), ("fast", FAST)):
        seen.append([])
        (tmp_path / name).mkdir()
        cache = ["--cache-dir", str(tmp_path)]
        code, _ = train(tmp_path / name, shapes_small, "--seed", "1", "--shuffle", "--notest", *cache, *extra)
        assert code == 0
    assert len(seen[0]) == len(seen[1]) == 4
    for default, fast in zip(*seen, strict=True):
        assert torch.equal(default[0], fast[0]) and torch.equal(default[1], fast[1])


class PretendedWandb(ModuleType):
    """What the logger uses of the package, written down."""

    def __init__(self):
        super().__init__("wandb")
        self.logged, self.artifacts = {}, []
        self.run = SimpleNamespace(
            id="abc",
            log=lambda values, step: self.logged.setdefault(step, {}).update(values),
            log_artifact=lambda artifact, aliases: self.artifacts.append((artifact, aliases)),
            finish=lambda: self.logged.update(finished=True),
        )
        self.init = lambda **settings: self.run
        self.Image = lambda path: Path(path).name

    class Artifact:
        def __init__(self, name, type, metadata=None):
            self.name, self.files = name, []
            self.add_file = self.files.append


def test_weights_and_biases_gets_scalars_plots_and_checkpoints(tmp_path, shapes_small, monkeypatch):
    wandb = PretendedWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    flags = ["--wandb", "--bbox_interval", "2", "--save_period", "2", "--epochs", "3", "--seed", "1"]
    code, folder = train(tmp_path, shapes_small, *flags)
    assert code == 0 and wandb.logged["finished"]
    assert "metrics/mAP_0.5" in wandb.logged[0]
    assert [epoch for epoch in range(3) if "test_batch0_pred" in wandb.logged[epoch]] == [1]
    ((artifact, aliases),) = wandb.artifacts
    assert artifact.files == [str(folder / "weights" / "last.pt")] and aliases == ["latest", "epoch 1"]
    assert load_checkpoint(folder / "weights" / "epoch_002.pt")["wandb_id"] == "abc"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--wandb"], "--wandb needs the package wandb"),
        (["--data", "wrong.yaml"], r"wrong\.yaml: train: .*trian does not exist .*holds: train"),
    ],
)
def test_what_is_missing_is_told_before_anything_is_built(tmp_path, shapes_small, monkeypatch, capfd, flags, complaint):
    images = shapes_small / "images"
    wrong = {"train": f"{images}/trian", "val": f"{images}/val", "names": ["a", "b", "c", "d"]}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=complaint):
        train(tmp_path, shapes_small, *(str(tmp_path / flag) if ".yaml" in flag else flag for flag in flags))
    assert "Model Summary" not in capfd.readouterr().err and not (tmp_path / "runs").exists()


def test_layers_and_hyper_parameters_are_listed_where_asked_for(tmp_path, shapes_small, caplog):
    with caplog.at_level("INFO"):
        train(tmp_path, shapes_small, "--img", "65", "--max-iter", "1", "--notest")
    assert "hyperparameters: data/hyp.small.yaml (" in caplog.text and "Model Summary" in caplog.text
    assert "models.common.Conv" not in caplog.text and "lr0=" not in caplog.text
    assert caplog.text.count("--img-size 65 is not a multiple") == 1
    caplog.clear()
    train(tmp_path, shapes_small, "--verbose", "--exist-ok", "--max-iter", "1", "--notest")
    assert "models.common.Conv" in caplog.text and "lr0=" in caplog.text


def test_another_assigner_can_begin_late(tmp_path, shapes_small, monkeypatch):
    change = {"assigner_schedule": [[0, "plain"], [0.25, "tal"], [3, "ota"]]}
    used = []
    original = yolov7fast.training.yolo_family.YoloFamily.start_epoch

    def noted(self, epoch, batch_index, per_class_ap):
        original(self, epoch, batch_index, per_class_ap)
        used.append(self.assigner)

    monkeypatch.setattr(yolov7fast.training.yolo_family.YoloFamily, "start_epoch", noted)
    hyp = tmp_path / "hyp.yaml"
    hyp.write_text(yaml.safe_dump(hyper.load_hyp("data/hyp.small.yaml") | change))
    code, _ = train(tmp_path, shapes_small, "--epochs", "4", "--hyp", str(hyp), "--notest", "--nosave")
    assert code == 0
    assert used == ["plain", "tal", "tal", "ota"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--image-weights", "--adam", "--single-cls", "--workers", "2", "--fast-dataloader"],
        ["--quad", "--linear-lr", "--label-smoothing", "0.1", "--freeze", "2", "--auto-lr", "--v5-metric"],
        [
            "--rect",
            "--multi-scale",
            "--subset-size",
            "8",
            "--cache-images",
            "--deterministic",
            "--test-batch-size",
            "3",
        ],
    ],
)
def test_flags_combine_and_train(tmp_path, shapes_small, flags, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as --deterministic does
    code, folder = train(tmp_path, shapes_small, *flags)
    torch.use_deterministic_algorithms(False)
    assert code == 0
    assert np.isfinite(float(rows(folder)[0]["train/total"]))


def test_a_run_that_names_no_network_trains_yolov7_from_scratch(tmp_path, monkeypatch, caplog):
    built = []

    def build_model(config, *_):
        built.append((config.cfg, config.weights))
        raise UserError("enough")

    monkeypatch.setattr(yolov7fast.training.yolo_family, "build_model", build_model)
    opt = parser_for("train").parse_args(["--workers", "8", "--batch-size", "64", "--device", "cpu"])
    opt.data, opt.project = "data/shapes.yaml", str(tmp_path)
    data = DataYaml("shapes.yaml", 1, ["a"], train=str(tmp_path))
    monkeypatch.setattr(yolov7fast.training.family, "load_data_yaml", lambda *_, **__: data)
    with caplog.at_level("INFO"), pytest.raises(UserError, match="enough"):
        run(opt)
    assert built == [("cfg/training/yolov7.yaml", "")]
    assert "Neither --cfg nor --weights is given: training cfg/training/yolov7.yaml from scratch" in caplog.text
    caplog.clear()
    config = YoloTrainConfig(data="data/shapes.yaml", resume="runs/train/exp")  # has its network from the checkpoint
    with caplog.at_level("INFO"):
        assert YoloFamily.find_files(config, missing_ok=True).cfg == "cfg/training/yolov7.yaml"
    assert "from scratch" not in caplog.text


def failing(model):
    def call(*_):
        raise RuntimeError("no compiler here")

    return call


def test_compiling_changes_no_file_and_falls_back_when_it_fails(tmp_path, shapes_small, monkeypatch, caplog):
    """Dynamo without Inductor changes no number: the same weights, in files that can be read and resumed.

    Sizes are fixed: tracing for sizes that change is slow, and has its own test.
    """
    fixed = partial(torch.compile, backend="eager", dynamic=False)
    compilers = {"plain": None, "compiled": (partial(torch.compile, backend="eager"), fixed), "failed": (failing,) * 2}
    runs, logs = {}, {}
    for name, pair in compilers.items():
        (tmp_path / name).mkdir()
        caplog.clear()
        with monkeypatch.context() as patched, caplog.at_level("INFO"):
            if pair:
                patched.setattr(yolov7fast.nn.compiling.CompiledNet.__init__, "__defaults__", pair[:1])
                patched.setattr(yolov7fast.nn.compiling, "PART_COMPILER", pair[1])
                patched.setenv("USE_COMPILE", "1")
            code, runs[name] = train(tmp_path / name, shapes_small, "--seed", "1", "--notest")
        assert code == 0
        logs[name] = caplog.text
    for name in ("compiled", "failed"):
        assert_same_weights(*(runs[each] / "weights" / "epoch_000.pt" for each in ("plain", name)))
        left, right = (load_checkpoint(runs[each] / "weights" / "last.pt")["model"] for each in ("plain", name))
        assert left.state_dict().keys() == right.state_dict().keys()
    assert "Compiling the network" not in logs["plain"] and "continuing without it" not in logs["compiled"]
    assert len(re.findall(r"Model compiled successfully in \d+\.\d s", logs["compiled"])) == 1
    assert "compiled successfully" not in logs["failed"]
    for what in (" failed after", " of the loss failed", " of the assigner failed"):
        assert logs["failed"].count(f"torch.compile{what}") == 1
    assert logs["failed"].count("continuing without it: RuntimeError: no compiler here") == 4


def test_a_shape_that_fails_to_compile_later_falls_back_too(caplog):
    def compiler(model):
        def call(images):
            if images.shape[0] == 3:
                raise RuntimeError("no kernel for three")
            return model(images) + 1

        return call

    net = yolov7fast.nn.compiling.CompiledNet(torch.nn.Identity(), compiler)
    assert net(torch.zeros(4)).sum() == 4 and net(torch.zeros(4)).sum() == 4
    assert net(torch.zeros(3)).sum() == 0 and net(torch.zeros(4)).sum() == 0
    assert caplog.text.count("continuing without it: RuntimeError: no kernel for three") == 1


def test_evolution_keeps_a_table_and_the_best_set(tmp_path, shapes_small, monkeypatch):
    arguments = [
        str(Path(a).resolve()) if a.startswith(("data/", "cfg/")) else a for a in small_run(tmp_path, shapes_small)
    ]
    monkeypatch.chdir(tmp_path)
    opt = parser_for("train").parse_args([*arguments, "--epochs", "1", "--evolve"])
    monkeypatch.setattr(evolve.evolve, "__defaults__", ("", 2))
    assert run(opt) == 0
    folder = tmp_path / "runs" / "evolve"
    assert np.loadtxt(folder / "evolve.txt", ndmin=2).shape[0] == 2
    assert (folder / "evolve.png").is_file() and not (tmp_path / "evolve.txt").exists()
    assert hyper.load_hyp(folder / "hyp_evolved.yaml")["warmup_min_iters"] == 20
    assert not list((folder / "weights").glob("*.pt"))


def test_resuming_says_how_much_is_trained():
    def trained(batches):
        progress = vars(Progress(epoch=1, batch_index=batches))
        return trained_so_far({"epoch": 0, "resume": {"version": VERSION, "progress": progress}})

    assert trained_so_far({"epoch": 1}) == "2 epochs"
    assert [trained(n) for n in (0, 1, 3)] == ["1 epoch", "1 epoch and 1 batch", "1 epoch and 3 batches"]
