"""Several GPUs and the length of a run: bytes of gradients, the link that hides their exchange, hours, money."""

from typing import NamedTuple

BACKWARD = 2 / 3  # of a step's time: gradients are exchanged while the backward pass runs


class Exchange(NamedTuple):
    """Of one optimizer step with several processes.

    gradient_bytes: of the network; sent_bytes: by each GPU, in a ring; hidden_from: bytes/s of the slowest link above
    which the exchange hides behind the backward pass; exposed_ms: by link speed in bytes/s, what a step waits for it.
    """

    gpus: int
    gradient_bytes: int
    sent_bytes: float
    hidden_from: float
    exposed_ms: dict[float, float]


LINKS = {"1 Gbit/s": 0.125e9, "10 Gbit/s": 1.25e9, "PCIe 4 x16": 25e9, "NVLink": 250e9}  # usable bytes/s, one way


def exchange(gradient_bytes: int, gpus: int, batch: int, images_per_second: float) -> Exchange:
    """batch: of each GPU; images_per_second: of each GPU alone."""
    backward = batch / images_per_second * BACKWARD
    sent = 2 * (gpus - 1) / gpus * gradient_bytes
    exposed = {speed: max(sent / speed - backward, 0.0) * 1e3 for speed in LINKS.values()}
    return Exchange(gpus, gradient_bytes, sent, sent / backward, exposed)


class Duration(NamedTuple):
    """Hours of training (validation not counted), and what they cost; None without a price."""

    hours: float
    cost: float | None


def duration(images: int, epochs: int, images_per_second: float, gpus: int, rate: float | None) -> Duration:
    """rate: price of an hour of the machine, all its GPUs together."""
    hours = images * epochs / (images_per_second * gpus) / 3600
    return Duration(hours, None if rate is None else hours * rate)
