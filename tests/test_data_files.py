"""The shipped data and hyper-parameter YAML: values as recorded, a comment on every key."""

import re
from pathlib import Path

import pytest
import yaml

DATA = Path(__file__).resolve().parent.parent / "data"
HYP_FILES = [
    "hyp.scratch.p5.yaml",
    "hyp.scratch.p6.yaml",
    "hyp.scratch.custom.yaml",
    "hyp.scratch.tiny.yaml",
    "hyp.scratch.tiny.noota.yaml",
    "hyp.scratch.tiny.nomosaic.yaml",
]


def read(name: str) -> dict:
    return yaml.safe_load((DATA / name).read_text())


@pytest.mark.parametrize("name", HYP_FILES)
def test_hyper_parameters_equal_the_recorded_values_and_types(name, golden):
    recorded = golden("eval_config.json")
    expected = {**recorded["hyp_upstream"], **recorded["hyp_fork"]}[name]
    values = read(name)
    assert values == expected
    for key, value in expected.items():  # 3.0 must not become 3: run folders store what was read
        assert type(values[key]) is type(value), key


def test_hyper_parameters_keep_the_recorded_order(golden):
    expected = golden("eval_config.json")["hyp_upstream"]["hyp.scratch.p5.yaml"]
    assert list(read("hyp.scratch.p5.yaml")) == list(expected)


@pytest.mark.parametrize("name", HYP_FILES)
def test_every_hyper_parameter_carries_a_comment(name):
    for line in (DATA / name).read_text().splitlines():
        if re.match(r"\s*\w+:", line):
            assert re.search(r"#\s*\S+", line), f"{name}: no comment on {line!r}"


@pytest.mark.parametrize("folder", ["coco", "coco320", "coco480", "coco640"])
def test_coco_files_name_folders_and_the_80_classes(folder, golden):
    data = read(f"{folder}.yaml")
    assert data["train"] == f"./{folder}/images/train2017"
    assert data["val"] == f"./{folder}/images/val2017"
    assert data["nc"] == 80
    assert data["names"] == golden("eval_config.json")["coco_names"]


def test_only_full_size_coco_is_downloaded():
    assert read("coco.yaml")["download"] == "bash scripts/get_coco.sh"
    for size in (320, 480, 640):  # made from it by `yolov7fast data resize`
        assert "download" not in read(f"coco{size}.yaml")
