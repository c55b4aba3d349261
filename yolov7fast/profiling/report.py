"""Profiles as numbers, text and a plot: per stage milliseconds and fractions, the comparison of losses, advice."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from yolov7fast.plots.curves import figure
from yolov7fast.profiling.op_counter import OpCounter
from yolov7fast.training.reporting.bottleneck import advice_text
from yolov7fast.training.timing import STAGES

COLOURS = ("#888888", "#bcbd22", "#1f77b4", "#d62728", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b")


def summarise(times: Mapping[str, list[float]], sizes: Sequence[int], counter: OpCounter) -> dict:
    """A profile from the milliseconds of each iteration by stage, and the images of each iteration."""
    stages = {name: times[name] for name in STAGES if name in times}
    mean = {name: statistics.fmean(values) for name, values in stages.items()}
    total = sum(mean.values())
    return {
        "stages": {
            name: {
                "mean_ms": mean[name],
                "std_ms": statistics.pstdev(values),
                "fraction": mean[name] / total if total else 0.0,
            }
            for name, values in stages.items()
        },
        "total_ms": total,
        "images_per_s": statistics.fmean(sizes) / total * 1e3 if total else 0.0,
        "gpu_busy": (mean.get("forward", 0.0) + mean.get("backward", 0.0)) / total if total else 0.0,
        "operators": counter.total,
        "host_reads": counter.host_reads,
        "iterations": len(sizes),
    }


def table(profile: Mapping, title: str) -> str:
    """One line for each stage, then the iteration as a whole."""
    lines = [f"\n{title}", f"{'stage':>12}{'mean ms':>12}{'std ms':>12}{'fraction':>10}"]
    for name, row in profile["stages"].items():
        lines.append(f"{name:>12}{row['mean_ms']:12.2f}{row['std_ms']:12.2f}{row['fraction']:10.1%}")
    lines.append(f"{'iteration':>12}{profile['total_ms']:12.2f}{'':>12}{1:10.1%}")
    lines.append(
        f"{profile['images_per_s']:.1f} images/s, {profile['gpu_busy']:.1%} of the time in forward and backward, "
        f"{profile['operators']} operators and {profile['host_reads']} host reads per iteration, "
        f"{profile['iterations']} iterations measured"
    )
    return "\n".join(lines)


def comparison(plain: Mapping, ota: Mapping) -> str:
    """OTA against plain in words: the whole iteration, and the loss alone."""

    def loss_ms(profile: Mapping) -> float:
        return sum(profile["stages"].get(name, {"mean_ms": 0.0})["mean_ms"] for name in ("loss", "assignment"))

    whole, part = ota["total_ms"] / plain["total_ms"], loss_ms(ota) / loss_ms(plain)
    return (
        f"\nmeasured in turn, batch by batch: an iteration with OTA takes {whole:.3f} times one with the plain loss; "
        f"loss + assignment alone {part:.3f} times ({loss_ms(ota):.2f} against {loss_ms(plain):.2f} ms)"
    )


def advice(profile: Mapping, in_use: Collection[str] = ()) -> str:
    """One line: the bottleneck of this run, and which flags to try; in_use: of `bottleneck.options_in_use`."""
    fraction = {name: row["fraction"] for name, row in profile["stages"].items()}
    loss = fraction.get("loss", 0.0) + fraction.get("assignment", 0.0)
    parts = {"data": fraction.get("data", 0.0), "loss": loss, "validation": 0.0}
    parts["network"] = 1 - sum(parts.values())
    return f"The bottleneck is {advice_text(parts, {}, in_use)}"


def draw(profiles: Mapping[str, Mapping], title: str, path: Path) -> None:
    """Stacked bars, one for each loss."""
    with figure(path, (8, 1.5 + 0.7 * len(profiles)), 150) as fig:
        ax = fig.subplots()
        for row, profile in enumerate(profiles.values()):
            left = 0.0
            for stage, colour in zip(STAGES, COLOURS, strict=True):
                width = profile["stages"].get(stage, {"mean_ms": 0.0})["mean_ms"]
                ax.barh(row, width, left=left, color=colour, label=stage if row == 0 else None)
                left += width
            ax.text(left, row, f" {left:.1f} ms", va="center")
        ax.set_yticks(range(len(profiles)), list(profiles))
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("milliseconds per iteration")
        ax.set_xlim(right=ax.get_xlim()[1] * 1.12)
        fig.legend(loc="outside lower center", ncols=len(STAGES), fontsize=8, frameon=False)
