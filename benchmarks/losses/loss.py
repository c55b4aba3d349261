"""Cost of OTA and of task-aligned assignment (TAL): their losses compared with the plain one, in turn in one process.

All on the same random predictions and targets.
`python -m benchmarks.losses.loss [--quick] [--json FILE]`. 80 classes, three levels, boxes of 2 to 60% of the side.
CPU time of one thread; operators and host reads are counted at the dispatcher and do not depend on the machine.
"""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch

from benchmarks.measure import cpu_seconds, in_turn, note, quick_parser, show_machine, write_json
from benchmarks.op_counter import OpCounter
from yolov7fast.losses.multihead_loss import MultiHeadLoss
from yolov7fast.losses.yolo_loss import ComputeLoss, ComputeLossOTA, YoloLoss
from yolov7fast.nn.multihead import SHIPPED, HeadConfig

STRIDES = (8, 16, 32)
ANCHORS = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326))
GAINS = {"box": 0.05, "obj": 0.25, "cls": 0.5, "cls_pw": 1.0, "obj_pw": 1.0, "fl_gamma": 0.0, "anchor_t": 4.0}
COLUMNS = ("plain fwd", "OTA fwd", "ratio", "plain f+b", "OTA f+b", "ratio", "TAL fwd", "TAL f+b", "TAL/OTA f+b")
HEADER = f"{'batch   px  targets  classes':<30}" + "".join(f"{name:>11}" for name in COLUMNS)
MOST_OPERATORS = {"plain": "<= 160", "ota": "<= 260", "tal": "<= 330"}
CENTRAL = (64, 320, 17)  # batch, pixels, targets an image: the case that the goals are set for


def head(classes: int) -> SimpleNamespace:
    """The attributes of a model that a loss reads."""
    anchors = torch.tensor(ANCHORS).view(3, 3, 2) / torch.tensor(STRIDES).view(3, 1, 1)
    last = SimpleNamespace(nl=3, na=3, nc=classes, anchors=anchors, stride=torch.tensor(STRIDES, dtype=torch.float32))
    return SimpleNamespace(model=[last], hyp=GAINS, gr=1.0)


class Case:
    """One size: predictions, targets, and both losses on them."""

    def __init__(self, batch: int, size: int, targets: int, classes: int = 80):
        random, generator = np.random.RandomState(0), torch.Generator().manual_seed(0)
        self.maps = []
        for stride in STRIDES:
            cells = size // stride
            maps = torch.randn(batch, 3, cells, cells, 5 + classes, generator=generator) * 0.5
            maps[..., 4] -= 4
            self.maps.append(maps.requires_grad_())
        n = batch * targets
        wh = np.exp(random.uniform(np.log(0.02), np.log(0.6), (n, 2)))
        columns = [np.repeat(np.arange(batch), targets)[:, None], random.randint(0, classes, (n, 1))]
        rows = np.concatenate([*columns, random.uniform(0, 1, (n, 2)), wh], 1)
        self.targets = torch.from_numpy(rows.astype(np.float32))
        self.images = torch.zeros(batch, 3, size, size, device="meta")  # only its height is read
        model = head(classes)
        self.losses = {"plain": ComputeLoss(model), "ota": ComputeLossOTA(model), "tal": YoloLoss(model, "tal")}

    def forward(self, kind: str) -> torch.Tensor:
        loss = self.losses[kind]
        extra = (self.images,) if kind != "plain" else ()
        return loss(self.maps, self.targets, *extra)[0]

    def both_ways(self, kind: str) -> None:
        self.forward(kind).backward()
        for maps in self.maps:
            maps.grad = None

    def measure(self, runs: int) -> dict[str, float]:
        """Median CPU milliseconds of forward and of forward + backward, for each loss."""
        sides = {}
        for kind in self.losses:
            sides[f"{kind} forward"] = partial(cpu_seconds, partial(self.forward, kind))
            sides[f"{kind} both"] = partial(cpu_seconds, partial(self.both_ways, kind))
        for side in sides.values():
            side()  # warm
        return {name: seconds * 1e3 for name, seconds in in_turn(sides, runs).items()}

    def count(self, kind: str) -> OpCounter:
        """On `meta`, in place of a GPU: on a CPU, where reading a value is free, a few steps differ."""
        raw = [maps.to("meta") for maps in self.maps]
        with OpCounter() as counter:
            self.losses[kind](raw, self.targets, *(() if kind == "plain" else (self.images,)))
        return counter


def main(argv: list[str] | None = None) -> int:
    opt = quick_parser("benchmarks.losses.loss", __doc__, "the central size and a few others").parse_args(argv)
    torch.set_num_threads(1)
    runs = 11
    results: dict = {"machine": show_machine(), "runs": runs, "ratios": [], "cases": []}
    print(HEADER)
    measured = {}
    for batch, size, targets, classes in sizes(opt.quick):
        times = measured[batch, size, targets, classes] = Case(batch, size, targets, classes).measure(runs)
        results["cases"].append({"batch": batch, "size": size, "targets": targets, "classes": classes, **times})
        figures = []
        for way in ("forward", "both"):
            plain, ota = times[f"plain {way}"], times[f"ota {way}"]
            figures += [plain, ota, ota / plain]
        figures += [times["tal forward"], times["tal both"], times["tal both"] / times["ota both"]]
        row = f"{batch:5}{size:5}{targets:9}{classes:9}  "
        print(row + "".join(f"{figure:11.2f}" for figure in figures), flush=True)
    ms = measured[*CENTRAL, 80]
    ota = {way: ms[f"ota {way}"] / ms[f"plain {way}"] for way in ("forward", "both")}
    tal = {way: ms[f"tal {way}"] / ms[f"ota {way}"] for way in ("forward", "both")}
    note(results, "OTA / plain forward (batch 64, 320, 17 targets)", ota["forward"], "<= 2.0", runs)
    note(results, "OTA / plain forward + backward (same)", ota["both"], "<= 1.4", runs)
    note(results, "TAL / OTA forward (same)", tal["forward"], "<= 1.2", runs)
    note(results, "TAL / OTA forward + backward (same)", tal["both"], "<= 1.2", runs)
    compare_heads(results, runs)
    count_operators(results)
    write_json(opt.json, results)
    return 0


def sizes(quick: bool) -> list[tuple[int, int, int, int]]:
    """Batch, pixels, targets, classes: the central case first, then one that varies each of them."""
    if quick:
        return [(*CENTRAL, 80), (16, 320, 17, 80), (16, 640, 17, 80), (64, 320, 7, 80), (64, 320, 17, 3)]
    grid = [(b, s, t, 80) for s in (320, 640) for b in (16, 64, 128) for t in (7, 17)]
    return [*grid, (64, 320, 60, 80), (64, 320, 17, 3), (64, 320, 17, 1)]


def compare_heads(results: dict, runs: int) -> None:
    """The OTA loss of four heads of 20 classes against that of one head, on the same targets."""
    case, config = Case(*CENTRAL), HeadConfig.load(SHIPPED["standard"])
    model = head(config.nc)
    model.model[-1].head_config = config.to_dict()
    loss, generator = MultiHeadLoss(model, "ota"), torch.Generator().manual_seed(0)
    heads = []
    for width in config.widths:
        written = [torch.randn(*m.shape[:2], 5 + width, *m.shape[2:4], generator=generator) * 0.5 for m in case.maps]
        heads.append([m.permute(0, 1, 3, 4, 2).contiguous() for m in written])  # as the detection layer gives them
        for m in heads[-1]:
            m[..., 4] -= 4
            m.requires_grad_()
    sides = {
        "one": partial(cpu_seconds, partial(case.forward, "ota")),
        "four": partial(cpu_seconds, partial(loss, heads, case.targets, case.images)),
    }
    in_turn(sides, 1)  # warm
    seconds = in_turn(sides, runs)
    four, one = seconds["four"] * 1e3, seconds["one"] * 1e3
    print(f"OTA forward with 4 heads {four:.2f} ms, with 1 head {one:.2f} ms: {four / one:.2f}")
    what = "OTA loss with 4 heads / with 1 head, forward (batch 64, 320, 17 targets)"
    note(results, what, four / one, "<= 1.5", runs)


def count_operators(results: dict) -> None:
    """Operators and host reads of a forward, at two batch sizes: they must not grow with images."""
    for kind in ("plain", "ota", "tal"):
        counts = {batch: Case(batch, 320, 17).count(kind) for batch in (4, 64)}
        operators = {batch: counter.total for batch, counter in counts.items()}
        reads = {batch: counter.host_reads for batch, counter in counts.items()}
        text = f"{operators[64]} operators at batch 64, {operators[4]} at 4; host reads {reads[64]}"
        print(f"{kind:<6} forward: {text}")
        note(
            results,
            f"{kind} operators, forward, batch 64",
            operators[64],
            MOST_OPERATORS[kind],
            1,
        )
        note(results, f"{kind} operators, batch 64 / batch 4", operators[64] / operators[4], "== 1", 1)
        note(results, f"{kind} host reads of device data, forward", reads[64], "== 0", 1)


if __name__ == "__main__":
    sys.exit(main())
