"""This project beside a checkout of the public one: `python benchmarks/reference.py --reference DIR`.

DIR is a folder that you have; nothing of it is in this repository. Both sides run the same script in processes of their
own, in turn, on the same inputs: losses, samples, a training step, the loader. What they compute is compared too. What
the checkout cannot run beside the installed torch or NumPy is reported, and the other parts are still timed.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

import numpy as np
from tqdm import tqdm

from benchmarks.measure import machine, write_json
from benchmarks.photographs import BCCD, ROOT
from yolov7fast.core.errors import UserError, run_command
from yolov7fast.data.labels import find_images, img2label_paths
from yolov7fast.training.hyperparameters import load_hyp, scale_gains

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


def own_data(images: Path, folder: Path) -> str:
    """A data set for one side below `folder`: images linked, labels copied; returns its folder of images.

    Each project keeps a label cache of its own format under the same name beside the labels, and would stumble over the
    other's; and the labels' own folder need not be writable.
    """
    found = find_images(str(images))
    for image, label in zip(found, img2label_paths(found), strict=True):
        name = Path(image).relative_to(images)
        link, copy = folder / "images" / "train" / name, folder / "labels" / "train" / name.with_suffix(".txt")
        for path in (link, copy):
            path.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(image)
        if Path(label).is_file():
            shutil.copyfile(label, copy)
    return str(folder / "images" / "train")


def run_side(project: Path, folder: Path, inputs: Path) -> dict:
    """Run one project in a process of its own; `folder`: its scratch folder, which holds its settings.json."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)  # of the round before: must not stand in for this one's
    command = [sys.executable, str(SIDE), str(project), str(inputs), str(folder / "settings.json"), str(result)]
    done = subprocess.run(command, capture_output=True, text=True)
    if not result.is_file():
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UserError(f"{project} could not be run at all: {said[0]}")
    return json.loads(result.read_text())


def worst(ours, theirs) -> float:
    """Largest relative difference of two nested lists of numbers; infinite where they differ in shape or text, or where
    a number is none (NaN)."""
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return math.inf
        return max((worst(a, b) for a, b in zip(ours, theirs)), default=0.0)
    if ours == theirs:
        return 0.0
    if not all(isinstance(value, int | float) for value in (ours, theirs)):
        return math.inf
    difference = abs(ours - theirs) / max(abs(theirs), 1e-12)
    return math.inf if math.isnan(difference) else difference


def parity(ours: dict, theirs: dict) -> str:
    """In words: how far the two sides' results are apart."""
    notes = []
    for key, value in ours.items():
        if key == "matched":
            found, wanted = ([{tuple(cell) for cell in level} for level in side[key]] for side in (ours, theirs))
            differing = sum(len(a ^ b) for a, b in zip_longest(found, wanted, fillvalue=set()))
            notes.append(f"matched cells: {differing} of {sum(map(len, wanted))} differ")
        else:
            difference = worst(value, theirs[key])
            notes.append(f"{key}: {'differ' if math.isinf(difference) else f'within {difference:.1e}'}")
    return "; ".join(notes)


def first_error(rounds: list[tuple[dict, dict]], part: str) -> str | None:
    """What went wrong with a part on either side, in the first round where something did."""
    for number, sides in enumerate(rounds, 1):
        for side, name in zip(sides, ("this project", "upstream"), strict=True):
            error = side.get(part, {"error": "not run"})["error"]
            if error:
                return f"{name} failed in round {number}: {error[:160]}"
    return None


def compare(rounds: list[tuple[dict, dict]]) -> list[dict]:
    """One row for each timed piece of work: median over rounds of both sides, ratio, parity."""
    rows = []
    for part, first in rounds[0][0].items():
        error = first_error(rounds, part)
        if error:
            rows.append({"what": part, "error": error})
            continue
        agreement = parity(first["parity"], rounds[0][1][part]["parity"])
        for work in first["seconds"]:
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


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", required=True, type=Path, help="folder of a checkout of upstream")
    parser.add_argument("--images", type=Path, default=BCCD / "images" / "train", help="photographs with labels")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--img-size", type=int, default=320)
    parser.add_argument("--targets", type=int, default=17, help="boxes an image")
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--workers", type=int, default=2, help="loader processes")
    parser.add_argument("--runs", type=int, default=5, help="timings of each piece of work in a round")
    parser.add_argument("--rounds", type=int, default=2, help="how often the two sides take turns")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    return parser.parse_args(argv)


def check(opt: argparse.Namespace) -> None:
    least = {"batch_size": 1, "img_size": 32, "targets": 1, "classes": 1, "workers": 0, "runs": 1, "rounds": 1}
    for name, smallest in least.items():
        if getattr(opt, name) < smallest:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} is {getattr(opt, name)}; it must be at least {smallest}")
    if opt.img_size % STRIDES[-1]:
        raise UserError(f"--img-size is {opt.img_size}; it must be a multiple of {STRIDES[-1]}")
    for needed in ("models/yolo.py", "utils/loss.py", "utils/datasets.py", NETWORK):
        if not (opt.reference / needed).is_file():
            raise UserError(f"--reference {opt.reference}: {needed} is missing, so this is no checkout of the project")


def take_turns(opt: argparse.Namespace, scratch: Path) -> list[tuple[dict, dict]]:
    """What both sides report, (ours, reference) for each round."""
    inputs = scratch / "inputs.npz"
    make_inputs(inputs, opt.batch_size, opt.img_size, opt.targets, opt.classes)
    hyp = load_hyp(ROOT / "data" / "hyp.scratch.tiny.yaml")
    gains = scale_gains(hyp, levels=3, classes=opt.classes, img_size=opt.img_size, smoothing=0.0)
    settings = {"cfg": NETWORK, "nc": opt.classes, "gains": gains, "hyp": hyp, "workers": opt.workers}
    settings |= {"size": opt.img_size, "batch": opt.batch_size, "runs": opt.runs, "photographs": ""}
    sides = [(ROOT, scratch / "ours"), (opt.reference.resolve(), scratch / "theirs")]
    for _, folder in sides:
        folder.mkdir()
        if opt.images.is_dir():
            settings["photographs"] = own_data(opt.images.resolve(), folder)
        (folder / "settings.json").write_text(json.dumps(settings))
    turns = tqdm(range(opt.rounds), desc="both sides in turn", leave=False)
    return [tuple(run_side(project, folder, inputs) for project, folder in sides) for _ in turns]


def main(argv: list[str] | None = None) -> int:
    opt = parse(argv)
    check(opt)
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(take_turns(opt, Path(folder)))
    print(" ".join(f"{key} {value}" for key, value in machine().items()))
    if not opt.images.is_dir():
        print(f"no photographs in {opt.images}: samples and loader are not compared (give --images FOLDER)")
    show(rows)
    write_json(opt.json, {"machine": machine(), "rows": rows, "runs": opt.runs, "rounds": opt.rounds})
    return 0


if __name__ == "__main__":
    run_command(main)
