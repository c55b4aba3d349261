"""The commands as a user starts them, each in its own process on the fake runtime."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from fake_cuda_hooks import FAKE

from tests.cuda_host.training_steps import STEP
from tests.training.commands import small_run
from tests.training.families.detr_commands import needs_transformers, run_file
from yolov7fast.training.hyperparameters import load_hyp


def on_gpu(arguments: list[str], *extra: str, device: str = "0") -> list[str]:
    changed = list(arguments)
    changed[changed.index("--device") + 1] = device
    return [*changed, *extra]


def waits_in_steps(log: Path) -> Counter:
    """Waits of a training step in a run; those that have no line of ours are the autograd thread's."""
    waits = [json.loads(line) for line in log.read_text().splitlines()]
    return Counter((what, tuple(places[:2])) for what, _, places in waits if not places or any(map(is_step, places)))


def is_step(place: str) -> bool:
    return all(part in place for part in STEP)


def results(folder: Path) -> list[str]:
    return (folder / "runs/run/results.csv").read_text().splitlines()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, shapes_small) -> tuple[Path, Path]:
    """(folder, log of waits): two epochs of train.py, killed in the second and resumed."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = on_gpu(small_run(folder, shapes_small), "--epochs", "2", "--fast-dataloader", "--seed", "0")
    arguments[arguments.index("--workers") + 1] = "2"
    root = Path(__file__).resolve().parents[2]
    log = folder / "waits"
    whole = {**os.environ, "FAKE_CUDA_WAITS": str(log)}
    commands = (
        (["tests/training/fatal_train.py", *arguments], {"FATAL": "step 7"}, -signal.SIGKILL),
        (["train.py", "--resume", str(folder / "runs/run")], {}, 0),
    )
    for words, environment, code in commands:
        done = subprocess.run(
            [sys.executable, *words], cwd=root, env=whole | environment, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == code, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return folder, log


def test_a_killed_training_is_resumed_and_no_step_waits(trained):
    folder, log = trained
    assert len(results(folder)) == 3
    assert {"last.pt", "best.pt"} <= {file.name for file in (folder / "runs/run/weights").iterdir()}
    assert waits_in_steps(log) == {}


@needs_transformers
@pytest.mark.parametrize("architecture", ["detr", "rtdetr_v2"])
def test_detr_trains_and_validates(architecture, run, tmp_path, shapes_small):
    file = run_file(tmp_path, shapes_small, architecture)
    run("tools/train_detr.py", "--config", file, "--device", "0", "--amp", "fp16", "--workers", "2")
    assert len(results(tmp_path)) == 3


@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        (("--amp", "off", "--channels-last"), ""),
        (("--amp", "bf16", "--channels-last", "--cuda-graph", "--batch-size", "2"), "graphs of the network captured"),
        (("--amp", "bf16", "--cuda-graph", "--rect"), "--cuda-graph has no effect with --rect"),
    ],
)
def test_training_with_other_flags(flags, printed, run, tmp_path, shapes_small):
    done = run("train.py", *on_gpu(small_run(tmp_path, shapes_small), "--epochs", "1", *flags))
    assert len(results(tmp_path)) == 2 and printed in done.stdout + done.stderr


def test_test_py(trained, run, tmp_path, shapes_small):
    weights = trained[0] / "runs/run/weights/last.pt"
    words = ("--weights", str(weights), "--data", str(shapes_small / "shapes.yaml"), "--img", "64", "--batch", "4")
    assert "mAP" in run("test.py", *words, "--device", "0", "--project", str(tmp_path)).stdout


def test_detect_py(trained, run, tmp_path, shapes_small):
    weights = trained[0] / "runs/run/weights/last.pt"
    words = ("--weights", str(weights), "--source", str(shapes_small / "images/val"), "--img", "64", "--device", "0")
    run("detect.py", *words, "--project", str(tmp_path), "--name", "run")
    assert len(list((tmp_path / "run").glob("*.jpg"))) == 8


def test_the_profiler(run, tmp_path):
    words = ("--device", "0", "--img", "64", "--batch-size", "2", "--iters", "2", "--warm-iters", "1")
    out = run("tests/profile_training_loop.py", *words, "--compare-loss", "--output", str(tmp_path)).stdout
    assert "cuda, plain loss" in out and "cuda, ota loss" in out and "recorded with upstream's code" in out
    assert out.count("host ms") == 2 and out.count("GPU time (kernels and copies) not known") == 2
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert set(profile["by_loss"]) == {"plain", "ota"} and profile["host_ms"] > 0 and profile["kernel_ms"] == 0


def test_the_check_of_a_machine(run, tmp_path):
    """Without the comparison of values, which needs real kernels, the number of cores and a compiler."""
    words = ("-m", "yolov7fast", "check", "--only", "host-syncs", "speed", "resume", "--output", str(tmp_path))
    out = run(*words, timeout=290, TORCHDYNAMO_DISABLE="1").stdout
    assert "FAIL" not in out and "yolov7-tiny, ota: 0 host syncs" in out and "kill and resume: 0 of" in out
    assert all(f"batch 64, ota, --channels-last --{option}: " in out for option in ("compile", "cuda-graph"))
    assert "cannot be captured" not in out and "% of the peak" in out
    assert "fastest command line: python train.py --data YOUR.yaml --batch-size 64 --workers" in out


def test_a_batch_too_large_for_the_gpu_is_one_line(run, tmp_path, shapes_small):
    words = on_gpu(small_run(tmp_path, shapes_small), "--epochs", "1")
    done = run("train.py", *words, code=2, FAKE_CUDA_OOM_AT="2", FAKE_CUDA_OOM_TIMES="1000")
    assert "the GPU has no memory left" in done.stderr and "--batch-size" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_automatic_batch_that_is_too_large_begins_again_with_half(run, tmp_path, shapes_small):
    words = on_gpu(small_run(tmp_path, shapes_small), "--epochs", "1")
    words[words.index("--batch-size") + 1] = "auto"
    done = run("train.py", *words, FAKE_CUDA_OOM_AT="3", FAKE_CUDA_OOM_TIMES="2")
    assert "starts again with batch 8" in done.stderr + done.stdout
    assert len(results(tmp_path)) == 2


def test_refused_page_locking_costs_speed_only(run, tmp_path, shapes_small):
    words = on_gpu(small_run(tmp_path, shapes_small), "--epochs", "1", "--fast-dataloader")
    words[words.index("--workers") + 1] = "2"
    run("train.py", *words, FAKE_CUDA_REFUSE_PIN="1")
    assert len(results(tmp_path)) == 2


@pytest.mark.parametrize(
    ("batch", "updates", "flags"), [(4, 2, ()), (2, 4, ("--cuda-graph",))], ids=["eager", "graphs"]
)
def test_two_processes_on_two_gpus_share_gradients_once_an_update(batch, updates, flags, run, tmp_path, shapes_small):
    """Of an epoch of 16 images every second batch updates the weights."""
    at_once = {"warmup_epochs": 0.0, "warmup_min_iters": 0, "nominal_batch": 2 * batch}
    (tmp_path / "hyp.yaml").write_text(yaml.safe_dump(load_hyp("data/hyp.small.yaml") | at_once))
    words = on_gpu(small_run(tmp_path, shapes_small), "--epochs", "1", *flags, device="0,1")
    words += ["--batch-size", str(batch), "--hyp", str(tmp_path / "hyp.yaml")]
    launcher = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0")
    rendezvous = ("--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0")
    counts = {"FAKE_CUDA_COUNTS": str(tmp_path / "counts")}
    run(*launcher, *rendezvous, "train.py", *words, FAKE_CUDA_DEVICES="2", **counts)
    assert len(results(tmp_path)) == 2
    counters = sum(np.fromfile(file, np.int64) for file in tmp_path.glob("counts.*"))
    assert dict(zip(FAKE.names, counters))["all_reduce"] == 2 * updates


@pytest.mark.parametrize(
    ("device", "message"), [("2", "--device 2"), ("0,1", "torchrun --nproc_per_node 2 train.py --device 0,1 ...")]
)
def test_gpus_that_one_process_cannot_use_are_one_line(device, message, run, tmp_path, shapes_small):
    words = on_gpu(small_run(tmp_path, shapes_small), device=device)
    done = run("train.py", *words, code=2, FAKE_CUDA_DEVICES="2")
    assert message in done.stderr and "Traceback" not in done.stderr
