"""vLLM's pool of pages, played: which pages are free."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class PagePool:
    """Pages that are free, by their numbers."""

    free: list[int] = field(default_factory=lambda: list(range(100)))

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        return [SimpleNamespace(block_id=self.free.pop(0)) for _ in range(num_blocks)]

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        self.free += [block.block_id for block in ordered_blocks]
