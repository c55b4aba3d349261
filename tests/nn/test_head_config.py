"""Head configurations: the shipped files, look-ups, plain storage, and errors that name class and head."""

import copy
import pickle

import pytest
import yaml

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import ROOT
from yolov7fast.nn.multihead import SHIPPED, HeadConfig, choose_head_config


@pytest.fixture
def toy(golden) -> dict:
    return copy.deepcopy(golden("head_config.json")["toy_config"])


@pytest.mark.parametrize("grouping", ["standard", "geometry"])
def test_shipped_files_hold_the_recorded_groups(grouping, golden):
    expected = golden("head_config.json")[f"config_{grouping}"]
    config = HeadConfig.load(SHIPPED[grouping])
    assert [list(ids) for ids in config.classes] == expected["classes"]
    assert list(config.weights) == expected["weights"]
    assert list(config.sizes) == expected["sizes"]
    assert list(config.head_of) == expected["head_of"]
    assert list(config.local_of) == expected["local_of"]
    assert (config.nc, config.heads, config.grouping, config.full_head) == (80, 4, expected["grouping"], False)


def test_stored_form_is_plain_and_reads_back(toy):
    config = HeadConfig.from_dict(toy)
    stored = config.to_dict()
    assert HeadConfig.from_dict(stored) == config
    assert yaml.safe_load(yaml.safe_dump(stored)) == stored  # nothing but dicts, lists, numbers and text
    assert b"head_config" not in pickle.dumps(stored)  # a checkpoint does not depend on this module's path


def broken(toy, change) -> dict:
    change(toy)
    return toy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("head_assignments"), "no section head_assignments"),
        (lambda c: c["head_assignments"].pop("head_1"), "heads is 3, but head_assignments lacks head_1"),
        (lambda c: c.update(heads=2), "heads is 2, but head_assignments also has head_2"),
        (lambda c: c.update(heads=True), "heads must be a whole number"),
        (lambda c: c.update(nc=10**12), "nc must be a whole number, 1 to 100,000, not 1000000000000"),
        (lambda c: c["head_assignments"]["head_0"].update(classes=[]), "head_0 needs a list `classes`"),
        (lambda c: c["head_assignments"]["head_1"]["classes"].append(4), "class 4 is in head_0 and in head_1"),
        (lambda c: c["head_assignments"]["head_2"]["classes"].append(1), "class 1 is in head_2 and in head_2"),
        (lambda c: c["head_assignments"]["head_1"].update(classes=[0]), "1 of 6 classes in no head: class 3"),
        (lambda c: c["head_assignments"]["head_1"]["classes"].append(6), "head_1 lists class 6, but nc is 6"),
        (lambda c: c["head_assignments"]["head_1"]["classes"].append("cat"), "head_1 lists class 'cat'"),
        (lambda c: c["head_assignments"]["head_0"].update(weight=0), "weight of head_0 must be a positive number"),
        (lambda c: c["head_assignments"]["head_0"].update(weight=float("nan")), "weight of head_0 must be a positive"),
        (lambda c: c["head_assignments"]["head_0"].update(weight=10**400), "weight of head_0 must be .* to 1e\\+06"),
        (lambda c: c.update(heads=10**4), "lacks head_3, head_4, head_5, head_6, head_7, \\.\\.\\.$"),
        (lambda c: c.pop("nc"), "which gives no nc: 74 of 80 classes in no head"),
    ],
)
def test_mistakes_are_told_with_file_class_and_head(toy, change, message):
    with pytest.raises(UserError, match=f"^toy.yaml[:,]? .*{message}"):
        HeadConfig.from_dict(broken(toy, change), "toy.yaml")


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml cannot be read"):
        HeadConfig.load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(UserError, match=r"bad\.yaml is not valid YAML"):
        HeadConfig.load(tmp_path / "bad.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(UserError, match=r"empty\.yaml has no section"):
        HeadConfig.load(tmp_path / "empty.yaml")


def test_consecutive_shares_out_every_class():
    assert HeadConfig.consecutive(80).classes == tuple(tuple(range(20 * h, 20 * h + 20)) for h in range(4))
    assert HeadConfig.consecutive(7, 3).classes == ((0, 1, 2), (3, 4), (5, 6))
    for nc, heads in ((80, 8), (5, 5), (1, 1)):
        config = HeadConfig.consecutive(nc, heads)
        assert HeadConfig.from_dict(config.to_dict()) == config
    with pytest.raises(UserError, match="3 classes cannot be divided among 4 heads"):
        HeadConfig.consecutive(3, 4)


def test_flags_choose_the_configuration(toy, tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(toy))
    assert choose_head_config(6) is None
    assert choose_head_config(6, 3, str(path)).grouping == "toy"
    assert choose_head_config(6, 0, str(path)).heads == 3
    assert choose_head_config(6, 2) == HeadConfig.consecutive(6, 2)
    coco = yaml.safe_load((ROOT / "data" / "coco.yaml").read_text())["names"]
    assert choose_head_config(80, 4, standard=True, names=coco) == HeadConfig.load(SHIPPED["standard"])
    assert choose_head_config(80, geometry=True, names=coco) == HeadConfig.load(SHIPPED["geometry"])
    assert choose_head_config(80, 8, standard=True, names=coco) == HeadConfig.consecutive(80, 8)
    others = [*coco[:79], "something else"]
    assert choose_head_config(80, standard=True, names=others) == HeadConfig.consecutive(80, 4)
    asked = []
    for nc, heads, names in ((6, 2, ()), (80, 0, others), (3, 0, ())):
        choose_head_config(nc, heads, geometry=True, from_boxes=asked.append, names=names)
    assert asked == [2, 4, 3]
    assert choose_head_config(2, standard=True) == HeadConfig.consecutive(2, 2)


def test_flags_that_contradict_the_file_or_the_data_are_refused(toy, tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(toy))
    with pytest.raises(UserError, match=r"--heads 4, but .*toy\.yaml has 3 heads"):
        choose_head_config(6, 4, str(path))
    with pytest.raises(UserError, match=r"toy\.yaml is for 6 classes, the data set has 80"):
        choose_head_config(80, 3, str(path))
    with pytest.raises(UserError, match="not several"):
        choose_head_config(80, 4, str(path), geometry=True)
    with pytest.raises(UserError, match="needs the training set"):
        choose_head_config(6, 2, geometry=True)
