"""Blocks on their way to the device: asked for by a layer, or guessed by the one before it and copied meanwhile."""

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from emblema.stream.host import HostRows, Transfers

Copied = tuple[Tensor, float]


class Fetcher:
    """Copies blocks, for one reading; what a layer is handed never depends on what was guessed for it."""

    def __init__(self, hosts: Sequence[HostRows], transfers: Transfers, device: torch.device) -> None:
        self._hosts, self._transfers, self._device = hosts, transfers, device
        self._pool: ThreadPoolExecutor | None = None
        self._coming: list[dict[int, Future[Copied]]] = [{} for _ in hosts]
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
        """Copy blocks on a thread, as a later layer may ask for them."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "emblema-stream-fetch")
        new = [id for id in ids if id not in self._here[layer] and id not in self._coming[layer]]
        self._transfers.predicted += len(new)
        for id in new:
            self._coming[layer][id] = self._pool.submit(self._copy, layer, id)

    def _copy(self, layer: int, id: int) -> Copied:
        began = time.perf_counter()
        lines = self._hosts[layer].copy(id, self._device)
        return lines, time.perf_counter() - began

    def get(self, layer: int, ids: Sequence[int]) -> list[Tensor]:
        """Blocks on the device, waiting for those under way and copying those that are missing."""
        began = time.perf_counter()
        here, coming = self._here[layer], self._coming[layer]
        if layer:
            self._transfers.asked += len(ids)
            self._transfers.hits += sum(id in coming for id in ids)
        for id in ids:
            if id in coming:
                here[id] = self._arrived(coming.pop(id).result())
            elif id not in here:
                here[id] = self._arrived(self._copy(layer, id))
        self._transfers.waited_seconds += time.perf_counter() - began
        return [here[id] for id in ids]

    def _arrived(self, copied: Copied) -> Tensor:
        lines, seconds = copied
        self._transfers.fetches += 1
        self._transfers.fetched_bytes += lines.nbytes
        self._transfers.fetch_seconds += seconds
        return lines

    def finish(self) -> None:
        """Wait for guesses that nobody asked for, and drop them; blocks may be changed afterwards."""
        for coming in self._coming:
            for future in coming.values():
                self._arrived(future.result())
            coming.clear()

    def close(self) -> None:
        """End the thread."""
        self.finish()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
