"""The command line of train.py: frozen against upstream's, extended without breaking its abbreviations."""

import subprocess
import sys
from pathlib import Path

import pytest

from yolov7fast.cli.checks import check_detect, check_test, check_train
from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import config_of
from yolov7fast.core.errors import UserError
from yolov7fast.training.distributed import world_from_environment

ROOT = Path(__file__).resolve().parents[2]
TYPES = {"str": str, "int": int, "float": float, None: str}
# defaults that were changed on purpose: upstream names a file that does not exist
CHANGED_DEFAULTS = {"--weights": ""}


@pytest.mark.parametrize("command", ["train", "test", "detect"])
def test_every_flag_of_upstream_is_kept(golden, command):
    recorded = {flag["flag"]: flag for flag in golden("eval_cli.json")[command]}
    ours = {flag.name: flag for flag in flags_of(command).values() if flag.upstream}
    assert set(ours) == set(recorded)
    for name, flag in recorded.items():
        row = ours[name]
        changed = CHANGED_DEFAULTS if command == "train" else {}
        assert row.default == changed.get(name, flag["default"]), name
        if name == "--cache-images":  # the bare flag still works; it may now also say where
            continue
        assert row.is_switch == flag["store_true"], name
        text = row.is_switch or name in ("--hyp", "--resume")  # which a run file may give as a mapping, or as true
        number = name == "--batch-size" and row.type("8") == 8  # in training it may be `auto`, too
        assert text or number or row.type is TYPES[flag["type"]], name
        assert row.nargs == flag["nargs"], name


def test_new_flags_are_off_by_default():
    opt = parser_for("train").parse_args([])
    switches = [flag.dest for flag in flags_of("train").values() if flag.is_switch and not flag.upstream]
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
        ("--e", ["3"], None, None),  # epochs, evolve, entity, exist-ok: ambiguous in upstream too
    ],
)
def test_abbreviations_of_upstreams_flags_keep_working(abbreviation, value, dest, expected):
    if dest is None:
        with pytest.raises(SystemExit):
            parser_for("train").parse_args([abbreviation, *value])
        return
    assert getattr(parser_for("train").parse_args([abbreviation, *value]), dest) == expected


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
    opt = parser_for("train").parse_args(["--epochs", "300", "--seed", "3"])
    assert opt.given == ["epochs", "seed"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seed", "5000000000"], "--seed is 5000000000"),
        (["--micro-batch", "4"], "--micro-batch needs --worker-tensor"),
        (["--overfit", "7", "--subset-size", "5"], "^--overfit 7 and --subset-size 5 name different numbers"),
        (["--overfit", "--image-weights"], "leave out --image-weights"),
        (["--allow-changed-data"], "--allow-changed-data is for --resume"),
        (["--patience", "3", "--notest"], r"--patience .* --notest .*: drop one of the two"),
        (["--shuffle"], "--shuffle needs --seed"),
    ],
)
def test_contradicting_flags_are_named(arguments, complaint):
    with pytest.raises(UserError, match=complaint):
        check_train(parser_for("train").parse_args(arguments))


@pytest.mark.parametrize("family", ["yolo", "detr"])
@pytest.mark.parametrize(
    ("in_file", "arguments", "images"),
    [
        ("", ["--overfit"], 10),
        ("", ["--overfit", "--subset-size", "30"], 30),
        ("subset_size: 100", ["--overfit", "7"], 7),
        ("subset_size: 100", ["--subset-size", "10", "--overfit"], 10),
        ("subset_size: 10, overfit: true", [], 10),
        ("overfit: 10", ["--subset-size", "5"], 5),
        ("subset_size: 100, overfit: false", [], 0),
    ],
)
def test_overfit_takes_its_number_of_images_from_the_subset(tmp_path, family, in_file, arguments, images):
    path = tmp_path / "run.yaml"
    path.write_text(f"training: {{{in_file}}}\n")
    opt = parser_for("train", family).parse_args(["--config", str(path), *arguments])
    check_train(opt, family)
    config = config_of(opt, family)
    assert config.overfit == images and type(config.overfit) is int
    assert config.subset_size == (0 if images else 100)


def test_two_numbers_of_images_in_a_run_file_are_blamed_on_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("training: {subset_size: 100, overfit: 10}\n")
    with pytest.raises(UserError, match=rf"^{path}: --overfit 10 and --subset-size 100"):
        check_train(parser_for("train").parse_args(["--config", str(path)]))


def test_a_launcher_that_sets_no_number_is_named(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(UserError, match="RANK is 'first', not a number"):
        world_from_environment()


@pytest.mark.parametrize(("value", "reason"), [("abc", "'abc' is not a mapping"), ("{a: [", "not YAML: ")])
def test_a_value_that_is_no_mapping_is_refused_with_the_reason(capsys, value, reason):
    with pytest.raises(SystemExit):
        parser_for("train", "detr").parse_args(["--network", value])
    assert f"argument --network: {reason}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "x" * 300, "a/" * 3000])
def test_a_run_of_a_name_that_cannot_be_shown_or_stored_is_refused(name):
    for command, check in (("train", check_train), ("test", check_test), ("detect", check_detect)):
        opt = parser_for(command).parse_args(["--name", name])
        with pytest.raises(UserError, match=r"--name .* control characters|cannot be a path"):
            check(opt)
