"""The benchmark of saving: real checkpoints, one figure a network."""

import json

from benchmarks.training import checkpoints


def test_a_save_is_timed_and_sized(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoints, "NETWORKS", {"yolov7-tiny": "cfg/training/yolov7-tiny.yaml"})
    checkpoints.main(["--quick", "--runs", "1", "--folder", str(tmp_path), "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert 100 < found["megabytes"]["yolov7-tiny"] < 200  # twice in half precision, four times in single
    assert found["ratios"][0]["value"] == found["seconds"]["yolov7-tiny"] / 600
    assert "of 10 minutes" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
