"""Recorded loss cases: inputs, and what upstream's losses and assignments made of them (tests/golden/README.md)."""

import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.conftest import ROOT
from yolov7fast.losses.candidates import AUX_REACH, LEAD_REACH
from yolov7fast.losses.simota import AUX_TOP, LEAD_TOP, SimOTA
from yolov7fast.losses.yolo_loss import AuxiliaryLoss, ComputeLoss, ComputeLossAuxOTA, ComputeLossOTA, YoloLoss

GOLDEN = ROOT / "tests" / "golden"
FILES = ("loss_cases.npz", "loss_fitted.npz")
LOSSES: dict[str, Any] = {
    **{"plain": ComputeLoss, "ota": ComputeLossOTA, "aux": ComputeLossAuxOTA},
    "tal": lambda model: YoloLoss(model, "tal"),
    "aux tal": lambda model: AuxiliaryLoss(model, "tal"),
}
ANCHORS = {  # pixels, by level
    "p5": [[10, 13, 16, 30, 33, 23], [30, 61, 62, 45, 59, 119], [116, 90, 156, 198, 373, 326]],
    "p5y7": [[12, 16, 19, 36, 40, 28], [36, 75, 76, 55, 72, 146], [142, 110, 192, 243, 459, 401]],
    "w6": [
        [19, 27, 44, 40, 38, 94],
        [96, 68, 86, 152, 180, 137],
        [140, 301, 303, 264, 238, 542],
        [436, 615, 739, 380, 925, 792],
    ],
}
ANCHORS["two"] = ANCHORS["p5"][:2]
ANCHORS["five"] = [*ANCHORS["p5"], [200, 200, 300, 150, 150, 300], [300, 300, 310, 200, 200, 310]]
HYP = {
    "box": 0.05,
    "obj": 0.25,
    "cls": 0.5,
    "cls_pw": 1.0,
    "obj_pw": 1.0,
    "fl_gamma": 0.0,
    "anchor_t": 4.0,
    "label_smoothing": 0.0,
}


@cache
def archives() -> dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """By case, its description and its arrays."""
    found = {}
    for name in FILES:
        archive = np.load(GOLDEN / name)
        for case, meta in json.loads(str(archive["meta"])).items():
            found[case] = meta, {k.split("/")[1]: archive[k] for k in archive.files if k.startswith(case + "/")}
    return found


def names(*kinds: str) -> list[str]:
    return [case for case, (meta, _) in archives().items() if meta["kind"] in kinds]


def stand_in(anchors: str, nc: int, hyp: dict | None = None, gr: float = 1.0, dtype=torch.float32) -> SimpleNamespace:
    """All that a loss asks of a model."""
    pixels = torch.tensor(ANCHORS[anchors], dtype=dtype).view(-1, 3, 2)
    stride = 8.0 * 2 ** torch.arange(len(pixels))
    head = SimpleNamespace(nl=len(pixels), na=3, nc=nc, anchors=pixels / stride.view(-1, 1, 1), stride=stride)
    return SimpleNamespace(model=[head], hyp=HYP if hyp is None else hyp, gr=gr)


class Case:
    """One recorded case: `maps` need gradients, `figures` are what was recorded."""

    def __init__(self, name: str, dtype=torch.float32, device: torch.device | None = None):
        self.meta, self.figures = archives()[name]
        meta = self.meta
        self.model = stand_in(meta["anchors"], meta["nc"], meta["hyp"], meta.get("gr", 1.0), dtype)
        self.head = self.model.model[0]
        self.kind, self.levels, self.height = meta["kind"], self.head.nl, meta["h"]
        self.loss = LOSSES[self.kind](self.model, autobalance=meta.get("autobalance", False))
        self.targets = torch.from_numpy(self.figures["targets"])
        self.images = torch.zeros(meta["bs"], 3, meta["h"], meta["w"])
        self.maps = [m.to(device, dtype).requires_grad_() for m in self.predictions()]

    def predictions(self) -> list[torch.Tensor]:
        meta, count = self.meta, self.levels * (2 if self.kind == "aux" else 1)
        if "pred_seed" not in meta:
            return [torch.from_numpy(self.figures[f"pred{m}_x256"].astype(np.float32) / 256) for m in range(count)]
        random, maps = np.random.RandomState(meta["pred_seed"]), []
        for m in range(count):
            stride = 8 * 2 ** (m % self.levels)
            shape = meta["bs"], 3, meta["h"] // stride, meta["w"] // stride, 5 + meta["nc"]
            maps.append((random.randn(*shape) * meta["pred_scale"]).astype(np.float32))
            maps[-1][..., 4] += np.float32(meta["obj_bias"])
        return [torch.from_numpy(m) for m in maps]

    def call(self):
        return self.loss(self.maps, self.targets, *([] if self.kind == "plain" else [self.images]))

    def outcome(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Items of the loss, and the gradients of the maps at the recorded places, after as many calls as recorded."""
        loss, items = self.call()
        for _ in range(self.meta.get("calls", 1) - 1):
            loss, items = self.call()
        loss.backward()
        places = [torch.from_numpy(self.figures[f"grad{m}_idx"]) for m in range(len(self.maps))]
        gradients = [m.grad.cpu().flatten()[at].numpy() for m, at in zip(self.maps, places, strict=True)]  # pyright: ignore[reportOptionalMemberAccess]
        return items.cpu().numpy(), gradients

    @property
    def lead(self) -> list[torch.Tensor]:
        return self.maps[: self.levels]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        return [tuple(m.shape[2:4]) for m in self.lead]

    @property
    def strides(self) -> list[float]:
        return self.head.stride.tolist()

    @property
    def top(self) -> int:
        return AUX_TOP if self.kind == "aux" else LEAD_TOP

    @property
    def assignments(self) -> dict[str, float]:
        return {"lead": LEAD_REACH, "aux": AUX_REACH} if self.kind == "aux" else {"lead": LEAD_REACH}

    def recorded(self, field: str) -> list[list[tuple]]:
        return [[tuple(row) for row in self.figures[f"{field}{level}"].tolist()] for level in range(self.levels)]


def batched_matches(loss, maps, targets, height: int, reach: float, top: int) -> list[list[tuple]]:
    """Per level, (image, anchor, row, column, target) of every match that `loss` makes, in emission order."""
    plan = loss.plan(targets, maps, reach, height)
    loss.assigner = SimOTA(top)
    given = loss.match(loss.predicted(maps, plan), plan)
    counts = [len(c) for c in plan.cells]
    levels = []
    for cells, taken, target, m in zip(
        plan.cells, given.positive_mask.split(counts), given.matched_gt.split(counts), maps
    ):
        where = np.unravel_index(cells[taken].numpy(), m.shape[:4])
        levels.append(list(zip(*(w.tolist() for w in where), target[taken].tolist())))
    return levels
