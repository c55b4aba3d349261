"""The table of flags: each row is complete, and limits, resuming and trials follow from it."""

from collections import Counter

import pytest

from yolov7fast.cli import flags as table
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.flags import TABLE, Flag, flags_of, register
from yolov7fast.cli.flags.row import GROUPS
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.search.trial_training import Budget

COMMANDS, FAMILIES = ("train", "test", "detect"), ("yolo", "detr")
PLACES = [("train", "yolo"), ("train", "detr"), ("test", "yolo"), ("detect", "yolo")]


def test_every_row_is_complete():
    known = {*COMMANDS, *(f"{command} {family}" for command, family in PLACES)}
    for flag in TABLE:
        assert flag.help and flag.group in GROUPS and flag.where, flag.name
        assert set(flag.where) <= known and set(flag.changed) <= known | set(FAMILIES), flag.name
        assert set(flag.upstream) <= set(COMMANDS), flag.name
        assert not flag.trials.budget or flag.trials.budget in Budget._fields, flag.name


@pytest.mark.parametrize(("command", "family"), PLACES)
def test_a_command_has_one_row_for_each_of_its_flags(command, family):
    names = Counter(flag.dest for flag in TABLE if flag.exists_in(command, family))
    assert [name for name, count in names.items() if count > 1] == []


NEVER_RARE = {  # flags that users' documents name
    *(
        "fast_dataloader",
        "persistent_workers",
        "worker_tensor",
        "loss_ota",
        "workers",
        "batch_size",
        "data",
        "img_size",
    ),
    *("cfg", "weights", "hyp", "epochs", "nosave", "noautoanchor", "name", "project", "device", "config"),
    *("resume", "subset_size", "subset_seed", "overfit", "max_iter", "eval_interval", "resize_schedule", "amp"),
}


@pytest.mark.parametrize(("command", "family"), PLACES)
def test_help_stands_under_headings_with_defaults_and_rare_flags_are_in_help_all(command, family, capsys):
    printed = {}
    for asked in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as left:
            parser_for(command, family).parse_args([asked])
        printed[asked] = " ".join(capsys.readouterr().out.split())
        assert left.value.code == 0
    text = printed["--help-all"]
    unbroken = text.replace(" ", "")  # lines also break behind hyphens
    flags = flags_of(command, family)
    for name, flag in flags.items():
        assert flag.name in text and flag.help.replace(" ", "") in unbroken, name
        assert (f" {flag.name} " in printed["--help"] or f" {flag.name}," in printed["--help"]) != flag.rare, name
        assert not (flag.rare and name in NEVER_RARE), name
    rare = sum(flag.rare for flag in flags.values())
    assert 0 < rare < len(flags) / 2 and f"--help-all show {rare} rarely used flags" in printed["--help"]
    assert "data:" in text and "network:" in text and "devices:" in text
    assert "(default: False)" not in text and "(default: None)" not in text
    batch = flags["batch_size"]
    assert f"{batch.help} (default: {batch.default})" in text


@pytest.mark.parametrize("family", FAMILIES)
def test_every_lower_limit_of_training_is_held(family):
    limited = {name: flag for name, flag in flags_of("train", family).items() if flag.low is not None}
    assert len(limited) > 12
    for name, flag in limited.items():
        opt = parser_for("train", family).parse_args([])
        too_low = flag.type(flag.low - 1)
        setattr(opt, name, [too_low] if flag.nargs == "+" else too_low)
        with pytest.raises(UserError, match=f"{flag.name} is {too_low}; it must be "):
            check_train(opt, family)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_passes_no_limit(value):
    opt = parser_for("train", "detr").parse_args(["--lr", str(value)])
    with pytest.raises(UserError, match=r"--lr is (nan|inf); it must be a finite number"):
        check_train(opt, "detr")


def test_what_makes_a_run_that_run_is_fixed_on_resume():
    fixed = {family: {n for n, flag in flags_of("train", family).items() if flag.fixed} for family in FAMILIES}
    shared = {"weights", "data", "batch_size", "img_size", "single_cls", "seed", "subset_size", "resize_schedule"}
    assert shared < fixed["yolo"] and shared < fixed["detr"]
    assert {"hyp", "loss_ota", "freeze"} < fixed["yolo"]
    assert not {"epochs", "workers", "device", "name", "patience"} & fixed["yolo"]


def test_a_further_family_has_the_shared_flags_and_its_own_rows(monkeypatch):
    monkeypatch.setattr(table, "TABLE", list(TABLE))
    own = [
        Flag("--anchor-free", bool, False, "no anchors", group="network", where=("train third",)),
        Flag("--epochs", int, 7, "number of epochs", group="optimisation", where=("train third",), low=1),
    ]
    register(own)
    flags = flags_of("train", "third")
    assert flags["epochs"].default == 7 and "anchor_free" in flags and "data" in flags
    assert "cfg" not in flags and "architecture" not in flags
    assert flags_of("train", "yolo")["epochs"].default == 300


def test_an_unknown_flag_is_answered_by_the_nearest(capsys):
    with pytest.raises(SystemExit) as stop:
        parser_for("train").parse_args(["--epoks", "3"])
    message = capsys.readouterr().err
    assert stop.value.code == 2 and "unknown flag --epoks 3; did you mean '--epochs'?" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("flag", ["--fast-augment", "--reduced-decode"])
def test_a_removed_flag_says_why_it_is_gone(flag, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        parser_for("train").parse_args([flag])
    assert stop.value.code == 2 and f"error: {flag} was removed: it changed" in capsys.readouterr().err
    (tmp_path / "run.yaml").write_text(f"{flag.lstrip('-').replace('-', '_')}: true\n")
    with pytest.raises(SystemExit):
        parser_for("train").parse_args(["--config", str(tmp_path / "run.yaml")])
    assert "run.yaml: " in (err := capsys.readouterr().err) and "was removed" in err
