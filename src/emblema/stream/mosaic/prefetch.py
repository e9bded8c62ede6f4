"""Blocks on their way to the device: asked for by a layer, or guessed by the one before it and copied meanwhile."""

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from emblema.stream.host import HostRows, Transfers

Copied = tuple[dict[int, Tensor], float]
"""Blocks by cluster, and the seconds that they took."""


class Fetcher:
    """Copies blocks, for one reading; what a layer is handed never depends on what was guessed for it."""

    def __init__(self, hosts: Sequence[HostRows], transfers: Transfers, device: torch.device) -> None:
        self._hosts, self._transfers, self._device = hosts, transfers, device
        self._pool: ThreadPoolExecutor | None = None
        self._coming: list[Future[Copied] | None] = [None for _ in hosts]
        self._guessed: list[frozenset[int]] = [frozenset() for _ in hosts]
        self._here: list[dict[int, Tensor]] = [{} for _ in hosts]

    @property
    def bytes(self) -> int:
        """Bytes on the device that the last reading brought."""
        return sum(lines.nbytes for here in self._here for lines in here.values())

    def begin(self) -> None:
        """A new reading: what the last one brought is given up."""
        self.finish()
        for here in self._here:
            here.clear()

    def start(self, layer: int, ids: Collection[int]) -> None:
        """Copy blocks on a thread, as a layer that comes later may ask for them; one guess a layer at a time."""
        new = [id for id in ids if id not in self._here[layer]]
        if not new or self._coming[layer] is not None:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "emblema-stream-fetch")
        self._transfers.predicted += len(new)
        self._guessed[layer] = frozenset(new)
        self._coming[layer] = self._pool.submit(self._copy, layer, new)

    def _copy(self, layer: int, ids: Sequence[int]) -> Copied:
        began = time.perf_counter()
        return {id: self._hosts[layer].copy(id, self._device) for id in ids}, time.perf_counter() - began

    def get(self, layer: int, ids: Sequence[int]) -> list[Tensor]:
        """Blocks on the device, waiting for those under way and copying those that are missing."""
        began = time.perf_counter()
        here = self._here[layer]
        if layer:
            self._transfers.asked += len(ids)
            self._transfers.hits += sum(id in self._guessed[layer] for id in ids)
        if any(id in self._guessed[layer] for id in ids):
            self._collect(layer)
        missing = [id for id in ids if id not in here]
        self._arrived(layer, self._copy(layer, missing))
        self._transfers.waited_seconds += time.perf_counter() - began
        return [here[id] for id in ids]

    def _collect(self, layer: int) -> None:
        coming = self._coming[layer]
        if coming is not None:
            self._arrived(layer, coming.result())
            self._coming[layer] = None

    def _arrived(self, layer: int, copied: Copied) -> None:
        blocks, seconds = copied
        self._here[layer].update(blocks)
        self._transfers.fetches += len(blocks)
        self._transfers.fetched_bytes += sum(lines.nbytes for lines in blocks.values())
        self._transfers.fetch_seconds += seconds

    def finish(self) -> None:
        """Wait for guesses that nobody asked for; blocks may be changed afterwards."""
        for layer in range(len(self._hosts)):
            self._collect(layer)
            self._guessed[layer] = frozenset()

    def close(self) -> None:
        """End the thread."""
        self.finish()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
