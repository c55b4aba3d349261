"""docs/python.md: its Python and its commands run, its table of results is complete."""

import torch

import yolov7fast
from tests.docs.guide import ROOT, blocks, command_lines, run_line, write_workplace
from tests.training.commands import small_network
from yolov7fast.inference.detection_results import Results

TEXT = (ROOT / "docs" / "python.md").read_text()


def test_its_python_runs(tmp_path, monkeypatch, shapes_small):
    """The run that it shows is made smaller: a small network, one epoch, 64 pixels."""
    monkeypatch.chdir(tmp_path)
    write_workplace(tmp_path)
    asked = {}
    whole = yolov7fast.train

    def smaller(**flags):
        asked.update(flags)
        few = {"epochs": 1, "batch_size": 8, "img_size": 64, "workers": 0, "device": "cpu", "noautoanchor": True}
        return whole(**flags | few | {"data": shapes_small / "shapes.yaml", "cfg": small_network(tmp_path)})

    monkeypatch.setattr(yolov7fast, "train", smaller, raising=False)
    names: dict = {"torch": torch}
    for block in blocks("python.md", "python"):
        exec(block.replace("path/to/this/folder", str(ROOT)), names)
    assert asked["data"] == "my.yaml" and (ROOT / asked["cfg"]).is_file()
    assert names["results"].xyxy[0].shape[1] == 6 and len(names["results"]) == 2
    assert names["run"].weights.is_file() and list(names["model"].names)


def test_its_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_workplace(tmp_path)
    lines = [words for words in command_lines("python.md") if words[1] == "detect.py"]
    for words in lines:
        run_line(words, monkeypatch, "--img-size", "160", "--conf-thres", "0.05", "--device", "cpu")
    assert len(lines) == 2
    assert (tmp_path / "runs/detect/exp/predictions.csv").is_file() and any(tmp_path.glob("runs/detect/exp/crops/*/*"))
    assert (tmp_path / "runs/detect/exp2/large.jpg").is_file()


def test_its_table_names_what_results_have():
    table = TEXT.split("| of `results` |")[1].split("\n\n")[0]
    public = {name for name in dir(Results) if not name.startswith("_")} - {"files", "n", "drawn"}
    assert public == {name for name in public if name in table}
    assert {"print", "show", "save", "render", "pandas", "tolist", "to_supervision", "xyxy", "xywhn"} <= public
