"""A plan in words: tables for the terminal."""

from collections.abc import Mapping

from yolov7fast.planning.feeding import SampleCost, need
from yolov7fast.planning.files import FileBytes
from yolov7fast.planning.memory import CARDS, MARGIN, MemoryPlan
from yolov7fast.planning.running import LINKS, Duration, Exchange

SHOWN_LAYERS = 8


def amount(value: float) -> str:
    """Bytes as people read them."""
    for unit, size in (("GB", 2**30), ("MB", 2**20), ("kB", 2**10)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} bytes"


def speed(value: float) -> str:
    """Bytes a second, in the units that disks and links are sold in."""
    return f"{value / 1e9:.2f} GB/s" if value >= 1e9 else f"{value / 1e6:.1f} MB/s"


def memory_text(plan: MemoryPlan, all_layers: bool) -> str:
    network, step = plan.network, plan.step
    rows = [
        ("weights", network.weights),
        ("gradients", network.gradients),
        ("optimizer", network.optimizer),
        ("EMA", network.ema),
        ("images", plan.images),
        ("activations", step.activations),
        ("more at the peak", step.peak - step.activations),
        ("CUDA, cuDNN (assumed)", plan.reserve),
    ]
    lines = [f"\nmemory of a step, batch {plan.batch}"] + [f"  {name:24}{amount(size):>12}" for name, size in rows]
    lines.append(f"  {'together':24}{amount(plan.total):>12}")
    layers = sorted(step.by_layer.items(), key=lambda item: -item[1])
    shown = list(step.by_layer.items()) if all_layers else layers[:SHOWN_LAYERS]
    lines.append("activations by layer" if all_layers else f"the {len(shown)} largest layers (--layers shows all)")
    lines += [f"  {name:24}{amount(size):>12}{size / step.activations:8.1%}" for name, size in shown]
    if not all_layers and "loss" not in dict(shown):
        size = step.by_layer.get("loss", 0)
        lines.append(f"  {'loss, densest mosaic':24}{amount(size):>12}{size / step.activations:8.1%}")
    return "\n".join(lines)


def batches_text(batches: Mapping[int, int]) -> str:
    head = "".join(f"{f'{card} GB':>8}" for card in CARDS)
    row = "".join(f"{batches[card] or '-':>8}" for card in CARDS)
    return f"\nlargest batch of one GPU, about; {MARGIN:.0%} of its memory left free\n  {head}\n  {row}"


def files_text(files: FileBytes, epochs: int) -> str:
    rows = [
        ("--cache-images ram", files.ram),
        ("--cache-images disk", files.disk),
        ("checkpoint", files.checkpoint),
        ("checkpoint inside an epoch", files.in_epoch),
        ("best.pt of a finished run", files.final),
        (f"run folder, {epochs} epochs", files.kept),
    ]
    return "\nfiles\n" + "\n".join(f"  {name:28}{amount(size):>12}" for name, size in rows)


def feeding_text(costs: Mapping[str, SampleCost], images_per_second: float) -> str:
    if not costs:
        return "\nwhat feeds it is measured with --data alone: the cost of a sample depends on the images"
    lines = [f"\nto feed {images_per_second:g} images/s, by the cost of a sample on this machine"]
    lines.append(f"  {'':32}{'ms a sample':>12}{'cores':>8}{'disk':>14}")
    for kind, cost in costs.items():
        wanted = need(cost, images_per_second)
        disk = speed(wanted.disk) if wanted.disk else "first epoch"
        lines.append(f"  {kind:32}{cost.cpu_ms:12.2f}{wanted.cores:8.1f}{disk:>14}")
    return "\n".join(lines)


def exchange_text(found: Exchange) -> str:
    lines = [
        f"\n{found.gpus} GPUs: {amount(found.gradient_bytes)} of gradients a step, of which each sends "
        f"{amount(found.sent_bytes)}; links of less than {speed(found.hidden_from)} leave it exposed"
    ]
    for name, value in LINKS.items():
        lines.append(f"  {name:16}{found.exposed_ms[value]:10.1f} ms more a step")
    return "\n".join(lines)


def duration_text(found: Duration, epochs: int, images: int, images_per_second: float, gpus: int) -> str:
    cost = "" if found.cost is None else f", {found.cost:.2f} at this rate"
    pace = f"{images_per_second * gpus:g} images/s"
    return f"\n{epochs} epochs of {images:,} images at {pace}: {found.hours:.1f} hours{cost} (validation not counted)"
