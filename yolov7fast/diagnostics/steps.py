"""Real training steps on one drawn batch: families as `train.py` builds them, without a data set."""

from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from yolov7fast.cli.parser import parser_for
from yolov7fast.core.files.paths import check_file
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.families.base import BaseFamily
from yolov7fast.families.detr.family import DetrFamily
from yolov7fast.families.yolo.family import effective_hyp
from yolov7fast.families.yolo.network import build_model
from yolov7fast.nn.description import read_description
from yolov7fast.profiling.synthetic import FixedLoader, ProfiledFamily, SyntheticData, on_device_side, synthetic_batch
from yolov7fast.training.distributed import World
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.optimizer import Rates
from yolov7fast.training.step import TrainStep, choose_amp

CLASSES = 4
SEED = 1


class Kind(NamedTuple):
    """A training step that users run: its network and losses."""

    name: str
    config: str  # network (YOLO) or run file (DETR)
    losses: tuple[str, ...]
    family: str = "yolo"
    size: int = 64


KINDS = (
    Kind("YOLO", "cfg/training/yolov7-tiny.yaml", ("plain", "OTA")),
    Kind("YOLO with auxiliary heads", "cfg/training/yolov7-w6.yaml", ("OTA",), size=128),
    Kind("YOLO with four heads", "cfg/training/yolov7-tiny-1b4h.yaml", ("plain", "OTA")),
    Kind("DETR", "configs/detr_smoke.yaml", ("set",), family="detr", size=96),
    Kind("RT-DETR", "configs/rtdetr_small.yaml", ("set",), family="detr", size=96),
)


class Trained(NamedTuple):
    """A family with its step and the batch that it trains on."""

    family: BaseFamily
    step: TrainStep
    batch: tuple
    rates: Rates

    def run(self, global_step: int = 0, loss: str = "") -> None:
        """One step; loss: plain or OTA, where the family has both."""
        if loss in ("plain", "OTA"):
            self.family.assigner = loss.lower()  # pyright: ignore[reportAttributeAccessIssue]
        self.step(self.batch, global_step, self.rates)


def narrow_cfg(cfg: str, width: float, folder: Path) -> str:
    """A file with the network of `cfg` at a fraction of its width: the same code, sooner done."""
    path = folder / f"{Path(cfg).stem}_{width:g}.yaml"
    path.write_text(yaml.safe_dump({**read_description(check_file(cfg, "cfg")), "width_multiple": width}))
    return str(path)


def yolo_options(cfg: str, size: int, batch: int, folder: Path, **changes: Any) -> Namespace:
    """The flags of train.py for a drawn batch of `batch` images."""
    words = ["--cfg", cfg, "--hyp", "data/hyp.scratch.tiny.yaml", "--img-size", str(size), "--batch-size", str(batch)]
    opt = parser_for("train").parse_args([*words, "--noautoanchor"])
    # evolve: a family that draws and keeps nothing
    settled = {"total_batch_size": batch, "evolve": True, "save_dir": str(folder), "synthetic": True, "targets": 6}
    return Namespace(**{**vars(opt), **settled, **changes})


class DrawnYolo(ProfiledFamily):
    """The YOLO family on one drawn batch, on one GPU even where there are several."""

    uses_all_gpus = False


def yolo_family(opt: Namespace, device: torch.device, classes: int = CLASSES) -> DrawnYolo:
    torch.manual_seed(SEED)
    hyp = effective_hyp(load_hyp(check_file(opt.hyp, "hyp")), opt)
    data = DataYaml("drawn", classes, [str(number) for number in range(classes)])
    return DrawnYolo(opt, data, build_model(opt, hyp, classes, device), device, World(), hyp=hyp)


class DrawnDetr(DetrFamily):
    """The DETR family on one drawn batch."""

    dataset: Any

    def build_loaders(self, stage: Any) -> None:
        self.stage, self.img_size = stage, stage.size
        images, targets, paths, _ = synthetic_batch(self.opt.total_batch_size, stage.size, 4, self.nc)
        shapes = (((stage.size, stage.size), ((1.0, 1.0), (0.0, 0.0))),) * len(images)
        self.loader = FixedLoader([(on_device_side(images, self.device), targets, paths, shapes)])
        self.dataset = SyntheticData(self.nc)


def detr_family(config: str, size: int, batch: int, device: torch.device, folder: Path) -> DrawnDetr:
    torch.manual_seed(SEED)
    opt = parser_for("train", "detr").parse_args(["--config", config, "--img-size", str(size)])
    opt.total_batch_size, opt.save_dir = batch, str(folder)
    data = DataYaml("drawn", CLASSES, [str(number) for number in range(CLASSES)])
    model = DrawnDetr.build_network(opt, data, None).to(device)
    return DrawnDetr(opt, data, model, device, World())


def trained(family: BaseFamily, amp: str = "", **options: Any) -> Trained:
    """A family as the trainer would run it. amp: instead of the flag's default."""
    family.model.train()
    rates = family.rates(0, 0, 0)._replace(accumulate=1)
    parts = (family, family.model, family.net, family.optimizer, family.ema, family.device)
    step = TrainStep(
        *parts, amp=choose_amp(amp or family.opt.amp, family.device), clip_norm=family.clip_norm, **options
    )
    return Trained(family, step, family.loader[0], rates)  # pyright: ignore[reportIndexIssue] (a FixedLoader)


def build_step(kind: Kind, device: torch.device, folder: Path, width: float = 0.125) -> Trained:
    """A step of this kind on a narrow network and two images."""
    if kind.family == "detr":
        family: BaseFamily = detr_family(kind.config, kind.size, 2, device, folder)
    else:
        cfg = narrow_cfg(kind.config, width, folder)
        family = yolo_family(yolo_options(cfg, kind.size, 2, folder), device)
    return trained(family)
