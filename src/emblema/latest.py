"""A dictionary of what came last."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LatestDict(OrderedDict[Key, Value]):
    """Keeps the keys that were set last, the latest at the end; setting a key again makes it the latest.

    Args:
        most: keys that are kept.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)

    def latest(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made where there is none, as the latest."""
        value = self[key] if key in self else make()
        self[key] = value
        return value
