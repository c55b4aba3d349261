"""Damaged files that inference reads, drawn from generators of their own: each is used, or one line names it."""

import io
import json
import pickle
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
import yaml

from tests.export.networks import mini_source
from tests.fuzz.runner import run_all
from tests.inference.detect_runs import cells
from tests.mini_network import mini_model
from yolov7fast.checkpoint.write import save_checkpoint
from yolov7fast.core.errors import UserError
from yolov7fast.export.plan import Plan, describe
from yolov7fast.export.run import export_files
from yolov7fast.inference.sources import LoadImages
from yolov7fast.nn.model import Model
from yolov7fast.plots.draw import class_name
from yolov7fast.predictors.base import PredictOptions
from yolov7fast.predictors.registry import load_predictor
from yolov7fast.runtimes.forms import Form

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CASES = 300  # of each kind
PLAN = Plan(Form.GRID, (64, 64))
OPTIONS = PredictOptions(trust_torchscript=True)
IMAGES = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
TEXTS = ("", "{", "[1]", "null", "[" * 100_000, '{"a":' * 50_000, "9" * 5000, "NaN", '"', "\0", "\ud800", "\ufeff{}")
ODD = (
    None,
    True,
    0,
    -1,
    3,
    2**40,
    10**4400,
    -0.5,
    1e308,
    float("nan"),
    "",
    "x" * 9000,
    [],
    [[]],
    {},
    [1e9, "a"],
    {"": 1},
)


def damaged_text(text: str, rng: random.Random) -> str:
    start = rng.randrange(len(text) + 1)
    return text[:start] + rng.choice(TEXTS) + text[start + rng.choice((0, 1, 9, len(text))) :]


def metadata(text: dict[str, str], rng: random.Random) -> bytes:
    """metadata.json with a key of another value or type, left out, or bytes that are no JSON or no UTF-8."""
    values: dict = dict(text)
    key, kind = rng.choice(sorted(values)), rng.randrange(6)
    if kind == 0:
        values[key] = rng.choice(ODD[:6] + ODD[7:])
    elif kind == 1:
        values[key] = rng.choice(("65536", "0", "[[]]", "1e400", "-1", "{}", "nms", "raw", "detr", *TEXTS))
    elif kind == 2:
        del values[key]
    elif kind == 3:
        return rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    content = json.dumps(values)
    content = damaged_text(content, rng) if kind == 4 else content
    return content.encode("utf-8", "surrogatepass") + (rng.randbytes(3) if kind == 5 else b"")


def description(sound: dict, rng: random.Random) -> str:
    """A network whose rows have one argument, source, count or block of another value."""
    row = rng.choice(rows := [list(row) for row in sound["backbone"] + sound["head"]])
    place = rng.randrange(5)
    if place < 4:
        row[place] = rng.choice((0, -1, 7, 99999, 0.5, "", "Conv", "nn.ReLU(1e400)", [], [-1, 0], [[1]], None, True))
    else:
        row[3] = list(row[3]) + [rng.choice((0, -1, 2, 65536, 1.5, "None", [0], [2, 0], False))] * rng.randrange(1, 4)
        row[3][rng.randrange(len(row[3]))] = rng.choice((0, 1, -1, -8, 0.0, 3.5, 65536, "nc", "None", [0, 0], None))
    return yaml.safe_dump({**sound, "backbone": rows[:-1], "head": rows[-1:]})


def checkpoint(rng: random.Random) -> dict:
    """A checkpoint with keys, a family or class names of other types."""
    model = mini_model()
    content: dict = {"epoch": -1, "model": model, "ema": None}
    odd = (*ODD, torch.zeros(2), np.float64(1), b"bytes", (1, 2), 10**70, -(10**5000))
    for _ in range(rng.randrange(1, 4)):
        match rng.randrange(5):
            case 0:
                content["family"] = rng.choice(odd)
            case 1:
                model.names = rng.choice(
                    ([rng.choice(odd)] * 3, rng.choice(odd), {rng.choice((0, "x", 1.5, 10**4400)): "a"})
                )
            case 2:
                content[rng.choice((None, 1.5, True, 10**5000, "", "x" * 9000, -3))] = rng.choice(odd)
            case 3:
                content[rng.choice(("model", "ema", "architecture", "img_size"))] = rng.choice(odd)
            case 4:
                setattr(model, rng.choice(("stride", "yaml", "nc", "save", "names")), rng.choice(odd))
    return content


def image(rng: random.Random) -> bytes:
    """An image whose header claims another size, or one that is thin."""
    claimed = [rng.choice((0, 1, 3, 5000, 40_000, 2**16 - 1, 2**31 - 1)) for _ in range(2)]
    ending = rng.choice((".png", ".jpg", ".bmp", ".tif", ".webp"))
    content = bytearray(
        cv2.imencode(ending, cells(rng.randrange(9), *rng.choice(((120, 160), (1, 3000), (3000, 2)))))[1]
    )
    if ending == ".png":
        content[16:24] = struct.pack(">II", *claimed)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    elif ending == ".bmp":
        content[18:26] = struct.pack("<II", *claimed)
    elif ending == ".jpg" and (frame := content.find(b"\xff\xc0")) > 0:
        content[frame + 5 : frame + 9] = struct.pack(">HH", *(min(side, 65535) for side in claimed))
    else:
        for _ in range(8):
            content[rng.randrange(min(len(content), 400))] = rng.randrange(256)
    return bytes(content)


def use_weights(folder: Path) -> None:
    predictor = load_predictor(next(folder.iterdir()), torch.device("cpu"), OPTIONS)
    predictor.warm_up(64)
    predictor(IMAGES)
    assert all(class_name(predictor.names, c).isprintable() for c in range(len(predictor.names)))


def use_image(folder: Path) -> None:
    source = LoadImages(str(folder), 320, 32)
    if not list(source.frames()):
        (reason,) = source.skipped
        raise UserError(reason)


def cases(kind: str, file: str, use: Callable, make: Callable[[random.Random], bytes], folder: Path) -> list:
    """What `tests.fuzz.runner` runs: file CASES times with other content, each in a limited time and memory."""
    (folder / kind).mkdir()
    target = SimpleNamespace(name=kind, use=use)

    def case(number: int) -> SimpleNamespace:
        content = lambda: (make(random.Random(f"inference {kind} {number}")), "drawn")  # noqa: E731
        return SimpleNamespace(number=number, target=target, path=folder / kind / file, mutated=content)

    return [case(number) for number in range(CASES)]


@pytest.fixture(scope="module")
def makers(tmp_path_factory) -> dict:
    """By kind: the file, how it is used, how a damaged one is made."""
    source = mini_source(tmp_path_factory.mktemp("sound"))
    (exported,) = export_files(source, PLAN, ["torchscript"])
    module, text = torch.jit.load(exported.path), describe(source, PLAN).to_text()
    sound = yaml.safe_load((Path(__file__).parents[2] / "cfg/training/yolov7-tiny.yaml").read_text())
    sound |= {"width_multiple": 0.125, "nc": 2}

    def torchscript(rng: random.Random) -> bytes:
        buffer = io.BytesIO()
        torch.jit.save(module, buffer, _extra_files={"metadata.json": metadata(text, rng)})
        return buffer.getvalue()

    def weights(rng: random.Random) -> bytes:
        path, content = tmp_path_factory.getbasetemp() / "drawn.pt", checkpoint(rng)
        try:
            save_checkpoint(content, path)
        except (ValueError, TypeError, AttributeError, UserError, pickle.PicklingError):
            torch.save(content, path)
        return path.read_bytes()

    return {
        "torchscript": ("x.torchscript.pt", use_weights, torchscript),
        "description": ("x.yaml", lambda f: Model(f / "x.yaml"), lambda rng: description(sound, rng).encode()),
        "checkpoint": ("x.pt", use_weights, weights),
        "image": ("x.png", use_image, image),
    }


@pytest.mark.parametrize("kind", ["torchscript", "description", "checkpoint", "image"])
def test_damaged_files_of_inference(kind, makers, tmp_path):
    results = run_all(cases(kind, *makers[kind], tmp_path), tmp_path)
    problems = [f"{r.case}: {r.problem}" for r in results if r.problem]
    print(f"{kind}: {len(results)} files, {sum(r.refused for r in results)} refused, {len(problems)} problems")
    assert len(results) == CASES and not problems, "\n".join(problems[:20])
