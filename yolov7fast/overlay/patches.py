"""Names replaced in modules of a checkout, in memory alone, with a way back."""

from typing import Any

ABSENT = object()


class Patches:
    """Remembers what stood at each place that it wrote to."""

    def __init__(self):
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name = value`, of a module or class."""
        self._before.append((owner, name, vars(owner).get(name, ABSENT)))
        setattr(owner, name, value)

    def set_item(self, mapping: dict, key: str, value: Any) -> None:
        """`mapping[key] = value`, of a dictionary such as `sys.modules`."""
        self._before.append((mapping, key, mapping.get(key, ABSENT)))
        mapping[key] = value

    def undo(self) -> None:
        """Put back everything, the last first."""
        while self._before:
            owner, name, value = self._before.pop()
            if isinstance(owner, dict):
                owner.pop(name) if value is ABSENT else owner.__setitem__(name, value)
            elif value is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
