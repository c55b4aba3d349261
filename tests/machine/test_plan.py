"""`yolov7fast plan`: what it prints."""

import pytest

from yolov7fast.cli.commands import plan
from yolov7fast.core.errors import UserError

CFG = ("--cfg", "yolov7-tiny", "--img-size", "128")


def rows(text: str) -> list[list[float]]:
    return [list(map(float, line.split())) for line in text.splitlines() if line.split() and line.split()[0].isdigit()]


def test_a_plan_halves_the_batch_and_its_rows_add_up(shapes_small, capsys):
    assert plan.main([*CFG, "--batch-size", "4", "--data", str(shapes_small / "shapes.yaml")]) == 0
    text = capsys.readouterr().out
    assert "float16, 4 classes" in text and "shapes.yaml" in text
    table = rows(text)
    assert [row[0] for row in table] == [4, 2, 1]
    assert all(sum(row[1:5]) == pytest.approx(row[5], abs=0.03) for row in table)
    assert table[0][3] > table[2][3] and all(row[4] == 1.0 for row in table)


def test_without_a_data_set_it_plans_with_the_classes_and_boxes_of_coco(capsys):
    assert plan.main([*CFG, "--batch-size", "1", "--amp", "off"]) == 0
    assert "float32, 80 classes; as many boxes as in COCO" in capsys.readouterr().out


def test_mistakes_are_named():
    with pytest.raises(UserError, match="--img-size 65: give a multiple of 32"):
        plan.main(["--cfg", "yolov7-tiny", "--img-size", "65"])
    with pytest.raises(UserError, match="--cfg is empty"):
        plan.main(["--cfg", ""])
