"""A real checkout as a user runs it: `make test-overlay REPO=DIR`. Without one these tests are skipped.

Every script runs in a separate process, on a copy of DIR under version control, on a few blood-cell images.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.mini_network import mini_model
from tests.overlay.conftest import ROOT, git_status
from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint
from yolov7fast.data.caches.label_cache import SUFFIX

REPO = os.environ.get("OVERLAY_REPO", "")
ALONE = ("--no-loss", "--no-fast-dataloader", "--no-metrics")  # repairs alone: the checkout as it is
STEP = re.compile(r"0/\d+ +\S+ +([\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +\d+ +\d+):")  # losses, labels, size

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not REPO, reason="needs a checkout of upstream: make test-overlay REPO=DIR"),
]


@pytest.fixture(scope="module")
def repo(tmp_path_factory) -> Path:
    """A copy of the checkout with nothing uncommitted."""
    folder = tmp_path_factory.mktemp("real") / "yolov7"
    left_out = shutil.ignore_patterns(".git", "runs", "__pycache__", "*.pt", "*.onnx", "*.cache")
    shutil.copytree(REPO, folder, ignore=left_out)
    (folder / ".gitignore").write_text("__pycache__/\nruns/\n*.cache\n*.pt\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "theirs"]):
        subprocess.run([*git, *arguments], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def cells(bccd, tmp_path_factory) -> Path:
    """A few images in a folder that may be written, and the files that scripts want."""
    folder = tmp_path_factory.mktemp("cells")
    lists = {}
    for split, count in (("train", 24), ("val", 12)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
            for file in sorted((bccd / kind / split).iterdir())[:count]:
                shutil.copyfile(file, folder / kind / split / file.name)
        lists[split] = str(folder / "images" / split)
    data = {**lists, "test": lists["val"], "nc": 3, "names": ["RBC", "WBC", "Platelets"]}
    (folder / "cells.yaml").write_text(yaml.safe_dump(data))
    for split in lists:
        few = sorted(map(str, (folder / "images" / split).iterdir()))[:8]
        (folder / f"few_{split}.txt").write_text("\n".join(few) + "\n")
        data[split] = str(folder / f"few_{split}.txt")
    (folder / "few.yaml").write_text(yaml.safe_dump(data))
    return folder


def overlay(repo: Path, *command: str, switches=(), launcher=("tools/overlay.py",)) -> str:
    """What a script of the checkout prints under the overlay; it ends well and leaves the checkout's files alone."""
    *before, tool = launcher
    tool = [sys.executable, *before, str(ROOT / tool), "--repo", str(repo), *switches, "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*tool, *map(str, command)], capture_output=True, text=True, env=environment, cwd="/")
    said = f"{done.stdout}\n{done.stderr}".replace("\r", "\n")
    assert done.returncode == 0, "\n".join(line for line in said.splitlines() if not line.startswith("    "))[-3000:]
    assert git_status(repo) == []
    return said


def train(repo, cells, name, *more, script="train.py", data="cells", hyp="data/hyp.scratch.tiny.yaml", **settings):
    start = {key: settings.pop(key) for key in ("switches", "launcher") if key in settings}
    values = {"--cfg": "cfg/training/yolov7-tiny.yaml", "--img-size": "160 160", "--batch-size": "8", "--epochs": "1"}
    values |= {"--workers": "2"} | {f"--{key.replace('_', '-')}": str(value) for key, value in settings.items()}
    fixed = ["--data", cells / f"{data}.yaml", "--weights", "", "--hyp", hyp, "--device", "cpu", "--name", name]
    arguments = [part for key, value in values.items() for part in (key, *value.split())]
    said = overlay(repo, script, *fixed, *arguments, *more, **start)
    assert (repo / "runs/train" / name / "weights/last.pt").is_file()
    return said


def first_step(said: str) -> str:
    """Losses, labels and size of the first batch, as the script prints them."""
    return STEP.search(said)[1]


def compared(said: str) -> set[str]:
    """Names of what `--check` compared."""
    return {name.strip() for name in re.findall(r"^(.{28}) *\d+ +(?:none|\d\S+) +[\d.]+ ms", said, re.M)}


def test_training_with_ota(repo, cells):
    ours = train(repo, cells, "ota", switches=["--check", "2"])
    assert compared(ours) == {"samples train", "samples val", "ComputeLossOTA", "ComputeLoss"}
    assert first_step(ours) == first_step(train(repo, cells, "ota_alone", switches=ALONE))
    assert (cells / "labels/train.cache").is_file() and (cells / f"labels/train{SUFFIX}").is_file()


def test_two_processes_under_torchrun(repo, cells):
    """Same losses as the checkout's own parts, over DistributedDataParallel; the CPU stands in for two GPUs."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "tests/overlay/without_gpus.py"]
    settings = {"data": "few", "workers": 1, "launcher": torchrun}
    ours = train(repo, cells, "two", **settings)
    assert ours.count("overlay: loss, repairs, fast-dataloader, metrics put into") == 1
    assert first_step(ours) == first_step(train(repo, cells, "two_alone", switches=ALONE, **settings))


def test_an_auxiliary_head(repo, cells):
    settings = {"script": "train_aux.py", "hyp": "data/hyp.scratch.p6.yaml", "cfg": "cfg/training/yolov7-w6.yaml"}
    settings |= {"img_size": "64 64", "batch_size": 4, "data": "few"}
    ours = train(repo, cells, "aux", switches=["--check", "1"], **settings)
    assert "ComputeLossAuxOTA" in compared(ours)
    assert first_step(ours) == first_step(train(repo, cells, "aux_alone", switches=ALONE, **settings))


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A small network that was really trained on such images, as the end of a training leaves it."""
    path = tmp_path_factory.mktemp("weights") / "mini.pt"
    save_checkpoint({"epoch": -1, "model": mini_model().half().requires_grad_(False), "ema": None}, path)
    return path


def test_evaluation(repo, cells, weights):
    common = ["test.py", "--weights", weights, "--data", cells / "cells.yaml", "--img-size", "320", "--device", "cpu"]
    rows = []
    for switches in ([], ALONE):
        said = overlay(repo, *common, "--batch-size", "4", switches=switches)
        found = [line.split()[1:] for line in said.splitlines() if line.split()[:1] == ["all"]]
        rows.append([float(value) for value in found[0]])
    images, labels, *_, ap50, ap = rows[0]
    assert (images, labels) == (12, 236) and ap50 > 0.7 and ap > 0.4
    assert rows[0] == pytest.approx(rows[1], abs=1e-3)  # equal scores count in any order upstream


def test_detection(repo, cells, weights):
    common = ["detect.py", "--weights", weights, "--source", cells / "images/val", "--img-size", "320"]
    found = []
    for switches in ([], ALONE):
        name = f"detect{len(switches)}"
        overlay(repo, *common, "--device", "cpu", "--save-txt", "--name", name, switches=switches)
        labels = sorted((repo / "runs/detect" / name / "labels").glob("*.txt"))
        found.append({path.name: path.read_text() for path in labels})
        assert len(list((repo / "runs/detect" / name).glob("*.jpg"))) == 12
    assert found[0] == found[1] and len(found[0]) == 12
