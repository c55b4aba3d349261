"""`python -m benchmarks`: the final table, and that each part shows how its cost grows. Nothing is measured here."""

import json
import subprocess
from pathlib import Path

import pytest

import benchmarks.__main__ as command

SECONDS = {"plain": 1.0, "ota": 1.03}
MACHINE = {"cpu": "a processor", "cores": 2, "torch": "2.9"}


def row(what: str, value: float, must: str) -> dict:
    return {"what": what, "value": value, "must": must, "runs": 5}


RATIOS = {
    "loss": [row("OTA / plain", 1.1, "<= 1.25"), row("operators, 64 / 4", 1.0, "== 1")],
    "data": [row("memory", 1.5, "< 1.02x"), row("samples", 2.0, "-")],
    "eval": [row("loops / arrays", 9.999, ">= 10")],
    "train": [row("eager / compiled", 1.2, "> 1")],
}
TABLE = """
cpu a processor cores 2 torch 2.9
        what                                                                                  ratio  must              verdict  runs
loss    OTA / plain                                                                           1.100  <= 1.25           ok          5
loss    operators, 64 / 4                                                                     1.000  == 1              ok          5
data    memory                                                                                1.500  < 1.02x           MISSED      5
data    samples                                                                               2.000  -                 -           5
eval    loops / arrays                                                                        9.999  >= 10             MISSED      5
train   eager / compiled                                                                      1.200  > 1               ok          5
"""  # noqa: E501


@pytest.fixture
def parts(monkeypatch) -> list[list[str]]:
    """Parts that write recorded figures instead of measuring; returns the command lines they were started with."""
    started = []

    def run(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess:
        started.append(arguments[1:-1])
        part = {module: part for part, module in command.PARTS.items()}[arguments[2]]
        if part in RATIOS:
            Path(arguments[-1]).write_text(json.dumps({"machine": MACHINE, "ratios": RATIOS[part]}))
        return subprocess.CompletedProcess(arguments, 0 if part in RATIOS else 1)

    monkeypatch.setattr(command.subprocess, "run", run)
    return started


def test_one_table_shows_every_ratio_with_its_verdict_and_a_miss_is_no_failure(parts, capsys):
    assert command.main([]) == 0
    text = capsys.readouterr().out
    assert text[text.index("cpu a processor") :] == TABLE.lstrip()
    assert parts == [["-m", command.PARTS[part], "--quick", "--json"] for part in RATIOS]
    assert command.main(["--full"]) == 0
    assert parts[-1] == ["-m", "benchmarks.training.train", "--json"]


def test_a_part_that_could_not_run_is_reported_below_the_others(parts, monkeypatch, capsys):
    monkeypatch.setattr(command, "PARTS", {"broken": "benchmarks.broken", "eval": "benchmarks.inference.eval"})
    assert command.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "benchmarks.broken failed" and lines[-2].startswith("eval    loops / arrays")


@pytest.mark.parametrize(
    "value, must, wanted",
    [(2.0, "<= 2.0", "ok"), (2.1, "<= 2.0", "MISSED"), (1.0, "> 1", "MISSED"), (0.25, "<= 0.25x", "ok"),
     (float("nan"), ">= 1", "MISSED"), (1.0, "", "-"), (1.0, "-", "-")],
)  # fmt: skip
def test_verdicts(value, must, wanted):
    assert command.verdict(value, must) == wanted
