"""Does a killed run end as if it had not been? Three real processes: one undisturbed, one killed, one resuming."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from yolov7fast.checkpoint.api import load_checkpoint
from yolov7fast.cli.programs import program
from yolov7fast.data.shapes import NAMES, make_shapes
from yolov7fast.diagnostics.results import Line, judged
from yolov7fast.diagnostics.setting import Setting
from yolov7fast.diagnostics.steps import KINDS, narrow_cfg

IMAGES, BATCH, EPOCHS = 24, 4, 2
LONGEST = 120.0  # seconds of a run
LINE = "killed in mid-epoch and resumed, deterministic algorithms"
REMEDY = "report this line with the output below; until then resume at the end of an epoch: --save-every 0"


def train_words(setting: Setting, data: Path, project: Path) -> list[str]:
    """A run of 12 iterations, saved after each of them."""
    return [
        *program("train").child(),
        *("--cfg", narrow_cfg(KINDS[0].config, 0.125, setting.folder), "--data", str(data)),
        *("--hyp", "data/hyp.small.yaml", "--img", "64", "--batch-size", str(BATCH), "--epochs", str(EPOCHS)),
        *("--workers", "0", "--noautoanchor", "--notest", "--seed", "0", "--deterministic", "--loss-ota", "1"),
        *("--device", chosen_gpu() if setting.on_gpu else "cpu", "--project", str(project), "--name", "run"),
        *("--save-every", "0.00001"),
    ]


def chosen_gpu() -> str:
    """The first that this process sees, as the flag --device names it; '' where it has a name and no number."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return first if first.isdigit() else "" if first else "0"


def environment() -> dict[str, str]:
    return {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONUNBUFFERED": "1"}


def run_to_end(words: list[str], output: Path) -> int:
    with output.open("w") as file:
        done = subprocess.run(words, stdout=file, stderr=file, env=environment(), timeout=LONGEST, check=False)
    return done.returncode


def kill_in_mid_epoch(words: list[str], output: Path, last: Path) -> bool:
    """SIGKILL once a checkpoint of the first epoch's middle lies there; False: the run was done before."""
    with output.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=environment())
        try:
            end = time.monotonic() + LONGEST
            while process.poll() is None and time.monotonic() < end:
                if last.is_file():
                    process.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.005)
        finally:
            process.kill()
            process.wait()
    return process.returncode == -signal.SIGKILL


def different_tensors(one: Path, other: Path) -> list[str]:
    """Names in which two complete checkpoints differ: network, EMA and optimizer, bit for bit."""
    left, right = (state_of(path) for path in (one, other))
    if left.keys() != right.keys():
        return sorted(left.keys() ^ right.keys())
    return [name for name, value in left.items() if not torch.equal(value, right[name])]


def state_of(path: Path) -> dict[str, torch.Tensor]:
    """All the state a complete checkpoint holds, flattened by name."""
    checkpoint: Any = load_checkpoint(path)
    state = checkpoint["resume"]
    found = {f"{part}.{k}": v for part in ("model", "ema") for k, v in state[part].items()}
    for key, values in checkpoint["optimizer"]["state"].items():
        found |= {f"optimizer.{key}.{k}": v for k, v in values.items() if isinstance(v, torch.Tensor)}
    return found


def check_resume(setting: Setting) -> Line:
    images = make_shapes(setting.folder / "shapes", train=IMAGES, val=4, size=96) / "images"
    data = setting.folder / "drawn.yaml"
    lines = {"train": str(images / "train"), "val": str(images / "val"), "nc": len(NAMES), "names": list(NAMES)}
    data.write_text(yaml.safe_dump(lines))
    runs = {name: setting.folder / name for name in ("undisturbed", "killed")}
    log, weights = setting.folder / "resume.log", f"run/weights/epoch_{EPOCHS - 1:03d}.pt"
    code = run_to_end(train_words(setting, data, runs["undisturbed"]), log)
    if code:
        return judged(LINE, False, f"the undisturbed run ended with exit code {code}", REMEDY, last_lines(log))
    again = runs["killed"] / "run"
    if not kill_in_mid_epoch(train_words(setting, data, runs["killed"]), log, again / "weights" / "last.pt"):
        return judged(LINE, False, "the run to be killed ended by itself", REMEDY, last_lines(log))
    last: Any = load_checkpoint(again / "weights" / "last.pt")
    stopped = last["resume"]["progress"]["global_step"]
    code = run_to_end([*program("train").child(), "--resume", str(again)], log)
    if code:
        return judged(LINE, False, f"the resumed run ended with exit code {code}", REMEDY, last_lines(log))
    different = different_tensors(runs["undisturbed"] / weights, runs["killed"] / weights)
    where = f"killed after {stopped} of {EPOCHS * IMAGES // BATCH} iterations"
    text = f"{where}: " + ("the same weights, bit for bit" if not different else f"{len(different)} tensors differ")
    return judged(LINE, not different, text, REMEDY, tuple(different))


def last_lines(log: Path, count: int = 4) -> tuple[str, ...]:
    return tuple(log.read_text(errors="replace").strip().splitlines()[-count:])
