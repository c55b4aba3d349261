"""Host time without kernels: milliseconds in which the host launches a training step, by stage, of sides run in turn.

Runs `tests/profile_training_loop.py` of each side (a checkout and flags) on the fake CUDA runtime of tests/cuda_host,
where kernels and copies take no time and CUDA events record the CPU time of the process. yolov7-tiny, 320 pixels, batch
8, fp16, OTA, one thread. Without cuDNN a convolution is launched image by image: forward and backward are longer than
with it, and with `--batch-size 1` they are about as long. Nothing here is a GPU time.

    make test-cuda-host        # once: environment and runtime
    python -m benchmarks.training.host_time [--before DIR] [--runs 5] [--json FILE]
    python -m benchmarks.training.host_time --side "." --side ". --channels-last"
"""

import json
import os
import shlex
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import quick_parser, show_machine, write_json

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "--device 0 --cfg cfg/training/yolov7-tiny.yaml --img 320 --batch-size 8 --amp fp16"


def runtime_environment(venv: Path) -> dict[str, str]:
    """Variables with which a process of the environment `venv` finds the fake runtime instead of CUDA's."""
    folder = venv / "fake_cuda"
    if not (folder / "libfake_cuda.so").is_file():
        raise SystemExit(
            f"{folder} has no libfake_cuda.so: run make test-cuda-host, or give its environment with --venv"
        )
    return {
        **os.environ,
        "LD_PRELOAD": str(folder / "libfake_cuda.so"),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": str(ROOT / "tests/cuda_host/preload"),
        "FAKE_CUDA_NO_COPIES": "1",
        "FAKE_CUDA_CPU_CLOCK": "1",
        "OMP_NUM_THREADS": "1",
    }


def stage_times(side: str, venv: Path, iterations: int) -> dict[str, float]:
    """Mean host milliseconds by stage of one process. side: a checkout, then flags."""
    checkout, *flags = shlex.split(side)
    with tempfile.TemporaryDirectory() as output:
        words = ["tests/profile_training_loop.py", *COMMAND.split(), *flags, "--iters", str(iterations)]
        done = subprocess.run(
            [str(venv / "bin/python"), *words, "--output", output],
            cwd=checkout,
            env=runtime_environment(venv),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{side}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        stages = json.loads((Path(output) / "profile.json").read_text())["stages"]
    return {stage: row["mean_ms"] for stage, row in stages.items() if stage != "data"}


def main(argv: list[str] | None = None) -> int:
    parser = quick_parser("benchmarks.training.host_time", __doc__, "two runs of five iterations")
    parser.add_argument("--before", help="checkout of an earlier commit, the first side")
    parser.add_argument("--side", action="append", help="a checkout, then flags (default: '.' and '. --cuda-graph')")
    parser.add_argument("--venv", default=str(ROOT / ".venv-cuda"), help="environment of make test-cuda-host")
    parser.add_argument("--runs", type=int, default=5, help="processes of each side")
    parser.add_argument("--iters", type=int, default=20, help="iterations in a process")
    opt = parser.parse_args(argv)
    runs, iterations = (2, 5) if opt.quick else (opt.runs, opt.iters)
    machine, venv = show_machine(), Path(opt.venv).absolute()
    sides = [*filter(None, [opt.before]), *(opt.side or [".", ". --cuda-graph"])]
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(runs):
        for side, rows in found.items():
            rows.append(stage_times(side, venv, iterations))
    medians = {
        side: {stage: statistics.median(row[stage] for row in rows) for stage in rows[0]}
        for side, rows in found.items()
    }
    totals = {side: statistics.median(sum(row.values()) for row in rows) for side, rows in found.items()}
    first = totals[sides[0]]
    print(f"\nhost time without kernels, ms a step: medians of {runs} processes in turn, {iterations} iterations each")
    for side, stages in medians.items():
        parts = ", ".join(f"{stage} {ms:.2f}" for stage, ms in stages.items())
        print(f"{side}: {totals[side]:.2f} ({totals[side] / first:.3f} of the first): {parts}")
    results = {"kind": "host time without kernels", "runs": runs, "iterations": iterations, "machine": machine}
    write_json(opt.json, results | {"stages": medians, "total": totals})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
