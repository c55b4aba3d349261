"""The comparison with a checkout of upstream, with a stand-in in its place."""

import json
import os
import shutil
from pathlib import Path

import pytest

from benchmarks.side_by_side import epochs as reference_epochs
from benchmarks.side_by_side import reference
from benchmarks.side_by_side.parts import Case, own_data
from benchmarks.side_by_side.sides import in_a_process
from yolov7fast.core.errors import UserError
from yolov7fast.overlay.checkout import Checkout

SMALL = ["--batch-size", "2", "--step-batch-size", "4", "--img-size", "64", "--targets", "3", "--classes", "3"]
SMALL += ["--runs", "1", "--rounds", "1", "--workers", "1"]


def run(repo: Path, images: Path, *options: str) -> dict[str, dict]:
    out = repo.parent / "figures.json"
    assert reference.main(["--repo", str(repo), *SMALL, "--images", str(images), "--json", str(out), *options]) == 0
    return {row["what"]: row for row in json.loads(out.read_text())["rows"]}


def test_every_part_is_timed_on_both_sides_and_compared(repo, inside, shapes, capsys):
    rows = run(repo, shapes / "images/train", "--epochs", "0")
    assert {"ComputeLoss, forward", "ComputeLossOTA, forward + backward", "training step with OTA"} <= rows.keys()
    assert {"32 samples at 64, CPU time", "8 batches of 1 workers", "average precision, 4800 detections"} <= rows.keys()
    for row in rows.values():
        assert row["upstream"] > 0 and row["overlay"] > 0 and row["difference"] < 1e-5, row
    for what in ("32 samples at 64, CPU time", "32 samples at 640, CPU time", "8 batches of 1 workers"):
        assert rows[what]["difference"] == 0
    counts = rows["ComputeLossOTA, forward"]["counts"]
    assert counts["overlay"]["host_reads"] == 0 and counts["overlay"]["operators"] > 0
    assert "host reads" in capsys.readouterr().out
    assert not list((shapes / "labels").glob("*.cache")), "the user's label folder was written to"


def test_a_broken_part_is_reported_and_the_rest_still_timed(repo, inside, shapes, capsys):
    text = (repo / "utils/loss.py").read_text()
    broken = "raise IndexError('boxes')\n        return self.inner(p, targets.cuda(), imgs)"
    (repo / "utils/loss.py").write_text(text.replace("return self.inner(p, targets.cuda(), imgs)", broken))
    rows = run(repo, shapes / "none", "--epochs", "0", "--parts", "plain", "ota")
    assert rows["ota"]["error"] == "IndexError: boxes"
    assert rows["ComputeLoss, forward"]["upstream"] > 0
    assert "no images in" in capsys.readouterr().out


def test_the_data_set_of_the_comparison_may_be_written(shapes, tmp_path):
    shutil.copytree(shapes, tmp_path / "given")
    images = tmp_path / "given/images/train"
    (images / "deeper").mkdir()
    shutil.copy(sorted(images.glob("*.*"))[0], images / "deeper" / "unlabelled.jpg")
    made = own_data(images, tmp_path / "own")
    assert (made / "deeper" / "unlabelled.jpg").is_symlink()
    own, given = made.parents[1] / "labels/train", tmp_path / "given/labels/train"
    assert {p.name: p.read_text() for p in own.glob("*.txt")} == {p.name: p.read_text() for p in given.glob("*.txt")}
    assert not any(path.is_symlink() for path in own.glob("*.txt")) and os.access(own.parent, os.W_OK)


def test_a_side_in_a_process_of_its_own_is_prepared_there_and_measures_its_cpu_time():
    prepared = []
    side = in_a_process(lambda: (list(prepared), os.getpid()), lambda: prepared.append("there"))
    there, process = side.run()
    assert there == ["there"] and process != os.getpid() and not prepared
    assert side.seconds is not None and 0 <= side.seconds() < 5
    with pytest.raises(RuntimeError, match="IndexError"):
        in_a_process(lambda: [][1], int).run()


@pytest.mark.parametrize("first, apart", [("1 2 3 6", 0.0), ("1 2 3 7", float("inf"))])
def test_epochs_take_turns_and_first_steps_are_compared(repo, shapes, tmp_path, monkeypatch, first, apart):
    order = []

    def run(checkout, case, side, epochs, folder):
        order.append((side, epochs))
        return (9.0, "1 2 3 6") if side == "upstream" else (3.0, first)

    monkeypatch.setattr(reference_epochs, "run", run)
    case = Case(Checkout(repo), 2, 4, 64, 3, 3, 1, 1, shapes / "images/train", {})
    [row] = reference_epochs.measure_epochs(case.checkout, case, 1, 2, tmp_path)
    assert order == [("upstream", 1), ("overlay", 1)] * 2
    assert (row["upstream"], row["overlay"], row["difference"]) == (9.0, 3.0, apart)


@pytest.mark.slow
def test_an_epoch_of_the_checkouts_own_script(repo, shapes, tmp_path):
    tmp_path = tmp_path / "scratch"
    tmp_path.mkdir()
    case = Case(Checkout(repo), 2, 4, 64, 3, 4, 1, 1, own_data(shapes / "images/train", tmp_path / "data"), {})
    (tmp_path / "data.yaml").write_text(f"train: {case.images}\nval: {case.images}\nnc: 4\nnames: [a, b, c, d]\n")
    seconds, first = reference_epochs.run(case.checkout, case, "upstream", 1, tmp_path / "run")
    assert seconds > 0 and len(first.split()) == 4
    with pytest.raises(UserError, match=r"upstream: train\.py of .* failed"):
        reference_epochs.run(case.checkout, case, "upstream", 1, tmp_path / "none" / "run")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--rounds", "0"], "--rounds is 0; it must be at least 1"),
        (["--img-size", "100"], "--img-size is 100; it must be a multiple of 32"),
    ],
)
def test_impossible_numbers_are_refused(repo, options, message):
    with pytest.raises(UserError, match=message):
        reference.main(["--repo", str(repo), *options])


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a checkout"):
        reference.main(["--reference", str(tmp_path)])
