"""`python -m benchmarks`: the final table, and that each part shows how its cost grows. Nothing is measured here."""

import json
import re
import subprocess
from pathlib import Path

import pytest

import benchmarks.__main__ as command
from benchmarks.inference import eval as evaluation
from benchmarks.training import train
from tests.docs.shell import program_of_module

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


@pytest.mark.parametrize("options, sizes", [(["--quick"], [(4, 320)]), ([], list(train.GROWTH))])
def test_the_training_benchmark_shows_growth_at_every_size(options, sizes, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(train, "Side", lambda arguments, *_: arguments)
    monkeypatch.setattr(train, "compare", lambda sides, *_: seen.append(sides["ota"]) or SECONDS)
    monkeypatch.setattr(train, "epochs", lambda *_: {"ratio": 1.4, "data": "shapes"})
    monkeypatch.setattr(train, "compiled", lambda *_: {"ratio": 1.1})
    monkeypatch.setattr(train, "show_machine", lambda: MACHINE)
    monkeypatch.setattr(train.torch, "set_num_threads", lambda _: None)
    out = tmp_path / "out.json"
    assert train.main([*options, "--json", str(out)]) == 0
    central, *others = seen
    assert central[1:] == ["--batch-size", "16", "--img", "320"]
    assert [(int(words[2]), int(words[4])) for words in others] == sizes
    names = [row["what"] for row in json.loads(out.read_text())["ratios"]]
    assert [name for name in names if "batch 4, 320 px" in name] and ("compiled" in " ".join(names)) == (not options)


def test_the_evaluation_benchmark_shows_growth_with_images(monkeypatch, tmp_path):
    cost = {"recorded BCCD": 0.1, "synthetic 250 x 300 x 80": 0.5, "synthetic 1000 x 300 x 80": 2.4}
    crowd = {"synthetic, 80 classes": {"loop": 8.0, "ours": 2.0, "boxes": 30000}}
    monkeypatch.setattr(evaluation, "suppression", lambda runs: crowd)
    monkeypatch.setattr(evaluation, "recorded", list)
    monkeypatch.setattr(evaluation, "synthetic", lambda count: [])
    monkeypatch.setattr(evaluation, "compare", lambda name, *_: {"both": cost[name], "both_loop": 12 * cost[name]})
    monkeypatch.setattr(evaluation.torch, "set_num_threads", lambda _: None)
    out = tmp_path / "out.json"
    assert evaluation.main(["--quick", "--json", str(out)]) == 0
    found = {row["what"]: row for row in json.loads(out.read_text())["ratios"]}
    assert found["matching + AP, 1000 x 300 x 80, loops / arrays"]["must"] == "-"
    assert found["matching + AP, cost of an image, 1000 / 250 images"]["value"] == pytest.approx(1.2)
    assert found["suppression of 30000 candidates, loop / ours"]["value"] == 4


def test_every_mark_that_a_benchmark_sets_can_be_judged():
    """`must` texts are written by hand in the parts: each must be one the table can read."""
    texts = set()
    for module in command.PARTS.values():
        source = Path(program_of_module(module).__file__).read_text()
        texts |= set(re.findall(r'"(?:must )?([<>=]=? [^"{]+)"', source))
    assert len(texts) > 5
    assert {command.verdict(1.0, text) for text in texts} <= {"ok", "MISSED"}
