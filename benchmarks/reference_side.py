"""One side of `benchmarks.reference`: runs inside a checkout (this project's or the public one's) and times its parts.

It knows only names that both projects have, and imports nothing of either before it stands in the checkout's folder:
`python reference_side.py FOLDER INPUTS.npz SETTINGS.json RESULT.json`. What fails is reported, the rest is still timed.
"""

import contextlib
import hashlib
import io
import json
import os
import random
import statistics
import sys
import time
import traceback
from types import SimpleNamespace


def load_inputs(path):
    import numpy as np
    import torch

    arrays = np.load(path)
    maps = [torch.from_numpy(arrays[name]) for name in sorted(n for n in arrays.files if n.startswith("map"))]
    return maps, torch.from_numpy(arrays["targets"]), torch.from_numpy(arrays["images"])


def build_network(settings):
    """The checkout's own network with the gains that its trainer would give it."""
    import torch

    from models.yolo import Model

    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        model = Model(settings["cfg"], ch=3, nc=settings["nc"])
    model.hyp, model.gr, model.nc = dict(settings["gains"]), 1.0, settings["nc"]
    return model


def loss_part(kind):
    def prepare(settings, inputs):
        import torch

        from utils import loss as losses

        model = build_network(settings)
        criterion = losses.ComputeLossOTA(model) if kind == "ota" else losses.ComputeLoss(model)
        maps, targets, images = inputs

        def run(backward=False):
            leaves = [m.clone().requires_grad_(backward) for m in maps]
            total, items = criterion(leaves, targets, images) if kind == "ota" else criterion(leaves, targets)
            if backward:
                total.backward()
            return leaves, items

        leaves, items = run(backward=True)
        cells = [torch.nonzero(m.grad[..., 5:].abs().sum(-1)).tolist() for m in leaves]
        parity = {"items": items.tolist(), "gradient": [m.grad.abs().sum().item() for m in leaves], "matched": cells}
        return {"forward": run, "forward and backward": lambda: run(backward=True)}, parity

    return prepare


def samples_part(settings, _):
    import numpy as np

    from utils.datasets import LoadImagesAndLabels

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        dataset = LoadImagesAndLabels(
            settings["photographs"],
            settings["size"],
            settings["batch"],
            True,
            dict(settings["hyp"]),
            False,
            False,
            False,
        )
    random.seed(1)
    np.random.seed(1)
    picked = [dataset[i] for i in range(4)]
    parity = {
        "pixels": [hashlib.sha256(sample[0].numpy().tobytes()).hexdigest()[:16] for sample in picked],
        "labels": [sample[1].numpy().tolist() for sample in picked],
    }
    return {"16 samples": lambda: [dataset[i % len(dataset)] for i in range(16)]}, parity


def step_part(settings, inputs):
    import torch

    from utils.loss import ComputeLossOTA

    model = build_network(settings).train()
    criterion = ComputeLossOTA(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9, nesterov=True)
    _, targets, images = inputs
    images = images.float() / 255

    def run():
        total, items = criterion(model(images), targets, images)
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        return items

    return {"step with OTA": run}, {"items": run().tolist()}


def loader_part(settings, _):
    """Batches of the training loader one after the other, its processes working ahead as they do beside a training."""
    import numpy as np
    import torch

    from utils.datasets import create_dataloader

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        loader, _ = create_dataloader(
            settings["photographs"],
            settings["size"],
            settings["batch"],
            32,
            SimpleNamespace(single_cls=False),
            hyp=dict(settings["hyp"]),
            augment=True,
            workers=settings["workers"],
        )

    def endless():
        while True:
            yield from loader

    stream, count = endless(), min(len(loader), LOADER_BATCHES)
    images, labels = next(stream)[:2]
    parity = {
        "batches": len(loader),
        "pixels": [hashlib.sha256(images.numpy().tobytes()).hexdigest()[:16]],
        "labels": labels.numpy().tolist(),
    }
    return {f"{count} batches": lambda: [next(stream) for _ in range(count)]}, parity


LOADER_BATCHES = 8  # in one timing: enough to outlast what was prepared ahead
PARTS = {
    "plain loss": loss_part("plain"),
    "OTA loss": loss_part("ota"),
    "samples": samples_part,
    "training": step_part,
    "loader": loader_part,  # the last: its processes keep working ahead
}
OF_PHOTOGRAPHS = ("samples", "loader")


def timed(prepare, settings, inputs):
    """Seconds of each piece of work of a part, its figures to compare, and the error if it could not be run."""
    result = SimpleNamespace(seconds={}, parity=None, error=None)
    try:
        works, result.parity = prepare(settings, inputs)
        for what, work in works.items():
            times = []
            for _ in range(settings["runs"]):
                start = time.perf_counter()
                work()
                times.append(time.perf_counter() - start)
            result.seconds[what] = statistics.median(times)
    except (Exception, SystemExit) as error:
        result.error = f"{type(error).__name__}: {error}"
        result.where = traceback.format_exc().splitlines()[-3].strip()
    return vars(result)


def main():
    folder, *paths = sys.argv[1:5]
    inputs_path, settings_path, result_path = (os.path.abspath(path) for path in paths)
    sys.path[0] = os.path.abspath(folder)  # not this script's folder: `utils` and `models` are the checkout's
    os.chdir(folder)
    with open(settings_path) as file:
        settings = json.load(file)
    inputs = load_inputs(inputs_path)
    wanted = {name: part for name, part in PARTS.items() if settings["photographs"] or name not in OF_PHOTOGRAPHS}
    report = {name: timed(part, settings, inputs) for name, part in wanted.items()}
    with open(result_path, "w") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
