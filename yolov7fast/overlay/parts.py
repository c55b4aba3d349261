"""Installation of the parts in a checkout: each has a switch and is only used if the code it replaces is upstream's."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from yolov7fast.core.errors import UserError
from yolov7fast.overlay import repairs
from yolov7fast.overlay.batch_comparison import BatchComparison
from yolov7fast.overlay.checkout import Checkout, Patches
from yolov7fast.overlay.replacements import (
    REPLACED,
    ap_per_class_for,
    fast_create_dataloader,
    non_max_suppression,
    own_create_dataloader,
)


def _known_code() -> dict[str, dict[str, str]]:
    """Part -> place -> SHA-256 of upstream's code (November 2023) that the part replaces, and of the helpers it calls:
    a fork with another `bbox_iou` has another loss."""
    known: dict[str, dict[str, str]] = {}
    for line in Path(__file__).with_name("upstream.sha256").read_text().splitlines():
        digest, part, place = line.split()
        known.setdefault(part, {})[place] = digest
    return known


KNOWN = _known_code()


@dataclass(frozen=True)
class OverlaySettings:
    """The parts to install; those off by default change pixels, files or timing."""

    loss: bool = True
    repairs: bool = True
    fast_dataloader: bool = True
    metrics: bool = True
    cache_images: str | None = None
    seed: int | None = None
    check: int = 0  # batches on which both sides are run and compared
    force: bool = False

    def __post_init__(self):
        of_loader = {"--cache-images": self.cache_images, "--seed": self.seed}
        asked = [flag for flag, value in of_loader.items() if value is not None]
        if asked and not self.fast_dataloader:
            raise UserError(f"{asked[0]} is done by the overlay's loader: leave out --no-fast-dataloader")
        if self.cache_images not in (None, "disk"):
            raise UserError(
                f"--cache-images {self.cache_images}: the overlay has disk; for memory give it to the script"
            )
        if self.check < 0:
            raise UserError(f"--check {self.check}: give the number of batches to compare")

    def known(self) -> dict[str, dict[str, str]]:
        """Flag that keeps the checkout's own code -> places and hashes, for the parts that replace code."""
        return {f"--no-{name.replace('_', '-')}": part for name, part in KNOWN.items() if getattr(self, name)}


def install(repo: str | Path | None = None, **switches) -> Patches:
    """Install the overlay in the checkout of the running script; to be called in its first lines.

    repo: the checkout, by default the script's folder; switches: the fields of `OverlaySettings`. A mistake ends the
    program with one line and exit code 2.
    """
    main = vars(sys.modules["__main__"]).get("__file__")
    try:
        return put_in(Checkout(repo or (Path(main).parent if main else Path.cwd())), OverlaySettings(**switches))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def put_in(checkout: Checkout, settings: OverlaySettings) -> Patches:
    """Repair and replace the checkout's modules in memory; `close()` of the result reverses it.

    A failure leaves nothing replaced.
    """
    check = BatchComparison(settings.check)
    if not settings.force:
        refuse_edited(checkout, settings)
    with Patches() as patches:
        patches.push(check.finish)
        if settings.repairs:
            repairs.before_imports(patches)
        checkout.put_first()
        if settings.repairs:
            repairs.after_imports(checkout, patches)
        losses, datasets = checkout.module("utils.loss"), checkout.module("utils.datasets")
        for name, ours in REPLACED.items():
            if settings.loss and hasattr(losses, name):
                patches.set(losses, name, check.loss(ours, getattr(losses, name), losses))
        create = datasets.create_dataloader
        if settings.fast_dataloader:
            fast = fast_create_dataloader(settings.cache_images, settings.seed)
            compared = check.loader(fast, create) if settings.seed is None else fast  # a seed changes the samples
            patches.set(datasets, "create_dataloader", compared)
        elif settings.loss:
            patches.set(datasets, "create_dataloader", own_create_dataloader(create))
        if settings.metrics:
            metrics = checkout.module("utils.metrics")
            patches.set(checkout.module("utils.general"), "non_max_suppression", non_max_suppression)
            patches.set(metrics, "ap_per_class", ap_per_class_for(metrics))
        if os.environ.get("RANK", "0") == "0":
            print(f"overlay: {summary(settings)} put into {checkout.root}", flush=True)
        return patches.pop_all()


def summary(settings: OverlaySettings) -> str:
    """The installed parts as one line of text."""
    chosen = {name: value for name, value in vars(settings).items() if value is not None and value is not False}
    parts = (name if on is True else f"{name} {on}" for name, on in chosen.items() if name not in ("check", "force"))
    return ", ".join(parts).replace("_", "-") or "nothing"


def refuse_edited(checkout: Checkout, settings: OverlaySettings) -> None:
    """Raise a UserError if the code to be replaced differs from upstream's."""
    found = {flag: checkout.differences(places) for flag, places in settings.known().items()}
    places = ", ".join(dict.fromkeys(place for differing in found.values() for place in differing))
    keep = " ".join(flag for flag, differing in found.items() if differing)
    if places:
        raise UserError(
            f"{checkout.root} differs from upstream in {places}: add {keep} to keep its code, or --force to replace it "
            "(--check compares the two)"
        )
