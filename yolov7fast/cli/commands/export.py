"""Export a trained network to ONNX, TorchScript and OpenVINO: `python export.py --weights best.pt --nms`."""

from argparse import Namespace

from yolov7fast.cli.checks import parse_within_limits
from yolov7fast.cli.flags.export import ROWS
from yolov7fast.cli.parser import Parser, parser_of


def parser() -> Parser:
    return parser_of("export", ROWS)


def run(opt: Namespace) -> list:
    """Write the files that the options ask for; returns them (`export_files.ExportedFile`)."""
    from yolov7fast.data.data_yaml import load_data_yaml  # torch is loaded only once the flags have parsed
    from yolov7fast.inference.export.export_files import export_files
    from yolov7fast.inference.export.export_network import load_source
    from yolov7fast.inference.export.export_plan import check_options, formats_of, plan_of

    check_options(opt)
    formats = formats_of(opt)
    data = load_data_yaml(opt.data) if opt.data else None
    source = load_source(opt.weights)
    files = export_files(source, plan_of(opt, source), formats, data)
    for file in files:
        print(f"{file.path} ({file.size / 1e6:.1f} MB): proved by {file.report}")
        if file.accuracy:
            print(f"{file.path}: {file.accuracy}")
    return files


def main() -> int:
    run(parse_within_limits(parser()))
    return 0
