"""The command: scripts of a checkout run as they are, with the parts in, and one line for each mistake."""

import json
import runpy
import subprocess
import sys

import numpy as np
import pytest

from tests.overlay.conftest import ROOT, git_status
from yolov7fast.core.errors import UserError
from yolov7fast.overlay import parts

ALONE = ("--no-loss", "--no-fast-dataloader", "--no-metrics")  # repairs alone: the checkout as it is


def train(inside, repo, name, *switches, arguments=()):
    inside.run(repo, *switches, "--", "train.py", "--name", name, *arguments)
    return json.loads((repo / f"{name}.json").read_text())


@pytest.mark.parametrize(
    "arguments",
    [["--image-weights", "--epochs", "2"], ["--rect"], ["--cache-images", "--workers", "2"]],
    ids=lambda arguments: " ".join(arguments) or "plain",
)
def test_a_run_has_the_samples_and_losses_of_the_checkout_alone(known_repo, inside, arguments):
    ours = train(inside, known_repo, "ours", arguments=arguments)
    theirs = train(inside, known_repo, "theirs", *ALONE, arguments=arguments)
    assert ours["samples"] == theirs["samples"]
    np.testing.assert_allclose(ours["losses"][0], theirs["losses"][0], rtol=1e-5)
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-3)
    assert ours["results"][2] == theirs["results"][2]
    assert ours["results"][1] == pytest.approx(theirs["results"][1], rel=1e-3)
    assert ours["workers"] == theirs["workers"]


def test_label_caches_of_both_lie_side_by_side(known_repo, inside):
    labels = known_repo.parent / "shapes" / "labels"
    train(inside, known_repo, "run", "--no-fast-dataloader")
    theirs = (labels / "train.cache").read_bytes()
    inside.run(known_repo, "--", "train.py", "--name", "again")
    assert (labels / "train.cache").read_bytes() == theirs
    assert (labels / "train.yolov7fast.cache").is_file()
    train(inside, known_repo, "third", "--no-fast-dataloader")  # reads its own again


def test_evaluation_and_detection_read_the_checkpoint_and_only_what_scripts_write_is_new(known_repo, inside, capsys):
    train(inside, known_repo, "run")
    curves = [f"{name}_curve.png" for name in ("F1", "P", "PR", "R")]
    assert git_status(known_repo) == sorted([*curves, "last.pt", "run.json"])
    inside.run(known_repo, "--", "test.py", "--weights", "last.pt")
    inside.run(known_repo, "--", "detect.py", "last.pt")
    printed = capsys.readouterr().out
    assert "results (" in printed and "boxes " in printed
    assert (known_repo / "PR_curve.png").read_text().startswith("the checkout's own plot")


def test_the_script_sees_its_own_arguments_and_folder(known_repo, inside, capsys):
    (known_repo / "look.py").write_text("import os, sys; print(os.getcwd(), sys.argv[1:], __name__)")
    inside.run(known_repo, "--", "look.py", "--check", "--seed", "1", "--", "x")
    assert f"{known_repo} ['--check', '--seed', '1', '--', 'x'] __main__" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--", "prune.py"], r"prune\.py was not found in .*; its scripts: detect\.py, test\.py, train\.py"),
        ([], "no script was given"),
        (["--no-fast-dataloader", "--seed", "1", "--", "train.py"], "--seed is done by the overlay's loader"),
        (["--cache-images", "ram", "--", "train.py"], "--cache-images ram"),
        (["--check", "train.py", "--epochs", "1"], r"--check train\.py: not a number of batches; .* after `--`"),
        (["--epochs", "1", "--", "train.py"], "unrecognized arguments: --epochs; flags of the script follow"),
    ],
)
def test_mistakes_are_refused_before_anything_is_put_in(known_repo, inside, arguments, message):
    with pytest.raises(UserError, match=message):
        inside.run(known_repo, *arguments)
    assert git_status(known_repo) == []


@pytest.mark.parametrize("file", ["utils/loss.py", "train.py"])
def test_a_package_that_the_checkout_lacks_is_named(known_repo, inside, file):
    (known_repo / file).write_text(f"from pandarus.core import frame\n{(known_repo / file).read_text()}")
    with pytest.raises(UserError, match=r"needs pandarus, which is not installed here.*pip install pandas"):
        inside.run(known_repo, "--force", "--", "train.py")


@pytest.mark.slow
def test_two_processes_under_torchrun(known_repo):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    sides = {}
    for name, switches in (("ours", []), ("theirs", ALONE)):
        tool = [str(ROOT / "tools/overlay.py"), "--repo", str(known_repo), "--force", *switches]
        script = ["--", "train.py", "--name", name, "--epochs", "2", "--workers", "1"]
        done = subprocess.run([*launcher, *tool, *script], capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr[-2000:]
        sides[name] = json.loads((known_repo / f"{name}.json").read_text())
    assert sides["ours"]["samples"] == sides["theirs"]["samples"]
    np.testing.assert_allclose(sides["ours"]["losses"], sides["theirs"]["losses"], rtol=1e-3)


def mine(repo, arguments="") -> str:
    """A script of the user's own: the two lines, then what train.py does."""
    lines = f"import yolov7fast.overlay\nyolov7fast.overlay.install({arguments})\n"
    (repo / "mine.py").write_text(lines + (repo / "train.py").read_text())
    return str(repo / "mine.py")


def test_two_lines_at_the_top_of_a_script_do_the_same(known_repo, inside, monkeypatch, capsys):
    monkeypatch.setattr(parts, "put_in", inside.enter)
    monkeypatch.chdir(known_repo)
    sys.argv[:] = ["mine.py"]
    runpy.run_path(mine(known_repo, "metrics=False"), run_name="__main__")
    inside.leave()
    assert "overlay: loss, repairs, fast-dataloader put into" in capsys.readouterr().out
    report = json.loads((known_repo / "run.json").read_text())
    assert report["samples"] == train(inside, known_repo, "theirs", *ALONE)["samples"]


def test_install_ends_a_script_of_an_edited_fork_with_one_line(repo, inside, capsys):
    with pytest.raises(SystemExit) as ended:  # the stub checkout is not upstream
        runpy.run_path(mine(repo), run_name="__main__")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1, said
