"""The command line of train.py: frozen against the public project's, extended without breaking its abbreviations."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from yolov7fast.cli.detr_flags import train_parser as detr_parser
from yolov7fast.cli.flags import NEW_FLAGS, REFERENCE_FLAGS, train_parser
from yolov7fast.cli.run_file import check_options
from yolov7fast.core.errors import UserError
from yolov7fast.training.distributed import world_from_environment
from yolov7fast.training.optimizer import freeze_layers

ROOT = Path(__file__).resolve().parents[2]
TYPES = {"str": str, "int": int, "float": float, None: None}
# defaults that were changed on purpose: the reference names a file that does not exist
CHANGED_DEFAULTS = {"--weights": ""}


def test_every_reference_flag_is_kept(golden):
    recorded = {flag["flag"]: flag for flag in golden("eval_cli.json")["train"]}
    ours = {flag.name: flag for flag in REFERENCE_FLAGS}
    assert set(ours) == set(recorded)
    for name, flag in recorded.items():
        options = ours[name].options
        assert options.get("default", False) == CHANGED_DEFAULTS.get(name, flag["default"]), name
        if name == "--cache-images":  # the bare flag still works; it may now also say where
            continue
        assert options.get("type") == TYPES[flag["type"]] or options.get("type") is str, name
        assert options.get("nargs") == flag["nargs"], name
        assert (options.get("action") == "store_true") == flag["store_true"], name


def test_new_flags_are_off_by_default():
    opt = train_parser().parse_args([])
    switches = [flag.dest for flag in NEW_FLAGS if flag.options.get("action") == "store_true"]
    assert len(switches) >= 10
    assert not any(getattr(opt, name) for name in switches)
    assert (opt.seed, opt.amp, opt.overfit, opt.loss_ota) == (None, "auto", 0, None)


@pytest.mark.parametrize(
    ("abbreviation", "value", "dest", "expected"),
    [
        ("--img", ["320"], "img_size", [320]),
        ("--batch", ["4"], "batch_size", 4),
        ("--cache", [], "cache_images", "ram"),
        ("--cache-im", ["disk"], "cache_images", "disk"),
        ("--label", ["0.1"], "label_smoothing", 0.1),
        ("--res", [], "resume", True),
        ("--local-rank", ["1"], "local_rank", 1),  # what torch.distributed.launch passes
        ("--e", ["3"], None, None),  # epochs, evolve, entity, exist-ok: ambiguous in the reference too
    ],
)
def test_abbreviations_of_reference_flags_go_on_working(abbreviation, value, dest, expected):
    if dest is None:
        with pytest.raises(SystemExit):
            train_parser().parse_args([abbreviation, *value])
        return
    assert getattr(train_parser().parse_args([abbreviation, *value]), dest) == expected


def test_fast_dataloader_alone_sets_only_itself():
    """The user's own check: the text of train.py up to the parsing line, then the three values."""
    text = (ROOT / "train.py").read_text().split("opt = parser.parse_args()")[0]
    check = "opt = parser.parse_args(['--fast-dataloader'])\n"
    check += "print(opt.fast_dataloader, opt.persistent_workers, opt.worker_tensor)"
    script = f"import io, sys\nprinted, sys.stdout = sys.stdout, io.StringIO()\nexec({text!r})\n"  # as in notebooks
    script += f"sys.stdout = printed\n{check}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "False"], done.stderr


def test_given_names_only_what_the_user_set():
    opt = train_parser().parse_args(["--epochs", "300", "--seed", "3"])
    assert opt.given == ["epochs", "seed"]


def test_config_file_gives_defaults_and_the_command_line_wins(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({"epochs": 2, "training": {"batch_size": 8}, "rect": True}))
    run = {"base": "base.yaml", "epochs": 4, "resize_schedule": [[1, 320], [20, 480]], "cache-images": "disk"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    opt = train_parser().parse_args(["--config", str(tmp_path / "run.yaml"), "--batch-size", "4"])
    assert (opt.epochs, opt.batch_size, opt.rect) == (4, 4, True)
    assert opt.resize_schedule == "1:320,20:480"
    assert opt.cache_images == "disk"
    assert opt.given == ["batch_size", "config"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("epoch: 3", "did you mean 'epochs'"),
        ("epochs: many", "epochs must be int"),
        ("rect: 1", "rect is a switch"),
        ("amp: fp8", "amp must be one of"),
        ("[1, 2]", "must hold a mapping"),
        ("a: [", "not valid YAML"),
        ("base: run.yaml", "leads back to itself"),
        ("base: nowhere.yaml", "does not exist"),
        ("base: 5", "base must name another run file"),
        ("1: 320", "must hold a mapping"),
        ("resize_schedule: [1, 320]", "resize_schedule must be a list of"),
        ("epochs: null", "epochs has no value"),
        ("name: '\udce9'", "not valid YAML in UTF-8"),
        ("training: {1: 2}", "1 is no name of a flag"),
        ("training: 5", "training is a heading with flags below it"),
        ("trainin: {epochs: 2}", "did you mean 'training'"),
        ("name: [a, b]", "name must be str"),
        ("project: {a: b}", "project must be str"),
    ],
)
def test_bad_config_files_are_named(tmp_path, capsys, content, complaint):
    path = tmp_path / "run.yaml"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(SystemExit) as stop:
        train_parser().parse_args(["--config", str(path)])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert complaint in message
    assert "run.yaml" in message or "nowhere.yaml" in message


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seed", "5000000000"], "--seed is 5000000000"),
        (["--seed", "-1"], "--seed is -1"),
        (["--micro-batch", "4"], "--micro-batch is a matter of --worker-tensor"),
        (["--overfit", "--subset-size", "5"], "leave out --subset-size"),
    ],
)
def test_contradicting_flags_are_named(arguments, complaint):
    with pytest.raises(UserError, match=complaint):
        check_options(train_parser().parse_args(arguments))


def test_a_launcher_that_sets_no_number_is_named(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(UserError, match="RANK is 'first', not a number"):
        world_from_environment()


def test_freezing_everything_is_refused():
    network = torch.nn.Module()
    network.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert freeze_layers(network, [1]) == ["model.0.weight", "model.0.bias"]
    with pytest.raises(UserError, match="--freeze 100 leaves nothing to train"):
        freeze_layers(network, [100])


def test_a_heading_with_nothing_below_it_is_none(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("training:\n  # epochs: 3\ndata:\nname: mine\n")
    opt = train_parser().parse_args(["--config", str(path)])
    assert (opt.name, opt.epochs) == ("mine", 300)


def test_a_mapping_on_the_command_line_lies_over_that_of_the_run_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: {network: {num_queries: 50, backbone_config: {depths: [1, 1], embedding_size: 8}}}\n")
    over = "{num_queries: 20, backbone_config: {embedding_size: 16}}"
    opt = detr_parser().parse_args(["--config", str(path), "--network", over])
    assert opt.network == {"num_queries": 20, "backbone_config": {"depths": [1, 1], "embedding_size": 16}}
    assert detr_parser().parse_args(["--config", str(path)]).network["num_queries"] == 50


@pytest.mark.parametrize(("value", "reason"), [("abc", "'abc' is not a mapping"), ("{a: [", "not YAML: ")])
def test_a_value_that_is_no_mapping_is_told_with_the_reason(capsys, value, reason):
    with pytest.raises(SystemExit):
        detr_parser().parse_args(["--network", value])
    assert f"argument --network: {reason}" in capsys.readouterr().err
