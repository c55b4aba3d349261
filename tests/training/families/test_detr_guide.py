"""Every DETR run file builds its network, and docs/detr.md's tutorial runs as it is written."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
import yaml

from tests.conftest import ROOT
from tests.search.test_guide import LINKED
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.parser import parse_inference, parser_for
from yolov7fast.cli.run_file import merge
from yolov7fast.nn.detr_model import build

RUN_FILES = sorted(path.name for path in (ROOT / "configs").glob("*detr*.yaml"))
TRIALS = json.loads((ROOT / "experiments" / "detr_lr.json").read_text())
# flags behind a command that make it smaller, not different; what is as small as it may be runs as written
SMALLER = {
    "configs/detr_smoke.yaml": ["--img-size", "96"],
    "experiments/detr_lr.json": ["--budget-epochs", "1", "--budget-subset", "16", "--budget-size", "64"],
    "configs/rtdetr_small.yaml": ["--epochs", "1", "--img-size", "96"],
}


def tutorial() -> list[list[str]]:
    """The commands of the page's tutorial, in order, without the interpreter."""
    chapter = (ROOT / "docs" / "detr.md").read_text().split("## Tutorial")[1].split("\n## ")[0]
    blocks = re.findall(r"```\w*\n(.*?)```", chapter, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("python ")]


def options(path) -> Namespace:
    opt = parser_for("train", "detr").parse_args(["--config", str(path)])
    check_train(opt, "detr")
    return opt


def answers(opt, names=("a", "b", "c")) -> tuple[torch.Size, int]:
    """Build what the options describe: shape of its answer to one image, and its number of parameters."""
    detector = build(opt.architecture, names, opt.network).eval()
    with torch.no_grad():
        output = detector(torch.zeros(1, 3, 160, 160), torch.ones(1, 160, 160, dtype=torch.long))
    return output.logits.shape, sum(p.numel() for p in detector.parameters())


def test_all_run_files_are_known():
    names = ["detr_baseline", "detr_smoke", "rtdetr_baseline", "rtdetr_overfit", "rtdetr_small"]
    assert [f"{name}.yaml" for name in names] == RUN_FILES


@needs_transformers
@pytest.mark.parametrize(
    ("name", "architecture", "queries", "millions"),
    [
        ("detr_baseline", "detr", 100, (41, 42)),  # as published: 41.5 with 91 classes
        ("detr_smoke", "detr", 30, (0.5, 1.5)),
        ("rtdetr_baseline", "rtdetr_v2", 300, (19, 21)),  # as published: 20
        ("rtdetr_overfit", "rtdetr_v2", 60, (0.5, 1.5)),
        ("rtdetr_small", "rtdetr_v2", 60, (0.5, 1.5)),
    ],
)
def test_a_run_file_describes_the_network_it_names(name, architecture, queries, millions):
    opt = options(ROOT / "configs" / f"{name}.yaml")
    shape, parameters = answers(opt)
    assert opt.architecture == architecture and shape[1] == queries
    assert millions[0] < parameters / 1e6 < millions[1]
    assert (ROOT / opt.data).is_file()


@needs_transformers
@pytest.mark.parametrize("trial", TRIALS, ids=range(len(TRIALS)))
def test_a_trial_of_the_example_is_a_run(trial, tmp_path):
    """Its names are keys of the run file, and the network it asks for can be built."""
    values = {"base": str(ROOT / "configs" / "rtdetr_small.yaml")}
    for name, value in trial.items():
        for part in reversed(name.split(".")):
            value = {part: value}
        values = merge(values, value)
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump(values))
    opt = options(tmp_path / "trial.yaml")
    assert opt.lr == trial["training.optimizer.lr"]
    assert answers(opt)[0][1] == trial.get("model.network.num_queries", 60)


def test_the_tutorials_commands_parse():
    commands = tutorial()
    assert len(commands) == 7
    for script, *arguments in commands:
        if script in ("test.py", "detect.py"):
            parse_inference(script.removesuffix(".py"), arguments)
        elif script == "tools/train_detr.py":
            opt = parser_for("train", "detr").parse_args(arguments)
            assert not opt.config or (ROOT / opt.config).is_file()
    assert {"experiments/detr_lr.json", "configs/rtdetr_small.yaml"} <= set(commands[3])


@needs_transformers
@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_detr_tutorial_runs_as_written(tmp_path):
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "data", tmp_path / "data", ignore=shutil.ignore_patterns("shapes", "*.cache"))
    for command in tutorial():
        smaller = next((flags for word, flags in SMALLER.items() if word in command), [])
        done = subprocess.run(
            [sys.executable, *command, *smaller],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    runs = tmp_path / "outputs"
    assert len((runs / "smoke_test" / "results.txt").read_text().splitlines()) == 4  # 2 epochs, resumed to 4
    assert (runs / "rtdetr_small" / "best.pth").is_file()
    (table,) = (tmp_path / "outputs" / "detr_trials").glob("trials_*.csv")
    assert table.read_text().count("completed") == len(TRIALS)
