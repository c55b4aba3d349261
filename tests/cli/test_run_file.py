"""Run files: flags as yaml, with inheritance, below the command line; mistakes in them are named."""

import pytest
import yaml

from yolov7fast.cli.parser import parser_for


def test_config_file_gives_defaults_and_the_command_line_wins(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({"epochs": 2, "training": {"batch_size": 8}, "rect": True}))
    run = {"base": "base.yaml", "epochs": 4, "resize_schedule": [[1, 320], [20, 480]], "cache-images": "disk"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    opt = parser_for("train").parse_args(["--config", str(tmp_path / "run.yaml"), "--batch-size", "4"])
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
        ("name: '\udce9'", "not valid YAML in UTF-8"),
        ("training: {1: 2}", "1 is not the name of a flag"),
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
        parser_for("train").parse_args(["--config", str(path)])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert complaint in message
    assert "run.yaml" in message or "nowhere.yaml" in message


def test_a_heading_with_nothing_below_it_is_none(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("training:\n  # epochs: 3\ndata:\nname: mine\n")
    opt = parser_for("train").parse_args(["--config", str(path)])
    assert (opt.name, opt.epochs) == ("mine", 300)


def test_a_mapping_on_the_command_line_lies_over_that_of_the_run_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: {network: {num_queries: 50, backbone_config: {depths: [1, 1], embedding_size: 8}}}\n")
    over = "{num_queries: 20, backbone_config: {embedding_size: 16}}"
    opt = parser_for("train", "detr").parse_args(["--config", str(path), "--network", over])
    assert opt.network == {"num_queries": 20, "backbone_config": {"depths": [1, 1], "embedding_size": 16}}
    assert parser_for("train", "detr").parse_args(["--config", str(path)]).network["num_queries"] == 50


@pytest.mark.parametrize("family", ["yolo", "detr"])
def test_null_means_the_default_also_over_a_base(tmp_path, family):
    (tmp_path / "base.yaml").write_text("training: {subset_size: 5, epochs: 3, resize_schedule: [[1, 64]]}\n")
    nothing = "resume: null, subset_size: null, resize_schedule: null, overfit: null, epochs: null, nosave: null"
    path = tmp_path / "run.yaml"
    path.write_text(f"base: base.yaml\ntraining: {{{nothing}}}\n")
    opt, plain = (parser_for("train", family).parse_args(given) for given in (["--config", str(path)], []))
    names = ("resume", "subset_size", "resize_schedule", "overfit", "epochs", "nosave")
    assert [getattr(opt, name) for name in names] == [getattr(plain, name) for name in names]
