"""Export a trained network to ONNX, TorchScript and OpenVINO: `python export.py --weights best.pt --nms`.

--deploy-cfg writes a .pt file with the network of cfg/deploy instead.
"""

from argparse import Namespace
from pathlib import Path

from yolov7fast.cli.checks import check_limits
from yolov7fast.cli.flags.export import ROWS
from yolov7fast.cli.parser import Parser
from yolov7fast.core.errors import UserError
from yolov7fast.core.programs import program


def parser() -> Parser:
    own = program("export")
    return Parser(ROWS, prog=own.invocation, description=own.summary)


def run(opt: Namespace) -> list:
    """Write the requested files; returns them (`export_files.ExportedFile`)."""
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
        print(f"{file.path} ({file.size / 1e6:.1f} MB): verified with {file.report}")
    return files


def write_deploy(weights: Path, cfg: Path, output: Path) -> float:
    """Write trained weights as a network of cfg/deploy: implicit layers merged, auxiliary heads removed.

    Returns the largest difference of the predictions before and after, in pixels.
    """
    from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, module_of
    from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint
    from yolov7fast.checkpoint.released_weights import local_weights
    from yolov7fast.nn.heads import Detect
    from yolov7fast.nn.model import Model
    from yolov7fast.nn.reparameterize import to_deploy

    weights = Path(local_weights(weights))
    trained = module_of(load_checkpoint(weights), prefer_ema=True, origin=weights)
    if not isinstance(trained, Model):
        raise UserError(f"{weights} holds a {type(trained).__name__}, not a network of this project's YAML")
    if getattr(trained.model[-1], "fused", False):
        raise UserError(f"{weights}: is already fused; give the weights as training wrote them")
    deploy = to_deploy(trained.state_dict(), cfg, trained.yaml.get("ch", 3), weights)
    head = deploy.model[-1]
    assert isinstance(head, Detect)  # `to_deploy` refuses others
    deploy.names, deploy.nc = trained.names, head.nc
    save_checkpoint({"model": deploy, "optimizer": None, "training_results": None, "epoch": -1}, output)
    return largest_difference(trained, deploy)


def largest_difference(trained, deploy) -> float:
    """Largest difference of the predictions of two networks for a random image, in double precision; changes the dtype
    of both."""
    import torch

    side = 2 * int(deploy.stride.max())
    image = torch.rand(1, deploy.yaml["ch"], side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before, after = (model.double().eval()(image.double())[0] for model in (trained, deploy))
    return (before - after).abs().max().item()


def main() -> int:
    opt = (own := parser()).parse_args()
    check_limits(opt, own.flags)
    if opt.deploy_cfg:
        weights = Path(opt.weights)
        output = weights.with_name(f"{weights.stem}_deploy.pt")
        difference = write_deploy(weights, Path(opt.deploy_cfg), output)
        print(f"{output} written; on a random image its predictions differ by at most {difference:.1e} pixels")
    else:
        run(opt)
    return 0
