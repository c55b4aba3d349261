"""This project beside a checkout of the public one: `python benchmarks/reference.py --reference DIR`.

DIR is a folder that you have; nothing of it is in this repository. Both sides run the same script in processes of their
own, in turn, on the same inputs: losses, samples, a training step. What they compute is compared too. A part that the
checkout cannot run beside the installed torch or NumPy is reported, and the others are still timed.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

import numpy as np
from tqdm import tqdm

from benchmarks.measure import machine, write_json
from benchmarks.photographs import BCCD, ROOT
from engine.hyp import load_hyp, scale_gains
from utils.errors import UserError, run_command

SIDE = Path(__file__).with_name("reference_side.py")
NETWORK = "cfg/training/yolov7-tiny.yaml"
STRIDES = (8, 16, 32)


def make_inputs(path: Path, batch: int, size: int, targets: int, classes: int) -> None:
    """Random predictions, targets and images, the same for both sides."""
    random = np.random.RandomState(0)
    arrays = {}
    for number, stride in enumerate(STRIDES):
        cells = size // stride
        maps = (random.randn(batch, 3, cells, cells, 5 + classes) * 0.5).astype(np.float32)
        maps[..., 4] -= 4
        arrays[f"map{number}"] = maps
    n = batch * targets
    wh = np.exp(random.uniform(np.log(0.02), np.log(0.6), (n, 2)))
    columns = [np.repeat(np.arange(batch), targets)[:, None], random.randint(0, classes, (n, 1))]
    arrays["targets"] = np.concatenate([*columns, random.uniform(0.05, 0.95, (n, 2)), wh], 1).astype(np.float32)
    arrays["images"] = random.randint(0, 256, (batch, 3, size, size), dtype=np.uint8)
    np.savez(path, **arrays)


def run_side(folder: Path, scratch: Path, name: str) -> dict:
    stem = scratch / name
    arguments = [str(folder), str(scratch / "inputs.npz"), str(scratch / "settings.json"), str(stem)]
    done = subprocess.run([sys.executable, str(SIDE), *arguments], capture_output=True, text=True)
    result = Path(f"{stem}.json")
    if not result.is_file():
        raise UserError(f"{folder} could not be run at all: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(result.read_text())


def worst(ours, theirs) -> float:
    """Largest relative difference of two nested lists of numbers; infinite where they differ in shape or text."""
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return math.inf
        return max((worst(a, b) for a, b in zip(ours, theirs)), default=0.0)
    if isinstance(ours, str):
        return 0.0 if ours == theirs else math.inf
    return abs(ours - theirs) / max(abs(theirs), 1e-12)


def parity(ours: dict, theirs: dict) -> str:
    """In words: how far the two sides' results are apart."""
    notes = []
    for key, value in ours.items():
        if key == "matched":
            found = [{tuple(cell) for cell in level} for level in value]
            wanted = [{tuple(cell) for cell in level} for level in theirs[key]]
            differing = sum(len(a ^ b) for a, b in zip(found, wanted))
            notes.append(f"matched cells: {differing} of {sum(map(len, wanted))} differ")
        else:
            difference = worst(value, theirs[key])
            notes.append(f"{key}: {'differ' if math.isinf(difference) else f'within {difference:.1e}'}")
    return "; ".join(notes)


def compare(rounds: list[tuple[dict, dict]]) -> list[dict]:
    """One row for each timed piece of work: median over rounds of both sides, ratio, parity."""
    rows = []
    for part in rounds[0][0]:
        ours, theirs = rounds[0][0][part], rounds[0][1].get(part, {"error": "not run"})
        if ours["error"] or theirs["error"]:
            failed, side = (ours, "this project") if ours["error"] else (theirs, "the reference")
            rows.append({"what": part, "error": f"{side} failed: {failed['error'][:160]}"})
            continue
        agreement = parity(ours["parity"], theirs["parity"])
        for work in ours["seconds"]:
            sides = [float(np.median([pair[side][part]["seconds"][work] for pair in rounds])) for side in (0, 1)]
            what = f"{part}, {work}" if work not in part else part
            rows.append({"what": what, "ours": sides[0], "reference": sides[1], "parity": agreement})
    return rows


def show(rows: list[dict]) -> None:
    print(f"{'':<34}{'reference':>12}{'ours':>12}{'ratio':>9}   parity")
    for row in rows:
        if "error" in row:
            print(f"{row['what']:<34}{row['error']}")
            continue
        ratio = row["reference"] / row["ours"]
        times = f"{row['reference'] * 1e3:9.1f} ms{row['ours'] * 1e3:9.1f} ms"
        print(f"{row['what']:<34}{times}{ratio:8.2f}x   {row['parity']}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", required=True, type=Path, help="folder of a checkout of the public project")
    parser.add_argument("--images", type=Path, default=BCCD / "images" / "train", help="photographs with labels")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--img-size", type=int, default=320)
    parser.add_argument("--targets", type=int, default=17, help="boxes an image")
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--runs", type=int, default=5, help="timings of each piece of work in a round")
    parser.add_argument("--rounds", type=int, default=2, help="how often the two sides take turns")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    opt = parser.parse_args(argv)
    reference = opt.reference.resolve()
    for needed in ("models/yolo.py", "utils/loss.py", "utils/datasets.py", NETWORK):
        if not (reference / needed).is_file():
            raise UserError(f"--reference {opt.reference}: {needed} is missing, so this is no checkout of the project")
    hyp = load_hyp(ROOT / "data" / "hyp.scratch.tiny.yaml")
    gains = scale_gains(hyp, levels=3, classes=opt.classes, img_size=opt.img_size, smoothing=0.0)
    photographs = str(opt.images.resolve()) if opt.images.is_dir() else ""
    settings = {"cfg": NETWORK, "nc": opt.classes, "gains": gains, "hyp": hyp, "photographs": photographs}
    settings |= {"size": opt.img_size, "batch": opt.batch_size, "runs": opt.runs}
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        make_inputs(scratch / "inputs.npz", opt.batch_size, opt.img_size, opt.targets, opt.classes)
        (scratch / "settings.json").write_text(json.dumps(settings))
        for _ in tqdm(range(opt.rounds), desc="both sides in turn", leave=False):
            rounds.append((run_side(ROOT, scratch, "ours"), run_side(reference, scratch, "theirs")))
    rows = compare(rounds)
    print(" ".join(f"{key} {value}" for key, value in machine().items()))
    if not photographs:
        print(f"no photographs in {opt.images}: samples are not compared (give --images FOLDER)")
    show(rows)
    write_json(opt.json, {"machine": machine(), "rows": rows, "runs": opt.runs, "rounds": opt.rounds})
    return 0


if __name__ == "__main__":
    run_command(main)
