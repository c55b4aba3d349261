"""The data yaml: what is read, what is refused and how, and fetching a missing data set."""

import sys
import zipfile

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import DataYaml, load_data_yaml

GOOD = "train: images/train\nval: images/val\nnc: 2\nnames: [cat, dog]\n"


@pytest.fixture(autouse=True)
def in_data_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images/val").mkdir(parents=True)
    return tmp_path


def load(folder, text, **options):
    (folder / "d.yaml").write_text(text)
    return load_data_yaml("d.yaml", **options)


def test_a_good_file(in_data_folder):
    data = load(in_data_folder, GOOD + "annotations: a.json\n")
    assert data == DataYaml("d.yaml", 2, ["cat", "dog"], "images/train", "images/val", annotations="a.json")
    assert load_data_yaml(data) is data


def test_names_by_number_a_list_of_folders_and_a_mapping_in_memory(in_data_folder):
    data = load(in_data_folder, "val: [images/val]\nnc: 2\nnames: {1: dog, 0: cat}\n")
    assert data.names == ["cat", "dog"] and data.val == ["images/val"]
    assert load_data_yaml({"val": "images/val", "nc": 1, "names": ["item"]}).nc == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("val: images/val\n", r"d\.yaml lacks the keys nc:, names:"),
        ("nc: 1\nnames: [a]\n", r"d\.yaml lacks the key val:"),
        (GOOD.replace("nc: 2", "nc: two"), "nc must be a whole number.*'two'"),
        (GOOD.replace("nc: 2", "nc: 0"), "nc must be a whole number"),
        (GOOD.replace("nc: 2", "nc: true"), "nc must be a whole number"),
        (GOOD.replace("nc: 2", "nc: 3"), "nc is 3, but there are 2 names"),
        (GOOD.replace("[cat, dog]", "cat"), "names must be a list"),
        (GOOD.replace("[cat, dog]", "{1: cat, 2: dog}"), "number the classes from 0 to 1"),
        (GOOD.replace("images/val", "7"), "val must be a folder"),
        (GOOD + "download: [1]\n", "download must be text"),
        ("- a\n- b\n", "must hold keys"),
        ("nc: [1\n", "not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_by_key(in_data_folder, text, message):
    with pytest.raises(UserError, match=message):
        load(in_data_folder, text)


def test_a_missing_file_names_its_neighbours(in_data_folder):
    (in_data_folder / "good.yaml").touch()
    with pytest.raises(UserError, match=r"bad\.yaml does not exist.*good\.yaml"):
        load_data_yaml("bad.yaml")
    with pytest.raises(UserError, match="--data is empty"):
        load_data_yaml("")


def test_a_split_that_is_not_there(in_data_folder):
    with pytest.raises(UserError, match=r"has no key 'test:'.*train, val"):
        load(in_data_folder, GOOD).split("test")


def test_missing_images_are_reported_with_what_the_folder_holds(in_data_folder):
    with pytest.raises(UserError, match=r"val: images/vall does not exist.*images holds: val"):
        load(in_data_folder, GOOD.replace("images/val", "images/vall"))
    (in_data_folder / "sub").mkdir()
    (in_data_folder / "sub/photos").mkdir()
    (in_data_folder / "sub/d.yaml").write_text(GOOD.replace("images/val", "photos"))
    with pytest.raises(UserError, match=r"but sub/photos does: paths count from the working directory"):
        load_data_yaml("sub/d.yaml")


def test_paths_may_be_left_unchecked(in_data_folder):
    assert load(in_data_folder, GOOD.replace("images/val", "nowhere"), fetch=False).val == "nowhere"


def test_a_download_command_runs_when_images_are_missing_and_only_then(in_data_folder):
    text = GOOD.replace("images/val", "fetched") + "download: mkdir fetched && touch ran\n"
    load(in_data_folder, text)
    assert (in_data_folder / "ran").exists()
    (in_data_folder / "ran").unlink()
    load(in_data_folder, text)
    assert not (in_data_folder / "ran").exists()


def test_python_in_a_download_command_is_the_one_running(in_data_folder):
    script = "import sys, pathlib\npathlib.Path('fetched').mkdir()\npathlib.Path('who').write_text(sys.prefix)\n"
    (in_data_folder / "fetch.py").write_text(script)
    load(in_data_folder, GOOD.replace("images/val", "fetched") + "download: python fetch.py\n")
    assert (in_data_folder / "who").read_text() == sys.prefix


def test_a_download_that_fails_or_brings_nothing_is_reported(in_data_folder):
    missing = GOOD.replace("images/val", "fetched")
    with pytest.raises(UserError, match="ended with code 3"):
        load(in_data_folder, missing + "download: exit 3\n")
    with pytest.raises(UserError, match="still missing after the download"):
        load(in_data_folder, missing + "download: 'true'\n")


def test_a_zip_is_fetched_and_unpacked(in_data_folder):
    with zipfile.ZipFile("set.zip", "w") as archive:
        archive.writestr("fetched/a.txt", "x")
    address = (in_data_folder / "set.zip").as_uri()
    load(in_data_folder, GOOD.replace("images/val", "fetched") + f"download: {address}\n")
    assert (in_data_folder / "fetched/a.txt").read_text() == "x"
    with pytest.raises(UserError, match=r"could not fetch file:.*none\.zip"):
        load(in_data_folder, GOOD.replace("images/val", "more") + "download: file:///none.zip\n")
