"""How many times as fast as eager PyTorch the exported files of a network are at batch 1, by network and image size.

    python -m benchmarks.inference.formats [--cfg FILE ...] [--img-size 160 320] [--threads 2] [--runs 10] [--json FILE]

The weights are fresh, normalised by one pass; `benchmarks.inference.own_formats` measures your own weights,
accuracy included.
Files are in full precision and of one fixed size; every round runs all of them in turn, medians.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.inference.own_formats import time_in_turn
from benchmarks.measure import machine, write_json
from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint
from yolov7fast.inference.export.export_files import export_files
from yolov7fast.inference.export.export_network import load_source
from yolov7fast.inference.export.export_plan import ExportPlan
from yolov7fast.nn.model import Model
from yolov7fast.predictors.export_metadata import ExportForm
from yolov7fast.predictors.predictor import PredictOptions, load_predictor

CPU = torch.device("cpu")
FORMATS = ("onnx", "openvino")
NETWORKS = ["cfg/deploy/yolov7-tiny.yaml", "cfg/deploy/yolov7-tiny-silu.yaml", "cfg/deploy/yolov7.yaml"]


def milliseconds(cfg: str, size: int, runs: int, folder: Path) -> dict[str, float]:
    """Milliseconds of one image in eager PyTorch and in every format."""
    torch.manual_seed(0)
    weights = folder / "fresh.pt"
    network = Model(cfg)
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():  # else activations sink to denormal numbers, which PyTorch alone computes slowly
        network.train()(torch.rand(2, 3, 320, 320))
        for conv in network.model[-1].m:
            conv.weight *= 0.01  # outputs as moderate as those of a trained head
    save_checkpoint({"epoch": -1, "model": network.half(), "ema": None, "optimizer": None}, weights)
    files = export_files(load_source(weights), ExportPlan(ExportForm.GRID, (size, size)), FORMATS, folder=folder)
    paths = [weights, *(file.path for file in files)]
    predictors = [load_predictor(path, CPU, PredictOptions(half=False)) for path in paths]
    times = time_in_turn(predictors, size, runs, None, batches=(1,))
    return dict(zip(("pytorch", *FORMATS), (time for (time,) in times)))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.inference.formats", description=__doc__)
    parser.add_argument("--cfg", nargs="+", default=NETWORKS)
    parser.add_argument("--img-size", nargs="+", type=int, default=[160, 320])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json")
    opt = parser.parse_args(argv)
    torch.set_num_threads(opt.threads)
    rows, ratios = {}, []
    for cfg, size in tqdm([(cfg, size) for cfg in opt.cfg for size in opt.img_size], desc="networks"):
        with tempfile.TemporaryDirectory() as folder:
            rows[f"{Path(cfg).stem} at {size}"] = found = milliseconds(cfg, size, opt.runs, Path(folder))
        gain = found["pytorch"] / min(found[name] for name in FORMATS)
        what = f"{Path(cfg).stem} at {size}: eager / best format"
        ratios.append({"what": what, "value": gain, "must": ">= 1.5", "runs": opt.runs})
    print(" ".join(f"{key} {value}" for key, value in machine().items()), f"threads {opt.threads}")
    for (name, found), ratio in zip(rows.items(), ratios):
        print(f"{name:<28}", *(f"{key} {ms:7.1f} ms " for key, ms in found.items()), f"{ratio['value']:5.2f}x")
    write_json(opt.json, {"machine": machine(), "milliseconds": rows, "ratios": ratios})
    return 0


if __name__ == "__main__":
    sys.exit(main())
