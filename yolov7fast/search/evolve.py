"""Evolution of hyper-parameters: each generation trains once with a mutation of one of the best so far.

The state is evolve.txt in the run folder: 7 results and the hyper-parameters of each run, best first. Genes are
matched by name; entries that are not genes, such as `loss_ota`, keep the value of the hyp file.
"""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_file, write_atomically
from yolov7fast.core.text import counted
from yolov7fast.evaluation.average_precision import fitness
from yolov7fast.losses.yolo_loss import LOSS_NAMES
from yolov7fast.reports.run_plots import plot_evolution
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.distributed import World
from yolov7fast.training.family import Family, summary_columns
from yolov7fast.training.train import run_training

GENERATIONS, PARENTS = 300, 5
SIGMA, MUTATED_FRACTION = 0.2, 0.8
STATE = "evolve.txt"
RESULT_COLUMNS = summary_columns((*LOSS_NAMES, "total"))  # before the hyper-parameters
RESULTS = len(RESULT_COLUMNS)


def genes(hyp: Mapping[str, float]) -> list[str]:
    """The keys that evolve, in the order of the table."""
    return [name for name, key in hyper.KEYS.items() if key.gain is not None and name in hyp]


def mutate(hyp: Mapping[str, float], history: np.ndarray, random: np.random.Generator) -> dict[str, float]:
    """A child of one of the best rows of `history` (n, 7 + genes); without history only the limits are applied."""
    names, child = genes(hyp), dict(hyp)
    if len(history):
        best = history[np.argsort(-fitness(history), kind="stable")][:PARENTS]
        weights = fitness(best) - fitness(best).min() + 1e-6
        parent = best[random.choice(len(best), p=weights / weights.sum())]
        gains, factors = np.array([hyper.KEYS[name].gain for name in names]), np.ones(len(names))
        while (factors == 1).all():  # a child equal to its parent would be a wasted run
            chosen = random.random(len(names)) < MUTATED_FRACTION
            step = gains * chosen * random.standard_normal(len(names)) * random.random() * SIGMA
            factors = (step + 1).clip(0.3, 3.0)
        child |= dict(zip(names, (parent[RESULTS:] * factors).tolist(), strict=True))
    for name in names:
        key = hyper.KEYS[name]
        child[name] = round(float(np.clip(child[name], key.evolve_low, key.evolve_high)), 5)
    return child


def read_history(file: Path, names: list[str]) -> np.ndarray:
    if not file.exists():
        return np.zeros((0, RESULTS + len(names)))
    rows = np.loadtxt(file, ndmin=2)
    if rows.shape[1] != RESULTS + len(names):
        found = f"{file} has {rows.shape[1]} columns, this hyp file needs {RESULTS + len(names)}"
        raise UserError(f"{found}: it belongs to another search; move it away to begin a new one")
    return rows


def write_history(history: np.ndarray, hyp: Mapping[str, Any], run_dir: Path) -> None:
    """evolve.txt best first and without repeats, its plot, and the best set as hyp_evolved.yaml.

    hyp: the complete initial set, for the keys that are not genes.
    """
    rows = np.unique(history, axis=0)
    rows = rows[np.argsort(-fitness(rows), kind="stable")]
    with atomic_file(run_dir / STATE) as file:
        np.savetxt(file, rows, "%10.5g")
    best = {name: float(value) for name, value in zip(genes(hyp), rows[0, RESULTS:])}
    write_atomically(run_dir / "hyp_evolved.yaml", yaml.safe_dump({**hyp, **best}, sort_keys=False))
    plot_evolution(rows[:, RESULTS:], fitness(rows), genes(hyp), run_dir / "evolve.png")


def bucket_copy(bucket: str, file: Path, upload: bool) -> None:
    """Copy evolve.txt to or from a storage bucket, if one is given."""
    if not bucket:
        return
    if not shutil.which("gsutil"):
        raise UserError(f"--bucket {bucket} needs the command gsutil, which is not installed")
    remote = f"gs://{bucket.removeprefix('gs://')}/{STATE}"
    pair = [str(file), remote] if upload else [remote, str(file)]
    subprocess.run(["gsutil", "-q", "cp", *pair], check=upload)  # a new bucket has nothing to fetch


def evolve(config: YoloTrainConfig, family: type[Family], world: World, generations: int = GENERATIONS) -> int:
    """--evolve: train with a mutated set in each generation and keep the table of results; returns the exit code.

    A generation is a training without checkpoints, which validates after its last epoch only.
    """
    if world.is_distributed:
        raise UserError("--evolve runs in one process: start it without torchrun")
    generation = replace(config, name="evolve", exist_ok=True, notest=True, nosave=True, keep_files=False)
    hyp = hyper.with_assigner(hyper.load_hyp(config.hyp), config.loss_ota, config.assigner)  # stored in the set
    run_dir = Path(config.project) / "evolve"
    file, names, random = run_dir / STATE, genes(hyp), np.random.default_rng()
    for number in range(1, generations + 1):
        bucket_copy(config.bucket, file, upload=False)
        history = read_history(file, names)
        child = hyper.check_hyp(mutate(hyp, history, random), f"generation {number}")
        outcome = run_training(replace(generation, hyp=child), family, world)
        if outcome.interrupted:
            print(f"stopped in generation {number} of {generations}; resume with the same command:", end=" ")
            print(f"it continues from {file}, which has {counted(len(history), 'training')}")
            return outcome.interrupted
        row = np.array([*(outcome.metrics.get(name, 0.0) for name in RESULT_COLUMNS), *(child[name] for name in names)])
        write_history(np.vstack([history, row]), hyp, run_dir)
        bucket_copy(config.bucket, file, upload=True)
        print(f"generation {number}/{generations}: fitness {fitness(row[None])[0]:.4g}; best in {run_dir}")
    print(f"The best hyper-parameters: --hyp {run_dir}/hyp_evolved.yaml (all trainings: {file}, {run_dir}/evolve.png)")
    return 0
