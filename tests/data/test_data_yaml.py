"""The data yaml: what is read, where its paths are looked for, what is refused and how."""

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import DataYaml, dataset_root, load_data_yaml

GOOD = "train: images/train\nval: images/val\nnc: 2\nnames: [cat, dog]\n"


@pytest.fixture(autouse=True)
def in_data_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images/val").mkdir(parents=True)
    return tmp_path


def load(folder, text, **options):
    (folder / "d.yaml").write_text(text)
    return load_data_yaml("d.yaml", **options)


def test_names_by_number_a_list_of_folders_and_a_mapping_in_memory(in_data_folder):
    data = load(in_data_folder, "val: [images/val]\nnc: 2\nnames: {1: dog, 0: cat}\n")
    assert data.names == ["cat", "dog"] and data.val == ["images/val"]
    assert load_data_yaml({"val": "images/val", "nc": 1, "names": ["item"]}).nc == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("train: images/train\n", r"d\.yaml has no keys val:, names:"),
        ("val: images/val\nnc: 1\n", r"d\.yaml has no key names:"),
        ("nc: 1\nnames: [a]\n", r"d\.yaml has no key val:; --val-fraction 0\.1 would"),
        (GOOD.replace("nc: 2", "nc: two"), "nc must be a whole number.*'two'"),
        (GOOD.replace("nc: 2", "nc: 0"), "nc must be a whole number"),
        (GOOD.replace("nc: 2", "nc: true"), "nc must be a whole number"),
        (GOOD.replace("nc: 2", "nc: 3"), "nc is 3, but there are 2 names"),
        (GOOD.replace("[cat, dog]", "cat"), "names must be a list"),
        (GOOD.replace("[cat, dog]", "{1: cat, 2: dog}"), "number the classes from 0 to 1"),
        (GOOD.replace("images/val", "7"), "val must be a folder"),
        (GOOD + "download: [1]\n", "download must be text"),
        (GOOD + "path: [a]\n", "path must be text"),
        ("- a\n- b\n", "must hold keys"),
        ("nc: [1\n", "not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_by_key(in_data_folder, text, message):
    with pytest.raises(UserError, match=message):
        load(in_data_folder, text)


def test_a_missing_file_is_named_with_the_shipped_ones(in_data_folder):
    with pytest.raises(UserError, match=r"bad\.yaml does not exist.*shipped: coco, coco320"):
        load_data_yaml("bad.yaml")
    with pytest.raises(UserError, match="--data is empty"):
        load_data_yaml("")


def test_a_split_that_is_not_there(in_data_folder):
    with pytest.raises(UserError, match=r"has no key 'test:'.*train, val"):
        load(in_data_folder, GOOD).split("test")


# --- where paths are looked for ---------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(in_data_folder):
    """A yaml in a folder of its own, with images below that folder."""
    for name in ("sub/photos/val", "sub/train/images", "set/images/val"):
        (in_data_folder / name).mkdir(parents=True)

    def read(text: str) -> DataYaml:
        (in_data_folder / "sub/d.yaml").write_text(text)
        return load_data_yaml("sub/d.yaml")

    return read


def test_a_path_counts_from_the_working_directory_then_from_the_folder_of_the_yaml(elsewhere):
    data = elsewhere("train: images/val\nval: photos/val\nnames: [a]\n")
    assert (data.train, data.val) == ("images/val", "sub/photos/val")
    assert elsewhere("val: [images/val, photos/val]\nnames: [a]\n").val == ["images/val", "sub/photos/val"]


def test_path_is_the_root_of_relative_paths(elsewhere, in_data_folder):
    data = elsewhere("path: set\nval: images/val\nannotations: a.json\nnames: [a]\n")
    assert (data.val, data.annotations, data.root) == ("set/images/val", "set/a.json", "set")
    assert elsewhere("path: .\nval: images/val\nnames: [a]\n").val == "./images/val"
    assert elsewhere("path: photos\nval: val\nnames: [a]\n").val == "sub/photos/val"  # the root beside the yaml
    absolute = str(in_data_folder / "images/val")
    assert elsewhere(f"path: set\nval: {absolute}\nnames: [a]\n").val == absolute


def test_an_exported_yaml_that_points_above_its_own_folder_means_that_folder(elsewhere):
    data = elsewhere("train: ../train/images\nval: ../photos/val\nnc: 1\nnames: ['a']\n")
    assert (data.train, data.val) == ("sub/train/images", "sub/photos/val")


@pytest.mark.parametrize(
    "text, root",
    [
        ("path: a/set\nval: images/val\n", "a/set"),
        ("train: ../sets/coco/images/train\nval: ../sets/coco/images/val\n", "../sets/coco"),
        ("val: sets/coco/images/val\n", "sets/coco"),
        ("val: sets/coco/val.txt\n", "sets/coco"),
        ("train: a/x\nval: a/y\n", "a"),
        ("train: x/images\nval: y/images\n", None),
        ("val: images/val\n", None),
        ("path: ..\nval: images/val\n", None),
    ],
)
def test_the_folder_of_a_data_set_is_what_its_paths_share(in_data_folder, text, root):
    found = dataset_root(load(in_data_folder, f"{text}names: [a]\n", fetch=False))
    assert (found and found.resolve()) == (root and (in_data_folder / root).resolve())
