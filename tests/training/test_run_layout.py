"""Where a run's checkpoints lie: in weights/, or in the run's folder itself; how either is found again."""

import os
from pathlib import Path

import pytest

from yolov7fast.training.checkpoints.resume import find_checkpoint, run_folder_of, weights_dir_of


def touch(path: Path, second: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (second, second))
    return path


@pytest.mark.parametrize("name", ["last.pth", "weights/last.pth"])
def test_a_run_folder_leads_to_its_last_checkpoint_in_either_layout(tmp_path, name):
    path = touch(tmp_path / "run" / name)
    assert find_checkpoint(str(tmp_path / "run"), ".pth") == path
    assert run_folder_of(path) == tmp_path / "run"


def test_of_two_layouts_the_newer_files_count(tmp_path):
    older, newer = touch(tmp_path / "weights" / "last.pth"), touch(tmp_path / "last.pth", 1)
    assert find_checkpoint(str(tmp_path), ".pth") == newer
    touch(older, 2)
    assert find_checkpoint(str(tmp_path), ".pth") == older


def test_a_checkpoint_whose_predecessor_alone_is_left_is_found(tmp_path):
    touch(tmp_path / "previous.pth")
    assert find_checkpoint(str(tmp_path), ".pth") == tmp_path / "last.pth"


def test_a_run_may_be_called_weights(tmp_path):
    touch(tmp_path / "weights" / "opt.yaml")
    assert run_folder_of(touch(tmp_path / "weights" / "last.pth")) == tmp_path / "weights"


def test_a_resumed_run_keeps_the_layout_it_began_with(tmp_path):
    assert weights_dir_of(tmp_path, "") == tmp_path
    assert weights_dir_of(tmp_path, "", str(tmp_path / "checkpoint_epoch_1.pth")) == tmp_path
    assert weights_dir_of(tmp_path, "", str(tmp_path / "weights" / "last.pth")) == tmp_path / "weights"
    assert weights_dir_of(tmp_path, "weights", str(tmp_path / "last.pt")) == tmp_path / "weights"
