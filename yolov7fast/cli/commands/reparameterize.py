"""Turn trained weights into deploy weights: merge the implicit parts of the head, drop the auxiliary one.

    python tools/reparameterize.py --weights best.pt --cfg cfg/deploy/yolov7.yaml --output deploy.pt

The output is read by detect.py, test.py and upstream.
"""

from pathlib import Path

import torch

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, module_of, save_checkpoint
from yolov7fast.checkpoint.released_weights import local_weights
from yolov7fast.cli.programs import program
from yolov7fast.core.errors import UserError
from yolov7fast.nn.heads import Detect
from yolov7fast.nn.model import Model
from yolov7fast.nn.reparameterize import to_deploy


def convert(weights: Path, cfg: Path, output: Path) -> float:
    """Write `output`; returns the largest difference of the predictions before and after, in pixels."""
    weights = Path(local_weights(weights))
    trained = module_of(load_checkpoint(weights), prefer_ema=True, origin=weights)
    if not isinstance(trained, Model):
        raise UserError(f"{weights} holds a {type(trained).__name__}, not a network of this project's YAML")
    if getattr(trained.model[-1], "fused", False):
        raise UserError(f"{weights}: is already fused; give the weights as training wrote them")
    deploy = to_deploy(trained.state_dict(), cfg, trained.yaml.get("ch", 3), weights)
    deploy.names = trained.names
    head = deploy.model[-1]
    assert isinstance(head, Detect)  # `to_deploy` refuses others
    deploy.nc = head.nc
    save_checkpoint({"model": deploy, "optimizer": None, "training_results": None, "epoch": -1}, output)
    return largest_difference(trained, deploy)


@torch.no_grad()
def largest_difference(trained: Model, deploy: Model) -> float:
    """Between the predictions of both for one random image, in double precision; changes the dtype of both."""
    assert deploy.stride is not None  # built networks know it
    side = 2 * int(deploy.stride.max())
    image = torch.rand(1, deploy.yaml["ch"], side, side, generator=torch.Generator().manual_seed(0))
    before, after = (model.double().eval()(image.double())[0] for model in (trained, deploy))
    return (before - after).abs().max().item()


def main() -> None:
    parser = program("reparameterize").parser()
    parser.add_argument("--weights", type=Path, required=True, help="checkpoint of a network of cfg/training")
    parser.add_argument("--cfg", type=Path, required=True, help="the file of the same name under cfg/deploy")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    opt = parser.parse_args()
    difference = convert(opt.weights, opt.cfg, opt.output)
    print(f"{opt.output} written; on a random image its predictions differ by at most {difference:.1e} pixels")
