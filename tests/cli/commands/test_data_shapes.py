"""`yolov7fast data shapes FOLDER` writes a data set that can be trained on."""

from yolov7fast.cli.commands.data import main
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.labels import find_images


def test_another_folder_gets_a_data_yaml(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["shapes", "mine", "--train", "2", "--val", "1", "--size", "96"]) == 0
    assert "--data mine/data.yaml" in capsys.readouterr().out
    monkeypatch.chdir("/")
    data = load_data_yaml(str(tmp_path / "mine" / "data.yaml"))
    assert [len(find_images(data.split(split))) for split in ("train", "val")] == [2, 1]
    assert data.nc == 4
