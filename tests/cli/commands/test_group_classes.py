"""`yolov7fast data heads`: the head configuration of a data set."""

import pytest

from yolov7fast.cli.commands.data import main
from yolov7fast.core.errors import UserError
from yolov7fast.nn.multihead import HeadConfig


def run(capsys, *words) -> str:
    assert main(["heads", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_table_and_file_for_a_data_set(shapes_small, tmp_path, capsys):
    output = tmp_path / "heads.yaml"
    printed = run(capsys, shapes_small / "shapes.yaml", "--heads", 2, "--img-size", 320, "--output", output)
    config = HeadConfig.load(output)
    assert (config.nc, config.heads) == (4, 2)
    assert "head_0" in printed and "cone (2)" in printed and f"--head-config {output}" in printed
    assert "  # cone" in output.read_text()


def test_heads_are_ordered_from_tall_to_wide_on_the_projects_own_data(shapes, tmp_path, capsys):
    words = (shapes / "shapes.yaml", "--heads", 3, "--img-size", 320, "--ratio-only")
    run(capsys, *words, "--output", tmp_path / "ratio.yaml")
    assert HeadConfig.load(tmp_path / "ratio.yaml").classes == ((2,), (0, 3), (1,))  # cones, balls and stars, boxes
    assert HeadConfig.load(tmp_path / "ratio.yaml").names == ("tall", "square", "wide")


def test_too_many_heads_are_refused(shapes_small, tmp_path, capsys):
    with pytest.raises(UserError, match="4 classes cannot be distributed over 9 heads: ask for 1 to 4"):
        run(capsys, shapes_small / "shapes.yaml", "--heads", 9, "--output", tmp_path / "x.yaml")


# --- where it may write -----------------------------------------------------------------------------------------------


def test_nothing_is_written_where_something_could_be_lost(shapes_small, tmp_path, capsys):
    data, folder = tmp_path / "mine.yaml", tmp_path / "folder.yaml"
    data.write_text((shapes_small / "shapes.yaml").read_text())
    folder.mkdir()
    before = data.read_bytes()
    for output in (data, folder, tmp_path / "image.png", tmp_path / "nowhere" / "x.yaml"):
        with pytest.raises(UserError, match=str(output)):
            run(capsys, data, "--heads", 2, "--output", output)
    assert data.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["folder.yaml", "mine.yaml"]


def test_a_file_that_was_edited_is_replaced_only_on_request(shapes_small, tmp_path, capsys):
    output = tmp_path / "heads.yaml"
    words = (shapes_small / "shapes.yaml", "--heads", 2, "--output", output)
    run(capsys, *words)
    written = output.read_text()
    run(capsys, *words)  # the same again
    output.write_text(written.replace("weight: 1.0", "weight: 2.0", 1))
    with pytest.raises(UserError, match=r"exists and differs: .* --exist-ok"):
        run(capsys, *words)
    assert "weight: 2.0" in output.read_text()
    run(capsys, *words, "--exist-ok")
    assert output.read_text() == written


def test_labels_beyond_the_classes_are_reported_with_file_and_line(shapes_small, tmp_path, capsys):
    data = tmp_path / "two.yaml"
    data.write_text(f"train: {shapes_small}/images/train\nval: {shapes_small}/images/val\nnc: 2\nnames: [a, b]\n")
    with pytest.raises(UserError, match=r"labels/train/\d+\.txt:\d+: class [23], but .*two.yaml has nc: 2"):
        run(capsys, data, "--heads", 2)


def test_class_names_with_line_breaks_leave_the_file_readable(shapes_small, tmp_path, capsys):
    data = tmp_path / "odd.yaml"
    names = '["a\\nb", "#", "c: d", "e"]'
    data.write_text(f"train: {shapes_small}/images/train\nval: {shapes_small}/images/val\nnc: 4\nnames: {names}\n")
    run(capsys, data, "--heads", 2)
    assert HeadConfig.load(tmp_path / "odd_2heads_geometry.yaml").nc == 4
