"""A data set that is missing: what is offered, what runs with --allow-download, where archives may unpack."""

import os
import stat
import zipfile

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import load_data_yaml

YAML = "train: fetched/images/train\nval: fetched/images/val\nnames: [cat, dog]\n"
IMAGE = "images/val/a.jpg"


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(folder, text, allow_download=True):
    (folder / "d.yaml").write_text(text)
    return load_data_yaml("d.yaml", allow_download=allow_download)


def archive(folder, names, link=None) -> str:
    """The address of a zip with small files of these names."""
    with zipfile.ZipFile(folder / "set.zip", "w") as file:
        for name in names:
            file.writestr(name, "x")
        if link:
            entry = zipfile.ZipInfo(link)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            file.writestr(entry, "/etc")
    return (folder / "set.zip").as_uri()


def files_of(folder) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() or p.is_symlink())


# --- without permission -----------------------------------------------------------------------------------------------


def test_images_that_are_missing_are_reported_with_what_the_folder_holds(working_folder):
    (working_folder / "fetched/images/vall").mkdir(parents=True)
    with pytest.raises(UserError, match=r"val: fetched/images/val does not exist.*images holds: vall"):
        load(working_folder, YAML)


def test_without_permission_nothing_runs_and_one_line_says_what_would(working_folder):
    with pytest.raises(UserError, match="--allow-download would run this command: touch ran") as caught:
        load(working_folder, YAML + "download: touch ran\n", allow_download=False)
    assert len(str(caught.value).splitlines()) == 1 and not (working_folder / "ran").exists()
    address = archive(working_folder, [f"fetched/{IMAGE}"])
    with pytest.raises(UserError, match=r"--allow-download would fetch file:.*set\.zip and unpack it into .*/fetched"):
        load(working_folder, YAML + f"download: {address}\n", allow_download=False)
    assert files_of(working_folder) == ["d.yaml", "set.zip"]


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_command_runs_when_images_are_missing_and_only_then(working_folder):
    text = YAML + "download: mkdir -p fetched/images/val && touch ran\n"
    load(working_folder, text)
    assert (working_folder / "ran").exists()
    (working_folder / "ran").unlink()
    load(working_folder, text)
    assert not (working_folder / "ran").exists()


def test_a_command_that_fails_or_brings_nothing_is_reported(working_folder):
    with pytest.raises(UserError, match="ended with code 3"):
        load(working_folder, YAML + "download: exit 3\n")
    with pytest.raises(UserError, match="still missing after the download"):
        load(working_folder, YAML + "download: 'true'\n")


# --- archives ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "fetched/"])
def test_an_archive_is_unpacked_into_the_folder_of_the_data_set(working_folder, prefix):
    address = archive(working_folder, [f"{prefix}{IMAGE}", f"{prefix}labels/val/a.txt"])
    load(working_folder, YAML + f"download: {address}\n")
    assert files_of(working_folder / "fetched") == [IMAGE, "labels/val/a.txt"]
    assert files_of(working_folder) == ["d.yaml", f"fetched/{IMAGE}", "fetched/labels/val/a.txt", "set.zip"]


def test_an_archive_is_never_unpacked_over_a_file(working_folder):
    mine = working_folder / "fetched/labels/val/a.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    address = archive(working_folder, [IMAGE, "labels/val/a.txt"])
    with pytest.raises(UserError, match=r"labels/val/a\.txt exists and is not overwritten"):
        load(working_folder, YAML + f"download: {address}\n")
    assert mine.read_text() == "mine" and files_of(working_folder / "fetched") == ["labels/val/a.txt"]
    assert [p for p in os.listdir(working_folder) if p.startswith(".")] == []


def test_links_are_refused_in_the_archive_and_on_the_way(working_folder, tmp_path_factory):
    address = archive(working_folder, [IMAGE], link="images/link.txt")
    with pytest.raises(UserError, match="is a link"):
        load(working_folder, YAML + f"download: {address}\n")
    outside = tmp_path_factory.mktemp("outside")
    (working_folder / "fetched").mkdir()
    (working_folder / "fetched/images").symlink_to(outside)
    address = archive(working_folder, [IMAGE])
    with pytest.raises(UserError, match="behind a link that leads out"):
        load(working_folder, YAML + f"download: {address}\n")
    assert files_of(outside) == []


def test_a_data_set_without_a_folder_of_its_own_gets_nothing_unpacked(working_folder):
    """As before: an archive unpacked in the working directory once replaced its LICENSE."""
    (working_folder / "LICENSE").write_text("mine")
    address = archive(working_folder, ["LICENSE", "val/a.jpg"])
    with pytest.raises(UserError, match="names no separate folder"):
        load(working_folder, f"val: val\ntrain: train\nnames: [a]\ndownload: {address}\n")
    assert (working_folder / "LICENSE").read_text() == "mine" and files_of(working_folder) == [
        "LICENSE",
        "d.yaml",
        "set.zip",
    ]


def test_an_address_that_gives_nothing_or_no_archive_is_named(working_folder):
    with pytest.raises(UserError, match=r"could not fetch file:.*none\.zip"):
        load(working_folder, YAML + "download: file:///none.zip\n")
    (working_folder / "bad.zip").write_text("no archive")
    with pytest.raises(UserError, match=r"bad\.zip is damaged or not a zip file"):
        load(working_folder, YAML + f"download: {(working_folder / 'bad.zip').as_uri()}\n")


# --- drawn here -------------------------------------------------------------------------------------------------------


def test_the_projects_own_data_set_is_drawn_without_permission(working_folder, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "yolov7fast.data.download.make_shapes",
        lambda root: drawn.append(root) or (root / "images/val").mkdir(parents=True),
    )
    load(working_folder, YAML + "generate: shapes\n", allow_download=False)
    assert [path.name for path in drawn] == ["fetched"]
    with pytest.raises(UserError, match="generate: cities is unknown; the only one is shapes"):
        load(working_folder, YAML.replace("fetched", "other") + "generate: cities\n")
