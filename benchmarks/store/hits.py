"""How often a small store has what is asked for, under a Zipf trace; counted, not timed, so a seed repeats it.

Pieces have random rows and one size. A request looks a chunk up and holds a lease on its rows, and stores it where it
was found nowhere, as a linked prompt does.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.store.material import random_chunk
from benchmarks.table import Plot, Table
from emblema.errors import StoreError
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.store.store import Store, TenantStore

TOKENS = 16
PATIENCE = 30.0
EXPONENTS = (0.7, 1.0, 1.3)
SHARES = (0.05, 0.2)
DISK_FACTOR = 4
"""The disk holds so many times what memory does."""


@dataclass(frozen=True, slots=True)
class HitRatio:
    """One trace on one budget; shares of the requests.

    Attributes:
        exponent: of the Zipf law that popularity follows.
        budget: of memory, as a share of all chunks.
        catalogue, requests: distinct chunks, and how often one was asked for.
        memory, disk: found in memory, and on disk alone.
        best_memory, best_either: what the most popular chunks of the whole trace, known beforehand and kept throughout,
            would have given with the budget of memory, and of the disk.
    """

    exponent: float
    budget: float
    catalogue: int
    requests: int
    memory: float
    disk: float
    best_memory: float
    best_either: float

    @property
    def either(self) -> float:
        """Found anywhere."""
        return self.memory + self.disk


def measure(folder: Path, catalogue: int, requests: int, seed: int, screen: Console) -> tuple[HitRatio, ...]:
    """Measure every exponent on every budget."""
    random = np.random.default_rng([seed, 4])
    chunks = [random_chunk(TOKENS, random) for _ in range(catalogue)]
    cases = [(exponent, share) for exponent in EXPONENTS for share in SHARES]
    traces = {exponent: zipf(exponent, catalogue, requests, random) for exponent in EXPONENTS}
    found = []
    with steps(screen, f"hit ratio, {len(cases)} traces of {requests:,} requests", len(cases)) as advance:
        for exponent, share in cases:
            found.append(_measure(folder / f"hits-{exponent}-{share}", exponent, share, chunks, traces[exponent]))
            advance()
    return tuple(found)


def zipf(exponent: float, catalogue: int, requests: int, random: np.random.Generator) -> list[int]:
    """Return the chunk of each request: the k-th most popular with a chance that goes as k to the minus `exponent`."""
    weights = np.arange(1, catalogue + 1, dtype=np.float64) ** -exponent
    return [int(chunk) for chunk in random.choice(catalogue, size=requests, p=weights / weights.sum())]


def _measure(folder: Path, exponent: float, share: float, chunks: Sequence[Chunk], trace: Sequence[int]) -> HitRatio:
    room = max(1, round(share * len(chunks)))
    with Store(folder, device_bytes=room * size_of(chunks[0]), disk_bytes=2**40) as store:
        probe = store.tenant()
        probe.put(chunks[0])
        store.flush()
        file = store.statistics.disk_bytes
        probe.delete(chunks[0].id)
    kept = min(len(chunks), DISK_FACTOR * room)
    places = {"memory": 0, "disk": 0, "nowhere": 0}
    # A tombstone of the probe would keep it out of this store.
    with Store(folder, device_bytes=room * size_of(chunks[0]), disk_bytes=kept * file + file // 2) as store:
        view = store.tenant()
        for place in trace:
            places[ask(view, chunks[place])] += 1
    counts = np.sort(np.bincount(trace, minlength=len(chunks)))[::-1]
    requests = len(trace)
    return HitRatio(
        exponent,
        share,
        len(chunks),
        requests,
        places["memory"] / requests,
        places["disk"] / requests,
        float(counts[:room].sum() / requests),
        float(counts[:kept].sum() / requests),
    )


def size_of(chunk: Chunk) -> int:
    """Return bytes that a chunk takes of the memory's budget."""
    return chunk.bytes + chunk.encoded.bytes


def ask(view: TenantStore, chunk: Chunk) -> str:
    """Use a chunk, storing it where it is nowhere; return where it was: memory, disk or nowhere."""
    before, loads = opened(view), view.statistics.loads
    if view.find(chunk.id) is None:
        # The disk learns of the uses in memory first, then evicts.
        view.flush()
        view.put(chunk)
        view.flush()
        return "nowhere"
    place = "disk" if opened(view) > before else "memory"
    with view.lease([chunk.id]) as lease:
        if lease.missing:
            raise StoreError(f"{chunk.id[:12]} was found, and then its rows were not")
        list(lease.rows[chunk.id])
    if place == "disk":
        _wait(lambda: view.statistics.loads > loads)
    return place


def _wait(done: Callable[[], bool]) -> None:
    """Wait for a load, finished a moment after its last row is read; until then its piece cannot be evicted."""
    until = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > until:
            raise StoreError(f"a load was not finished in {PATIENCE:g} s")
        time.sleep(1e-4)


def opened(view: TenantStore) -> int:
    """Return how often a file was opened: once to find a piece that memory does not have, once for its rows."""
    disk = view.parent.disk
    return 0 if disk is None else disk.statistics.hits


def hits_table(found: Sequence[HitRatio]) -> Table:
    """Return hit ratios by exponent and budget, beside the best fixed choices."""
    best = {"memory": "best in memory", "memory or disk": "best in either"}
    return Table(
        "hits",
        "Hit ratio under a Zipf trace",
        f"{found[0].requests:,} requests over {found[0].catalogue:,} chunks of one size from an empty store; memory "
        f"holds a share of them, the disk {DISK_FACTOR} times as many. The best fixed choice knows the whole trace "
        "beforehand and starts full.",
        ("memory's share", "exponent", "memory", best["memory"], "memory or disk", best["memory or disk"]),
        tuple(
            (f"{case.budget:.0%}", case.exponent, case.memory, case.best_memory, case.either, case.best_either)
            for case in found
        ),
        tuple(Plot("exponent", y, "memory's share") for pair in best.items() for y in pair),
    )
