"""The parts of the trial runner that need no training: names and values, ranges, what a training leaves."""

import json
from pathlib import Path

import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tests.training.families.detr_commands import needs_transformers
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.reports.trial_ranking import CurvePoint, read_curve
from yolov7fast.search import trial_options as options
from yolov7fast.search.trial_training import Budget, YoloTrialTraining, read_space, read_trials, training_for
from yolov7fast.training.hyperparameters import load_hyp

SMOKE = "configs/tiny_smoke.yaml"
pytestmark = pytest.mark.usefixtures("project_root")


def written(folder: Path, name: str, content) -> Path:
    path = folder / name
    path.write_text(json.dumps(content) if name.endswith("json") else content)
    return path


# --- names and values -------------------------------------------------------------------------------------------------


def test_names_may_be_plain_or_dotted(tmp_path, trainer):
    trials = [
        {"lr0": 0.02, "batch_size": 8},
        {"hyp.lr0": "2e-2", "training.batch-size": 8.0},
    ]
    assert read_trials(written(tmp_path, "t.json", trials), trainer) == [{"lr0": 0.02, "batch_size": 8}] * 2


@pytest.mark.parametrize(
    ("trial", "complaint"),
    [
        ({"lr": 0.1}, "trial 2: unknown setting 'lr'; did you mean 'lrf'?"),
        ({"lr0": 20}, "trial 2: lr0 is 20, outside 0 to 10"),
        ({"batch_size": 0}, "trial 2: --batch-size is 0; it must be at least 1"),
        ({"adam": "yes"}, "trial 2: adam is a switch"),
        ({"overfit": 11}, "trial 2: --overfit 11 and --subset-size 100 name different numbers"),
        ({"hyp": "nowhere.yaml"}, "trial 2: nowhere.yaml does not exist"),
        ({"lr0": 0.1, "hyp.lr0": 0.1}, "trial 2: 'lr0' is given twice"),
        ({"epochs": 3}, "trial 2: 'epochs' is set for all trials by the budget"),
        ({"name": "mine"}, "trial 2: 'name' cannot be set by trials: use --output-dir"),
        (["lr0"], "trial 2 must be an object"),
        ({"lr0": float("nan")}, "trial 2: lr0 must be finite"),
        ({"label_smoothing": "nan"}, "trial 2: --label-smoothing is nan; it must be a finite number"),
        ({"resize_schedule": "1:320"}, "trial 2: 'resize_schedule' is set for all trials by the budget"),
    ],
)
def test_what_a_trial_cannot_be_is_named_before_anything_runs(tmp_path, trainer, trial, complaint):
    path = written(tmp_path, "t.json", [{"lr0": 0.1}, trial])
    with pytest.raises(UserError) as error:
        read_trials(path, trainer)
    assert complaint in str(error.value) and str(path) in str(error.value)


def test_a_list_of_too_many_trials_is_refused(tmp_path, trainer):
    with pytest.raises(UserError, match=r"t\.json lists 1,001 trials; at most 1,000: split the list"):
        read_trials(written(tmp_path, "t.json", [{}] * 1001), trainer)


def test_the_run_file_of_a_trial_gives_train_py_these_settings(tmp_path, trainer):
    folder = tmp_path / "trial_001"
    folder.mkdir()
    path = folder / "trial.yaml"
    settings = {"lr0": 0.02, "batch_size": 8, "loss_ota": 0}
    path.write_text(yaml.safe_dump(trainer.run_file(settings, 7, folder)))
    opt = parser_for("train").parse_args(["--config", str(path)])
    assert (opt.epochs, opt.img_size, opt.subset_size, opt.batch_size) == (5, [320], 100, 8)
    assert (opt.seed, opt.loss_ota, opt.data) == (7, 0, "data/shapes.yaml")
    assert Path(opt.project) / opt.name == folder and opt.exist_ok
    assert load_hyp(opt.hyp) == load_hyp("data/hyp.small.yaml") | {"lr0": 0.02}


@pytest.mark.parametrize("line", ["resume: runs/train/exp", "evolve: true"])
def test_a_base_that_is_no_new_training_is_refused(tmp_path, line):
    with pytest.raises(UserError, match="cannot be in the base configuration of trials"):
        YoloTrialTraining(written(tmp_path, "base.yaml", f"base: {Path(SMOKE).resolve()}\n{line}\n"), Budget())


def test_a_budgets_size_replaces_the_bases_resize_schedule(tmp_path):
    base = written(tmp_path, "base.yaml", f"base: {Path(SMOKE).resolve()}\nresize_schedule: [[1, 160], [2, 320]]\n")
    kept, budgeted = (YoloTrialTraining(base, Budget(size=size)) for size in (None, 96))
    assert kept.base_value("resize_schedule") == "1:160,2:320"
    assert budgeted.base_value("resize_schedule") == ""
    assert budgeted.run_file({}, 0, tmp_path)["resize_schedule"] == ""
    assert "resize_schedule" not in budgeted.full_run({}, tmp_path / "best.yaml")[0]


def test_a_full_run_has_the_settings_without_the_budget(tmp_path, trainer):
    content, arguments = trainer.full_run({"lr0": 0.02}, tmp_path / "best.yaml")
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    opt = parser_for("train").parse_args(arguments[1:])
    assert arguments[0] == "python train.py"
    assert (opt.epochs, opt.subset_size, opt.img_size, opt.name) == (100, 0, [320], "best")
    assert load_hyp(opt.hyp)["lr0"] == 0.02
    longer = YoloTrialTraining("configs/shapes.yaml", Budget(epochs=5, size=96))
    content, _ = longer.full_run({}, tmp_path / "best.yaml")
    assert content["epochs"] == 27 and "img_size" not in content


def test_the_shipped_list_suits_the_detr_baseline():
    path, base = "experiments/trials_lr_bs.json", "configs/detr_baseline.yaml"
    trials = read_trials(path, training_for(base)(base, Budget(epochs=5, subset=1000)))
    assert [set(trial) for trial in trials] == [{"lr", "batch_size"}] * len(trials) and len(trials) > 1


# --- DETR -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def detr_trainer():
    from yolov7fast.search.trial_training import DetrTrialTraining

    return DetrTrialTraining("configs/detr_smoke.yaml", Budget(epochs=1))


@needs_transformers
def test_any_key_of_the_networks_configuration_can_be_tried(tmp_path, detr_trainer):
    trials = [
        {"model.network.eos_coefficient": 0.2, "network.num_queries": 20.0},
        {"network.backbone_config.depths": [2, 1, 1, 1], "network.backbone_config.hidden_act": "silu"},
    ]
    first, second = read_trials(written(tmp_path, "t.json", trials), detr_trainer)
    assert first == {"network.eos_coefficient": 0.2, "network.num_queries": 20}
    network = detr_trainer.run_file(second, 0, tmp_path)["network"]
    assert network["backbone_config"]["depths"] == [2, 1, 1, 1]
    assert network["backbone_config"]["hidden_sizes"] == [16, 32, 64, 128]  # the base's
    assert network["backbone_config"]["hidden_act"] == "silu" and network["d_model"] == 96
    assert detr_trainer.base_value("network.eos_coefficient") == 0.1


@needs_transformers
@pytest.mark.parametrize(
    ("trial", "complaint"),
    [
        ({"network.num_querys": 20}, "unknown setting 'network.num_querys'; did you mean 'network.num_queries'?"),
        ({"network.num_queries": 20.5}, "num_queries"),
        ({"network.eos_coefficient": float("inf")}, "network.eos_coefficient must be finite"),
        ({"profile": 5}, "'profile' cannot be set by trials"),
    ],
)
def test_what_a_detr_trial_cannot_be_is_named(tmp_path, detr_trainer, trial, complaint):
    with pytest.raises(UserError) as error:
        read_trials(written(tmp_path, "t.json", [trial]), detr_trainer)
    assert complaint in str(error.value)


@needs_transformers
def test_a_range_of_broken_numbers_for_queries_is_refused(tmp_path, detr_trainer):
    with pytest.raises(UserError, match="num_queries"):
        read_space(written(tmp_path, "s.yaml", "network.num_queries: {uniform: [10, 30]}"), detr_trainer)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("data: {dataset: data/shapes.yaml}\n", "DetrTrialTraining"),
        ("family: detr\ncfg: x.yaml\n", "DetrTrialTraining"),  # what is named counts
        ("cfg: x.yaml\nlr: 0.1\n", "YoloTrialTraining"),  # a mistake, which the trainer names
    ],
)
def test_the_command_follows_from_the_base(tmp_path, text, name):
    assert training_for(written(tmp_path, "base.yaml", text)).__name__ == name


# --- ranges -----------------------------------------------------------------------------------------------------------


def test_ranges_of_a_search(tmp_path, trainer):
    text = "lr0: {log_uniform: [1e-3, 0.1]}\ntraining.batch_size: {int: [8, 16], step: 8}\nloss_ota: {choice: [0, 1]}"
    assert read_space(written(tmp_path, "s.yaml", text), trainer) == {
        "lr0": FloatDistribution(0.001, 0.1, log=True),
        "batch_size": IntDistribution(8, 16, step=8),
        "loss_ota": CategoricalDistribution((0, 1)),
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lr0: {uniform: [0, 20]}", "lr0 is 20, outside"),
        ("lr0: {log_uniform: [0, 1]}", "both above 0"),
        ("lr0: {normal: [0, 1]}", "must be one of log_uniform"),
        ("batch_size: {int: [8.5, 16]}", "whole numbers"),
        ("batch_size: {int: [8, 16], step: 0}", "step must be"),
        ("batch_size: {choice: [8, many]}", "batch_size must be int, not 'many'"),
        ("- lr0", "must hold the settings to search"),
        ("batch_size: {uniform: [8, 16]}", r"batch_size must be int, not 12\.9"),
    ],
)
def test_ranges_that_cannot_be(tmp_path, trainer, text, complaint):
    with pytest.raises(UserError, match=complaint):
        read_space(written(tmp_path, "s.yaml", text), trainer)


def test_the_shipped_experiments_are_valid(trainer):
    assert len(read_trials("experiments/lr_bs.json", trainer)) == 4
    assert len(read_space("experiments/space.yaml", trainer)) == 5


def test_time_budgets():
    assert [options.seconds(text) for text in ("2h", "1h30m", "45s", "0.5m", "")] == [7200, 5400, 45, 30, None]
    for text in ("2", "h", "-1h", "0s"):
        with pytest.raises(UserError, match="--time-budget"):
            options.seconds(text)


# --- what a training leaves -------------------------------------------------------------------------------------------


def test_a_row_that_is_still_being_written_waits(tmp_path):
    header = "epoch,train/box,train/total,labels,metrics/mAP_0.5,metrics/mAP_0.5:0.95,val/box,seconds\n"
    rows = "0,0.1,0.9,5,,,,1\n1,0.1,0.8,5,0.4,0.2,0.1,1\n2,0.1,0.7,5,0.5,0."
    (tmp_path / "results.csv").write_text(header + rows)
    assert read_curve(tmp_path) == [CurvePoint(0, 0.9), CurvePoint(1, 0.8, 0.2, 0.4)]
    (tmp_path / "results.csv").write_text(header[:20])
    assert read_curve(tmp_path) == []


@pytest.mark.parametrize(("base", "best"), [(SMOKE, "weights/best.pt"), ("configs/detr_smoke.yaml", "best.pth")])
def test_an_ended_trial_keeps_its_best_weights_alone(tmp_path, base, best):
    for name in ("best", "last", "previous", "epoch_000", "checkpoint_epoch_1"):
        path = (tmp_path / best).with_stem(name)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "results.csv").touch()
    training_for(base)(base, Budget()).delete_checkpoints(tmp_path)
    assert [path for path in tmp_path.rglob("*.pt*")] == [tmp_path / best] and (tmp_path / "results.csv").is_file()
