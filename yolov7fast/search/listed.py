"""Trials from a list: every setting with every seed, in order."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from yolov7fast.search.ledger import ENDED, Ledger, Point, Run


class Listed:
    """The source of a trials file. Runs the ledger knows are kept; what has not ended is done or gone on with."""

    def __init__(self, ledger: Ledger, settings: Sequence[Mapping[str, Any]], seeds: Sequence[int]):
        for number, params in enumerate(settings):
            for k, seed in enumerate(seeds):
                key = ledger.first + number * len(seeds) + k
                ledger.runs.setdefault(key, Run(key, ledger.first + number, seed, dict(params)))
        ledger.save()
        self.total = len(ledger.runs)
        self.waiting = deque(run for run in ledger.ordered if run.status not in ENDED)

    def next(self) -> Run | None:
        return self.waiting.popleft() if self.waiting else None

    def judge(self, run: Run, point: Point) -> str:
        return ""

    def ended(self, run: Run) -> None:
        pass

    def elsewhere(self) -> list[Run]:
        return []

    def left_elsewhere(self) -> list[int]:
        return []
