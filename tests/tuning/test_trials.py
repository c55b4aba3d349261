"""Trials are real iterations; children, ways of waiting, the table and the run file."""

import sys
from types import SimpleNamespace

import cv2
import pytest
import torch

from tests.training.commands import small_run
from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.run_file import read_run_file
from yolov7fast.commands.machine import tune
from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.tuning import report, trials, waiting
from yolov7fast.tuning.dimensions import Effect
from yolov7fast.tuning.search import Row
from yolov7fast.tuning.trials import ChildTrial, TrainingTrial, ValidationTrial
from yolov7fast.tuning.waiting import BRIEF, PASSIVE, SPINNING, Waiting

CPU = torch.device("cpu")


@pytest.fixture
def opt(tmp_path, shapes_small):
    found = parser_for("train").parse_args(small_run(tmp_path, shapes_small))
    found.synthetic = False
    return found


# --- trials -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "images"), [(0.1, 4), (0.3, 2), (9.0, 2)])
def test_trials_use_a_smaller_batch_where_a_cpu_is_slow(opt, monkeypatch, seconds, images):
    class Slow:
        def __init__(self, *_):
            pass

        def burst(self) -> float:
            return seconds

        def close(self) -> None:
            pass

    monkeypatch.setattr(trials, "TrainingTrial", Slow)
    opt.batch_size = 4
    data = load_data_yaml(opt.data)
    assert trials.trial_batch(opt, data, CPU) == images
    assert trials.trial_batch(opt, data, torch.device("cuda")) == 4


def test_a_burst_ends_in_time(opt, monkeypatch):
    for name in ("WARM_SECONDS", "TIMED_SECONDS"):
        monkeypatch.setattr(trials, name, 0.0)
    trial = TrainingTrial(opt, load_data_yaml(opt.data), CPU, {}, iterations=50)
    try:
        assert trial.burst() > 0 and trial.step.ema.updates == 2  # one before the clock starts, one timed
    finally:
        trial.close()


def test_a_burst_trains_with_the_flags_and_puts_threads_back(opt, monkeypatch):
    data, threads = load_data_yaml(opt.data), []
    trial = TrainingTrial(
        opt, data, CPU, {"channels_last": True, "opencv_threads": 1, "torch_threads": 2}, iterations=2
    )
    step, before = trial.step, torch.get_num_threads()

    def counted(batch, *rest):
        threads.append((torch.get_num_threads(), cv2.getNumThreads()))
        return step(batch, *rest)

    counted.sync_metrics = step.sync_metrics
    trial.step = counted
    try:
        assert 0 < trial.burst() < 60
    finally:
        trial.close()
    assert threads == [(2, 1)] * 3  # one before the clock starts
    assert torch.get_num_threads() == before and cv2.getNumThreads() <= 1
    weight = next(p for p in trial.family.model.parameters() if p.dim() == 4 and min(p.shape[:2]) > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last) and step.ema.updates == 3
    validation = ValidationTrial(opt, data, CPU, {"test_batch_size": 3}, iterations=1)
    seen = []
    validation.family.ema.ema.register_forward_hook(lambda m, images, out: seen.append(len(images[0])))
    assert validation.burst() > 0
    validation.close()
    assert seen == [3, 3, 3]  # a warm-up, and as many images as the iterations would have, rounded up


class Done(SimpleNamespace):
    returncode, stderr = 0, ""


def test_a_child_reports_its_usual_time_and_what_its_start_took(monkeypatch):
    given = {}

    def run(command, **kwargs):
        given.update(kwargs, command=command)
        return Done(stdout="torch says hello\n[10.0, 1.0, 3.0, 2.0]\n")

    monkeypatch.setattr(trials.subprocess, "run", run)
    trial = ChildTrial({"batch_size": 4}, {"compile": True}, 9, {"OMP_WAIT_POLICY": "PASSIVE"})
    assert trial.burst() == 2.0 and trial.startup == 8.0 * 4
    assert given["command"][0] == sys.executable and given["env"]["OMP_WAIT_POLICY"] == "PASSIVE"
    assert '"compile": true' in given["input"] and given["timeout"] == 9


def test_a_child_that_fails_or_does_not_end_is_named(monkeypatch):
    monkeypatch.setattr(trials.subprocess, "run", lambda *_, **__: Done(returncode=1, stderr="a\nRuntimeError: no"))
    with pytest.raises(UserError, match="it fails: RuntimeError: no"):
        ChildTrial({"batch_size": 4}, {}, 9).burst()

    def hang(*_, **__):
        raise trials.subprocess.TimeoutExpired("python", 9)

    monkeypatch.setattr(trials.subprocess, "run", hang)
    with pytest.raises(TimeoutError, match="not ready in 9 s"):
        ChildTrial({"batch_size": 4}, {}, 9).burst()


# --- ways of waiting --------------------------------------------------------------------------------------------------


def test_ways_of_waiting_are_measured_in_turn_and_the_trap_is_named(monkeypatch):
    order = []

    class Child:
        def __init__(self, options, flags, seconds, environment):
            self.name = next(name for name, wanted in waiting.POLICIES.items() if wanted == environment)

        def burst(self):
            order.append(self.name)
            return {SPINNING: 2.5, BRIEF: 0.1, PASSIVE: 0.2}[self.name]

    monkeypatch.setattr(waiting, "ChildTrial", Child)
    found = waiting.measure_waiting({}, 2, 10)
    assert order == [SPINNING, BRIEF, PASSIVE] * 2 and found.slowdown == pytest.approx(25)
    assert "25.0 times" in waiting.verdict(found, 0.9) and waiting.verdict(found, 0.9).startswith("trap: ")
    calm = waiting.verdict(Waiting({SPINNING: 1.0, BRIEF: 1.0, PASSIVE: 0.9}), 0.0)
    assert "trap" not in calm and "fastest: passive" in calm
    assert "2500.00" in report.waiting_table(found)


def test_how_busy_the_cores_are(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 0 10 70 10 0 0 0 0 0\n")
    assert waiting.busy_fraction(0, stat) == 0.0 == waiting.busy_fraction(0, tmp_path / "missing")


def test_a_rival_is_busy_while_the_block_runs(monkeypatch):
    monkeypatch.setattr(waiting, "RIVAL", "print('busy', flush=True)\nwhile True: pass")
    started = []
    popen = waiting.subprocess.Popen
    monkeypatch.setattr(waiting.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[0])
    with waiting.rival(1):
        assert started[0].poll() is None
    assert started[0].returncode is not None


# --- the table, the run file, the command -----------------------------------------------------------------------------

ROWS = [
    Row("workers", {"workers": 2}, Effect.NOISE, 1.5, 0.1, chosen=True),
    Row("compile", {"compile": True}, Effect.NOISE, 1.1, 0.1, cost=41.0),
    Row("precision", {"amp": "bf16"}, Effect.CHANGED, 0.0, note="changes results"),
]


def test_the_table_says_what_each_bought():
    text = report.table(ROWS)
    assert "--workers 2" in text and "1.50x" in text and "chosen" in text and "41 s to start" in text
    assert "other numbers" in text and "changes results" in text


@pytest.mark.parametrize("chosen", [{}, {"workers": 2, "cache_images": "disk", "channels_last": True, "amp": "off"}])
def test_the_run_file_can_be_read_as_config(tmp_path, chosen):
    path = tmp_path / "this_machine.yaml"
    path.write_text(report.run_file(chosen, "tiny"))
    assert read_run_file(path, flags_of("train"), "yolo") == chosen


class KnownTrial:
    startup = 0.0

    def __init__(self, opt, data, device, flags):
        self.flags = flags

    def burst(self) -> float:
        return 0.5 if self.flags.get("cache_images") == "disk" else 1.0

    def close(self) -> None:
        pass


def test_the_command_writes_its_choice(tmp_path, opt, monkeypatch, capsys):
    times = dict(zip(waiting.POLICIES, (3.0, 1.0, 1.0)))
    monkeypatch.setattr(waiting, "measure_waiting", lambda *_: Waiting(times))
    monkeypatch.setattr(waiting, "busy_fraction", lambda: 0.5)
    for name in ("TrainingTrial", "ValidationTrial"):
        monkeypatch.setattr(trials, name, KnownTrial)
    monkeypatch.setattr(trials, "ChildTrial", lambda options, flags, seconds: KnownTrial(None, None, None, flags))
    out, table = tmp_path / "sub" / "fast.yaml", tmp_path / "table.json"
    flags = ("--cfg", opt.cfg, "--data", opt.data, "--batch-size", "4", "--output", str(out), "--json", str(table))
    assert tune.main([*flags, "--device", "cpu"]) == 0
    assert read_run_file(out, flags_of("train"), "yolo") == {"cache_images": "disk"}
    text = capsys.readouterr().out
    assert "fastest: --cache-images disk" in text and "trap: " in text and f"--config {out}" in text
    assert '"chosen": {' in table.read_text()


def test_mistakes_are_named():
    with pytest.raises(UserError, match="--data is missing"):
        tune.parse([])
    with pytest.raises(UserError, match="give the number of images"):
        tune.parse(["--data", "x.yaml", "--batch-size", "auto"])
    with pytest.raises(UserError, match="--minutes is 0"):
        tune.parse(["--data", "x.yaml", "--minutes", "0"])
