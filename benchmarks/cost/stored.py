"""Time to first token as more and more chunks are stored."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.cost.subject import CostPrompt, CostSubject, link_seconds
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.store.material import MODEL
from benchmarks.table import Bar, Cell, Table
from emblema.engine.engine import Engine
from emblema.store.disk.entry import DiskEntry
from emblema.store.disk.folder import INDEX
from emblema.store.disk.index import Index
from emblema.store.record import Terms
from emblema.store.settings import StoreSettings
from emblema.store.store import Store

LANE = "patch-25%"
BOUND = 1.05
BATCH = 10_000
OWNERS = 16
HELD, LOADED = "in memory", "on disk"


class GrownStore:
    """A store with a prompt's chunks, and an index of many more pieces whose files are not there.

    The pieces are other tenants' chunks of another model, so that nothing is ever read of them but the index.
    """

    def __init__(self, subject: CostSubject, folder: Path, entries: int, budget: int, seed: int) -> None:
        self.store = Store(folder, device_bytes=budget, disk_bytes=2**40, settings=StoreSettings(device=subject.device))
        self.engine: Engine = subject.engine.on(self.store)
        self._fill(folder / INDEX, entries, np.random.default_rng([seed, entries]))

    @staticmethod
    def _fill(path: Path, entries: int, random: np.random.Generator) -> None:
        owners = [random.bytes(32).hex() for _ in range(OWNERS)]
        index = Index(path)
        try:
            ids = sorted(random.bytes(32).hex() for _ in range(entries))
            now = time.time()
            for start in range(0, entries, BATCH):
                with index.transaction():
                    for place, id in enumerate(ids[start : start + BATCH]):
                        index.put(DiskEntry(id, owners[place % OWNERS], "chunk", MODEL, 1, now, now, Terms(), ()), 1)
        finally:
            index.close()

    def link(self, prompt: CostPrompt) -> float:
        """Link a prompt; return the seconds to its logits."""
        return link_seconds(self.engine, prompt.parts, LANE)


def stored_table(
    subject: CostSubject, sizes: Sequence[int], tokens: int, chunks: int, folder: Path, pace: Pace, seed: int
) -> Table:
    """Return the time to first token by the number of pieces in the index, in turns over stores of every size."""
    held: dict[tuple[int, str], Action] = {}
    with ExitStack() as stack:
        for size in sizes:
            own = (tokens * subject.row_bytes + tokens * subject.adapter.hidden_size * subject.dtype.itemsize) * 3 // 2
            grown = GrownStore(subject, folder / f"stored-{size}", size, max(own, 2**16), seed)
            stack.callback(grown.store.close)
            view = grown.engine.store
            first, second = (
                stack.enter_context(subject.prompt(tokens, chunks, patches=[LANE], store=view)) for _ in range(2)
            )
            grown.store.flush()

            # There is room for one prompt's chunks: the other one's have left when it comes again.
            def loaded(grown: GrownStore = grown, first: CostPrompt = first, second: CostPrompt = second) -> float:
                grown.link(second)
                return grown.link(first)

            held[size, LOADED] = loaded
            held[size, HELD] = partial(grown.link, first)
        seconds = interleaved(
            {f"{size} {where}": action for (size, where), action in held.items()}, subject.device, pace
        )
    rows: list[tuple[Cell, ...]] = []
    bars = []
    for where in (HELD, LOADED):
        for size in sizes:
            name, least = f"{size} {where}", f"{sizes[0]} {where}"
            rows.append((size, where, 1e3 * seconds.median(name), seconds.ratio(name, least), seconds.count))
        growth = seconds.median(f"{sizes[-1]} {where}") / seconds.median(f"{sizes[0]} {where}")
        if (sizes[0], sizes[-1]) == (1000, 1_000_000):
            bars.append(Bar(f"growth of TTFT, 10^3 to 10^6 pieces stored, chunks {where}", growth, BOUND, False))
    return Table(
        "stored",
        "Time to first token by the number of pieces stored",
        f"A prompt of {tokens:,} rows in {chunks} chunks under {LANE}, on stores whose disk index holds so many pieces "
        "(rows of the index alone; the prompt's own chunks are whole files). In memory: linked a moment ago. On disk: "
        "another prompt has pushed its chunks out of memory, and they are read again, from the page cache.",
        ("pieces", "chunks", "TTFT ms", "growth", "rounds"),
        tuple(rows),
        (),
        tuple(bars),
    )
