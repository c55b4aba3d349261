"""Finding images and labels, and what becomes of each kind of faulty file."""

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.data.data_golden import synth
from yolov7fast.core.errors import UserError
from yolov7fast.data.image_io import load_resized
from yolov7fast.data.labels import Subset, check_class_range, check_pair, find_images, img2label_paths

BOX = "0 0.5 0.5 0.2 0.2\n"


def save(path, h=20, w=30, k=0, exif=None, **options):
    image = Image.fromarray(synth(h, w, k)[..., ::-1].copy())
    if exif:
        tags = Image.Exif()
        tags[274] = exif
        options["exif"] = tags
    image.save(path, **options)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """The folder of the recorded discovery cases."""
    monkeypatch.chdir(tmp_path)
    images = tmp_path / "disc/images"
    for name in ("B.jpg", "a.JPG", "a10.png", "a2.png", "d.bmp", "e.webp", "sub/c.jpeg", "v1.0/k.jpg", "notes.txt"):
        path = images / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (images / "sub/.hid").mkdir()
    (images / "sub/.hid/h.jpg").touch()
    (images / "sub/.hid/none").mkdir()
    (tmp_path / "disc/list.txt").write_text(
        "./images/B.jpg\n\ndisc/images/a10.png\n./images/a2.png\n./images/d.bmp  \ndisc/images/notes.txt\n"
    )
    return tmp_path


def test_label_paths_are_as_recorded(data):
    images, labels = zip(*data["img2label_paths"])
    assert img2label_paths(images) == list(labels)


@pytest.mark.parametrize("case", ["dir", "list", "two"])
def test_images_are_found_in_the_recorded_order(case, data, tree):
    record = data["discovery"][case]
    found = find_images(record["path"])
    assert (found, img2label_paths(found)) == (record["img_files"], record["label_files"])


def test_a_bare_relative_folder_has_its_labels_beside_the_images(data, tree, monkeypatch):
    monkeypatch.chdir(tree / "disc")
    record = data["discovery"]["relative"]
    found = find_images("images")
    assert (found, img2label_paths(found)) == (record["img_files"], record["label_files"])


@pytest.mark.parametrize("source", ["disc/nothere", "disc/images/*.jpg", "disc/images/sub/.hid/none", "disc/w.pt"])
def test_a_source_without_images_is_an_error_that_names_it(source, tree):
    (tree / "disc/w.pt").write_bytes(b"\x80\x04\xff\xfe" * 10)  # no list of images
    with pytest.raises(UserError, match=source.replace("*", r"\*")):
        find_images(source, prefix="train: ")


def test_lines_hidden_by_blanks_at_their_end_are_counted_in_a_warning(tree, caplog):
    find_images("disc/list.txt", "val: ")
    assert "val: disc/list.txt: 1 images are left out because blanks" in caplog.text
    assert "first: line 5" in caplog.text
    (tree / "disc/more.txt").write_text("\n\n./images/B.jpg\n./images/a2.png \n./images/a10.png\t\n./images/d.bmp  \n")
    find_images("disc/more.txt")
    assert "disc/more.txt: 2 images" in caplog.text and "first: line 4" in caplog.text  # nothing follows the last line
    caplog.clear()
    (tree / "disc/clean.txt").write_text("./images/B.jpg\ndisc/images/notes.txt \n")
    find_images("disc/clean.txt")
    assert not caplog.text


# --- one pair ---------------------------------------------------------------------------------------------------------


def make_recorded_image(name, path):
    if name == "x_notimg":
        path.write_text("this is no image")
    elif name == "w_gif":
        save(path, format="GIF")
    else:
        save(path, h=9 if name == "u_small" else 20, format="JPEG", exif={"y_exif6": 6, "z_exif5": 5}.get(name))
    if name == "v_trunc":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_the_recorded_pairs_meet_their_recorded_fate(data, tmp_path):
    record = data["verify"]
    found = missing = empty = 0
    rejected = {message.split(".jpg")[0].split()[-1] for message in record["messages"]}
    for name, text in record["input"].items():
        image, label = tmp_path / f"{name}.jpg", tmp_path / f"{name}.txt"
        make_recorded_image(name, image)
        if text is not None:
            label.write_text(text, encoding="utf-8")
        checked = check_pair(str(image), str(label))
        assert (checked.labels is None) == (name in rejected), name
        assert any(problem.skipped for problem in checked.problems) == (name in rejected), name
        found += checked.found
        if name in rejected:
            continue
        missing += not checked.found
        empty += checked.found and not len(checked.labels)
        kept = record["kept"][name]
        assert checked.labels.tolist() == kept["labels"]
        assert checked.labels.dtype == np.float32
        assert len(checked.segments) == kept["nseg"]
        # the recording has the sides of z_exif5 unswapped, though OpenCV turns it; here shape and image agree
        loaded = load_resized(str(image), 640, True).original
        assert checked.shape == loaded[::-1]
        if name != "z_exif5":
            assert list(checked.shape) == kept["shape_wh"]
    assert [found, missing, empty, len(rejected), len(record["input"])] == record["results"]


POLYGON = "0 .1 .1 .5 .1 .5 .4 .1 .4"


def pair(folder, text: str, **options):
    save(folder / "a.jpg")
    (folder / "a.txt").write_text(text)
    return check_pair(str(folder / "a.jpg"), str(folder / "a.txt"), **options)


@pytest.mark.parametrize(
    "text, kind, lines, kept",  # kept: classes of the good lines, if they are wanted
    [
        ("0 0.5 0.5 0.2\n" + BOX + "0 0.5 0.5 0.2 0.2 0.9\n", "wrong columns", [1, 3], [0]),
        ("\n\n" + BOX + "\n" + BOX.replace("0 ", "1 ", 1), "wrong columns", [4], [0, 1]),
        (BOX + "cat 0.5 0.5 0.2 0.2\n", "not a number", [2], [0]),
        (BOX + "1 nan 0.5 0.2 0.2\n1 inf 0.5 0.2 0.2\n", "non-finite", [2, 3], [0]),
        (BOX + "-1 0.5 0.5 0.2 0.2\n", "bad class", [2], [0]),
        ("\n1e30 0.5 0.5 0.2 0.2\n" + BOX + "16777218 0.5 0.5 0.2 0.2\n", "bad class", [2, 4], [0]),
        ("0 -0.1 0.5 0.2 0.2\n0 0.5 1.1 0.2 0.2\n", "box outside", [1, 2], None),
        (BOX + "1 0.5 0.5 0.2 0.2\n" + BOX + BOX, "duplicate row", [3, 4], [0, 1]),
        (f"{POLYGON}\n{POLYGON} .7\n0\n", "wrong columns", [2, 3], [0]),
        (f"{BOX}{POLYGON} .7\n3 0.5 0.5 0.1 0.1\n", "wrong columns", [2], [0, 3]),  # then a file of boxes
    ],
)
def test_every_faulty_line_is_named_and_good_ones_are_kept_on_request(text, kind, lines, kept, tmp_path):
    checked, partial = pair(tmp_path, text), pair(tmp_path, text, keep_partial=True)
    assert checked.labels is None
    assert [(p.kind, p.path, p.line) for p in checked.problems] == [(kind, str(tmp_path / "a.txt"), n) for n in lines]
    assert f"a.txt:{lines[0]}" in str(checked.problems[0])
    if kept is None:
        assert partial.labels is None
        return
    assert partial.labels[:, 0].tolist() == kept and len(partial.segments) == text.startswith(POLYGON)
    left_out = [p.line for p in partial.problems if p.text.endswith("the line is left out")]
    assert sorted(left_out) == lines and not any(p.skipped for p in partial.problems)


def test_odd_but_usable_rows_are_noted_and_kept(tmp_path):
    checked = pair(tmp_path, "0 0.01 0.5 0.5 0.2\n1.5 0.5 0.5 0.2 0.2\n0 0.5 0.5 0 0\n")
    notes = [("box over edge", 1, False), ("fractional class", 2, False), ("empty box", 3, False)]
    assert [(p.kind, p.line, p.skipped) for p in checked.problems] == notes and len(checked.labels) == 3


# --- kinds of image ---------------------------------------------------------------------------------------------------


def make_kind(kind: str, folder):
    """A 60 x 40 image of some kind: path."""
    rgb = synth(40, 60)[..., ::-1].copy()
    image, path = Image.fromarray(rgb), folder / f"a.{kind.split('.')[-1]}"
    name = kind.split(".")[0]
    deep = rgb.astype(np.uint16) * 256 + 255 - rgb  # low bytes that matter if 16 bits were rounded instead of cut
    if name in ("CMYK", "L", "P", "RGBA", "1"):
        image.convert(name).save(path)
    elif name == "16bit":
        cv2.imwrite(str(path), deep[..., ::-1])
    elif name == "grey16":
        Image.fromarray(deep[..., 0]).save(path)
    else:
        image.save(path)
    return path


def by_pillow(path) -> np.ndarray:
    """The image as Pillow converts it to colour: (h, w, 3) BGR; of 16-bit grey, which Pillow clips, the high byte."""
    with Image.open(path) as image:
        if image.mode.startswith("I;16"):
            return np.repeat((np.asarray(image) >> 8)[..., None], 3, 2).astype(int)
        return np.asarray(image.convert("RGB"))[..., ::-1].astype(int)


KINDS = "CMYK.jpg L.jpg P.png RGBA.png 1.png 16bit.png grey16.png 16bit.tif plain.bmp plain.webp"


@pytest.mark.parametrize("kind", KINDS.split())
def test_unusual_images_are_kept_and_become_8_bit_colour(kind, tmp_path):
    path = make_kind(kind, tmp_path)
    checked = check_pair(str(path), str(tmp_path / "a.txt"))
    assert (checked.labels is not None, checked.shape) == (True, (60, 40))
    image = load_resized(str(path), 60, True)
    assert (image.img.shape, image.img.dtype) == ((40, 60, 3), np.uint8)
    limit = 1 if kind in ("CMYK.jpg", "16bit.tif") else 0  # OpenCV rounds inks otherwise, and 16 bits of TIFF
    assert np.abs(image.img - by_pillow(path)).max() <= limit


@pytest.mark.parametrize("form, fraction", [("jpg", 0.0), ("jpg", 0.1), ("png", 0.5), ("bmp", 0.5), ("webp", 0.5)])
def test_an_image_cut_short_beyond_use_is_left_out(form, fraction, tmp_path):
    path = tmp_path / f"a.{form}"
    save(path, h=64, w=64)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * fraction)])
    checked = check_pair(str(path), str(tmp_path / "a.txt"))
    assert checked.labels is None
    assert [p.kind for p in checked.problems] == ["corrupt image"]


def test_a_jpeg_without_its_last_part_is_kept_and_noted(tmp_path):
    path = tmp_path / "a.jpg"
    save(path, h=200, w=200, quality=95)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.7)])
    checked = check_pair(str(path), str(tmp_path / "a.txt"))
    assert (checked.labels is not None, checked.shape) == (True, (200, 200))
    assert [(p.kind, p.skipped) for p in checked.problems[:1]] == [("truncated image", False)]
    assert load_resized(str(path), 200, True).img.shape == (200, 200, 3)


def test_a_class_beyond_the_data_sets_is_named_with_its_file_and_line(tmp_path):
    labels = [np.zeros((0, 5), np.float32), np.array([[1, 0, 0, 1, 1], [3, 0, 0, 1, 1]], np.float32)]
    files = ["a.txt", str(tmp_path / "b.txt")]
    check_class_range(labels, files, 4, "my.yaml")
    with pytest.raises(UserError, match=r"b\.txt:2: class 3, but my\.yaml has nc: 3"):
        check_class_range(labels, files, 3, "my.yaml")
    (tmp_path / "b.txt").write_text("\n  \n1 0 0 1 1\n3 0 0 1 1\n")
    with pytest.raises(UserError, match=r"b\.txt:4: class 3"):
        check_class_range(labels, files, 3, "my.yaml")


# --- subsets ----------------------------------------------------------------------------------------------------------


def test_a_subset_is_the_first_images_or_a_sorted_draw():
    assert Subset(3).pick(10) == [0, 1, 2]
    drawn = Subset(4, seed=7).pick(100)
    assert drawn == sorted(set(drawn)) == Subset(4, seed=7).pick(100)
    assert drawn != Subset(4, seed=8).pick(100)
    assert Subset(50, seed=1).pick(10) == list(range(10))
    with pytest.raises(UserError, match="at least 1"):
        Subset(0).pick(10)
