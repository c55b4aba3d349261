"""The comparison with a checkout of the public project, with this project itself in its place."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import reference
from utils.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--batch-size", "2", "--img-size", "64", "--targets", "3", "--classes", "3", "--runs", "1", "--rounds", "1"]


def checkout(folder: Path) -> Path:
    """A copy of what the comparison uses, standing in for another project's folder."""
    for name in ("models", "utils", "cfg"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_equal_projects_agree_and_a_broken_part_is_reported(tmp_path, shapes_small, capsys):
    other = checkout(tmp_path / "other")
    (other / "utils" / "datasets.py").write_text("import numpy as np\nnp.int_that_was_removed\n")
    out = tmp_path / "figures.json"
    images = ["--images", str(shapes_small / "images" / "train")]
    assert reference.main(["--reference", str(other), *SMALL, *images, "--json", str(out)]) == 0
    rows = {row["what"]: row for row in json.loads(out.read_text())["rows"]}
    assert "int_that_was_removed" in rows["samples"]["error"]
    for name in ("plain loss, forward", "OTA loss, forward and backward", "training, step with OTA"):
        assert rows[name]["ours"] > 0 and rows[name]["reference"] > 0
        assert "items: within 0.0e+00" in rows[name]["parity"]
    assert "matched cells: 0 of" in rows["OTA loss, forward"]["parity"]
    assert "the reference failed" in capsys.readouterr().out


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(UserError, match="is no checkout"):
        reference.main(["--reference", str(tmp_path)])
