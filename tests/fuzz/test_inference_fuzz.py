"""Damaged files that inference reads, from generators of their own: each is used, or one line names it."""

import io
import json
import random
import struct
import zlib
from pathlib import Path

import cv2
import pytest
import torch
import yaml

from tests.fuzz.runner import run_drawn
from tests.inference.detect_runs import cells
from tests.inference.export.networks import mini_source
from tests.mini_network import ROOT, mini_model
from yolov7fast.core.drawing import class_name
from yolov7fast.core.errors import UserError
from yolov7fast.inference.export.export_files import export_files
from yolov7fast.inference.export.export_plan import ExportPlan, metadata_of
from yolov7fast.inference.sources import LoadImages
from yolov7fast.nn.model import Model
from yolov7fast.predictors.export_metadata import ExportForm
from yolov7fast.predictors.predictor import PredictOptions, load_predictor

CASES = 300  # of each kind
TEXTS = [
    "",
    "{",
    "[1]",
    "null",
    "[" * 100_000,
    '{"a":' * 50_000,
    "9" * 5000,
    "NaN",
    '"',
    "\0",
    "\ud800",
    "65536",
    "raw",
]
VALUES = [None, True, 0, -1, 2**40, 10**4400, 1e308, float("nan"), "", "x" * 9000, [], [[]], {}, [1e9, "a"], {"": 1}]


def metadata(sound: dict[str, str], rng: random.Random) -> bytes:
    """metadata.json with another value or type, without a key, cut into, or no JSON or UTF-8 at all."""
    values, key, kind = dict(sound), rng.choice(sorted(sound)), rng.randrange(5)
    if kind < 2:
        values[key] = rng.choice(TEXTS if kind else [v for v in VALUES if v != 10**4400])
    elif kind == 2:
        del values[key]
    text = json.dumps(values)
    start = rng.randrange(len(text))
    text = text[:start] + rng.choice(TEXTS) + text[start + rng.choice((0, 1, len(text))) :] if kind == 3 else text
    return text.encode("utf-8", "surrogatepass") + (rng.randbytes(3) if kind == 4 else b"")


def torchscript(rng: random.Random, module, sound: dict[str, str]) -> bytes:
    torch.jit.save(module, buffer := io.BytesIO(), _extra_files={"metadata.json": metadata(sound, rng)})
    return buffer.getvalue()


def description(rng: random.Random, sound: dict) -> bytes:
    """A network with a row whose source, count, block or arguments are others."""
    rows = [list(row) for row in sound["backbone"] + sound["head"]]
    row, place = rng.choice(rows), rng.randrange(6)
    if place < 3:
        row[place] = rng.choice((*VALUES[:5], *VALUES[6:], "Conv", "nn.ReLU(1e400)", [-1, 0]))
    else:
        row[3] = [*row[3], *(rng.choice((0, 1, 3)) for _ in range(rng.randrange(3)))] or [1]
        row[3][rng.randrange(len(row[3]))] = rng.choice((0, -1, 0.0, 3.5, 65536, "nc", "None", [0, 0], None))
    return yaml.safe_dump({**sound, "backbone": rows[:-1], "head": rows[-1:]}).encode()


def checkpoint(rng: random.Random) -> bytes:
    """Keys, family, class names and other values of other types, as Python itself pickles them."""
    content: dict = {"epoch": -1, "model": (model := mini_model()), "ema": None}
    values = [*VALUES, torch.zeros(2), b"bytes", (1, 2), 10**70, -(10**5000)]
    for _ in range(rng.randrange(1, 4)):
        value = rng.choice(values)
        if rng.random() < 0.4:
            name = rng.choice(("stride", "yaml", "nc", "save", "names", "names"))
            setattr(model, name, rng.choice((value, [value] * 3, {rng.choice((0, "x", 1.5, 10**4400)): "a"})))
        else:
            content[rng.choice(("family", "ema", "architecture", "img_size", None, 1.5, 10**5000, "x" * 9000))] = value
    torch.save(content, buffer := io.BytesIO())
    return buffer.getvalue()


def image(rng: random.Random) -> bytes:
    """An image whose header claims another size; some are thin."""
    width, height = (rng.choice((0, 1, 3, 5000, 40_000, 2**16 - 1, 2**31 - 1)) for _ in range(2))
    ending = rng.choice((".png", ".jpg", ".bmp", ".webp"))
    content = bytearray(cv2.imencode(ending, cv2.resize(cells(0), rng.choice(((160, 120), (3000, 1), (2, 3000)))))[1])
    if rng.random() < 0.2:
        return bytes(content)
    match ending:
        case ".png":
            content[16:24] = struct.pack(">II", width, height)
            content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
        case ".jpg":
            start = content.find(b"\xff\xc0") + 5
            content[start : start + 4] = struct.pack(">HH", height % 2**16, width % 2**16)
        case ".bmp":
            content[18:26] = struct.pack("<II", width, height)
        case ".webp":
            content[26:30] = struct.pack("<HH", width % 2**16, height % 2**16)
    return bytes(content)


def use_weights(folder: Path) -> None:
    path, options = next(folder.iterdir()), PredictOptions(trust_torchscript=True)
    predictor = load_predictor(path, torch.device("cpu"), options)
    predictor(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    assert all(class_name(predictor.names, c).isprintable() for c in range(3))


def use_image(folder: Path) -> None:
    source = LoadImages(str(folder), 320, 32)
    if not list(source.frames()):
        raise UserError(*source.skipped)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["torchscript", "description", "checkpoint", "image"])
def test_damaged_files_of_inference(kind, tmp_path):
    source, plan = mini_source(tmp_path), ExportPlan(ExportForm.GRID, (64, 64))
    exported = torch.jit.load(export_files(source, plan, ["torchscript"])[0].path)
    text, cfg = (
        metadata_of(source, plan).to_text(),
        yaml.safe_load((ROOT / "cfg/training/yolov7-tiny.yaml").read_text()),
    )
    file, use, make, sound = {
        "torchscript": ("x.torchscript.pt", use_weights, torchscript, (exported, text)),
        "description": ("x.yaml", lambda f: Model(f / "x.yaml"), description, (cfg | {"width_multiple": 0.125},)),
        "checkpoint": ("x.pt", use_weights, checkpoint, ()),
        "image": ("x.png", use_image, image, ()),
    }[kind]
    (tmp_path / kind).mkdir()

    def one(number: int):
        return make(random.Random(f"inference {kind} {number}"), *sound), use

    run_drawn(kind, tmp_path / kind / file, one, CASES, tmp_path)
