"""Compare the formats of export.py: `yolov7fast benchmark --weights best.pt --data my.yaml`."""

import tempfile
from argparse import Namespace
from pathlib import Path

from yolov7fast.cli.checks import parse_within_limits
from yolov7fast.cli.flags.export import BENCHMARK_ROWS
from yolov7fast.cli.parser import Parser, parser_of


def parser() -> Parser:
    return parser_of("benchmark", BENCHMARK_ROWS)


def run(opt: Namespace) -> str:
    """Export to every format into a folder that goes afterwards; returns the table."""
    import torch  # loaded only once the flags have parsed

    from yolov7fast.data.data_yaml import load_data_yaml
    from yolov7fast.inference.export.export_network import load_source
    from yolov7fast.inference.export.format_benchmark import best_gain, run_benchmark, table

    if opt.threads:
        torch.set_num_threads(opt.threads)
    data, source = load_data_yaml(opt.data), load_source(opt.weights)
    with tempfile.TemporaryDirectory() as folder:
        rows = run_benchmark(source, data, opt.img_size, Path(folder), opt.runs)
    name, gain = best_gain(rows)
    text = table(rows)
    threads = torch.get_num_threads()
    print(f"\n{text}\n\nFastest at batch 1 on {threads} threads: {name}, {gain:.2f} times as fast as PyTorch.")
    return text


def main() -> int:
    run(parse_within_limits(parser()))
    return 0
