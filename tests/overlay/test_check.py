"""`--check`: both sides on the first batches, a table, and an end where they differ."""

import json
import multiprocessing
import re

import pytest
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.overlay.batch_comparison import BatchComparison, difference


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Name -> (batches, difference) of each row of the table."""
    found = re.findall(r"^(.{28}) *(\d+) +(none|[\d.e+-]+|inf) +[\d.]+ ms +[\d.]+ ms +[\d.]+x", text, re.M)
    return {name.strip(): (batches, apart) for name, batches, apart in found}


def test_the_table_has_a_row_for_everything_that_was_compared(known_repo, inside, capsys):
    inside.run(known_repo, "--check", "2", "--", "train.py", "--workers", "1")
    table = rows(capsys.readouterr().out)
    assert table["samples"] == ("1", "none")  # the last loader made was the evaluation's, of one batch
    assert table["ComputeLossOTA"][0] == "2" and table["ComputeLoss"][0] == "1"
    checked = json.loads((known_repo / "run.json").read_text())
    inside.run(known_repo, "--", "train.py", "--workers", "1")
    assert json.loads((known_repo / "run.json").read_text()) == checked, "a check does not change the run"


def edit(repo, file, old, new):
    text = (repo / file).read_text()
    assert old in text
    (repo / file).write_text(text.replace(old, new))


def test_a_loss_that_differs_ends_the_run(known_repo, inside):
    edit(known_repo, "utils/loss.py", "targets.cuda(), imgs", "targets.cuda() * 0.999, imgs")
    with pytest.raises(UserError, match=r"--check: ComputeLossOTA differs .*leave out --check"):
        inside.run(known_repo, "--force", "--check", "--", "train.py")
    assert not (known_repo / "last.pt").exists()


@pytest.mark.parametrize(
    "ours, theirs, apart",
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), 0.2),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), float("inf")),
        (torch.zeros(2), torch.zeros(3), float("inf")),
        (torch.zeros(0), torch.zeros(0), 0.0),
        (torch.tensor([float("nan")]), torch.tensor([1.0]), float("inf")),
        ((torch.ones(1), ["a"]), (torch.ones(1), ["b"]), float("inf")),
        ((torch.ones(1),), (torch.ones(1), torch.ones(1)), float("inf")),
    ],
)
def test_differences_are_relative_to_the_largest_number(ours, theirs, apart):
    assert difference(ours, theirs) == pytest.approx(apart)


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((2, 3, 8, 8), i, dtype=torch.uint8), torch.full((3, 6), float(i)), (str(i),), ()


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_of_pytorchs_own_are_compared_and_their_processes_ended(capsys, workers):
    before = {process.pid for process in multiprocessing.active_children()}

    def create(path, prefix=""):
        return torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=workers), None

    loader, _ = BatchComparison(2).loader(create, create)("path", prefix="\x1b[34mtrain: \x1b[0m")
    assert rows(capsys.readouterr().out) == {"samples train": ("2", "none")}
    assert {process.pid for process in multiprocessing.active_children()} == before
    assert len(loader) == 4
