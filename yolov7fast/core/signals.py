"""SIGTERM and SIGINT ask a run to stop after the step it is in; a second SIGINT stops it at once."""

import signal
from typing import Any


class StopRequest:
    """Set by a signal; the training loop looks at it after every step."""

    def __init__(self):
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _frame) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        name = signal.Signals(number).name
        print(f"\n{name}: finishing this step, then writing a checkpoint", flush=True)

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal is not None else 0
