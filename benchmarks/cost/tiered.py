"""A prompt whose chunks are brought from host memory or from disk each time that it is linked."""

import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cost.subject import CostSubject, link_seconds
from benchmarks.store.material import cooled
from emblema.kv.device import wait_for
from emblema.store.settings import StoreSettings
from emblema.store.store import Store


class TieredPrompt:
    """A prompt on a store with room for its chunks alone: another one's push them out of the device's memory.

    Args:
        subject: the model.
        folder: of a disk tier.
        tokens, chunks: of the prompt.
        strategy: that it is linked by.
        host: whether what leaves the device stays in host memory; it is read from disk otherwise.
        stack: what is to be closed at the end.

    Attributes:
        stayed: the largest share of its files that was in the page cache before a cold read.
    """

    def __init__(
        self, subject: CostSubject, folder: Path, tokens: int, chunks: int, strategy: str, host: bool, stack: ExitStack
    ) -> None:
        row = subject.row_bytes + subject.adapter.hidden_size * subject.dtype.itemsize
        size = max(tokens * row * 3 // 2, 2**16)
        settings = StoreSettings(device=subject.device, host_bytes=8 * size if host else 0)
        store = Store(folder, device_bytes=size, disk_bytes=2**40, settings=settings)
        stack.callback(store.close)
        self.engine, self.strategy, self.folder, self.stayed = subject.engine.on(store), strategy, folder, 0.0
        patches = [strategy] if strategy.startswith("patch-") else []
        self.first, self.second = (
            stack.enter_context(subject.prompt(tokens, chunks, patches=patches, store=self.engine.store))
            for _ in range(2)
        )
        store.flush()

    @property
    def files(self) -> list[Path]:
        """The files of both prompts' chunks, and of their patches."""
        return sorted((self.folder / "pieces").rglob("*.safetensors"))

    def link(self, cold: bool) -> float:
        """Link it after its chunks have left the device; return the seconds to its logits."""
        self.push(cold)
        return link_seconds(self.engine, self.first.parts, self.strategy)

    def load(self, cold: bool) -> float:
        """Bring its chunks back to the device without a forward; return the seconds."""
        self.push(cold)
        device = self.engine.adapter.device
        wait_for(device)
        began = time.perf_counter()
        with self.engine.store.lease([chunk.id for chunk in self.first.chunks]) as lease:
            for rows in lease.rows.values():
                list(rows)
            wait_for(device)
        return time.perf_counter() - began

    def push(self, cold: bool) -> None:
        """Link the other prompt, so that this one's chunks leave the device; and their files the page cache."""
        link_seconds(self.engine, self.second.parts, self.strategy)
        if cold:
            self.stayed = max(cooled(self.files), self.stayed)
