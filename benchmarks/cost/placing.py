"""Placing: taken rows turned, patched and written into a table, over a copy of the same bytes and over re-prefill."""

from dataclasses import dataclass

import torch

from benchmarks.cost.rates import PAYLOAD, CopyRing
from benchmarks.cost.subject import CostSubject, chunk_sizes
from benchmarks.cost.timing import Pace, interleaved
from benchmarks.table import Bar, Cell, Table
from emblema.kv.placing import Placer
from emblema.link.strategies.registry import parse
from emblema.link.taken_rows import LinkJob, Resources, TakenRows
from emblema.models.tables import KVTable

BAR_TOKENS, BAR_RANKS = 2048, (0, 32)
CASES = ((1, 0), (1, 32), (1, 16), (1, 64), (1, 128), (1, 256), (4, 0), (4, 32), (32, 0), (32, 32))
"""Chunks and ranks that are placed."""
BAR_SHARE, DEVICE_SHARE, PREFILL_OVER_PLACE = 0.5, 0.6, 150.0


@dataclass(frozen=True, slots=True)
class PlaceCase:
    """What is placed: `chunks` chunks of `tokens` rows together, with patches of a rank (0: none)."""

    tokens: int
    chunks: int
    rank: int


class PlaceRing:
    """Sets of chunks with a table for each, placed in turn, so that no cache holds what is placed next."""

    def __init__(self, subject: CostSubject, case: PlaceCase, payload: int = PAYLOAD) -> None:
        self.subject, self.case = subject, case
        self.bytes = case.tokens * subject.row_bytes
        count = max(1, -(-payload // (2 * self.bytes)))
        self.sets = [self._made() for _ in range(count)]
        self._next = 0

    def _made(self) -> tuple[LinkJob, KVTable, torch.Tensor]:
        subject, case = self.subject, self.case
        chunks = [subject.chunk(size) for size in chunk_sizes(case.tokens, case.chunks)]
        prompt = subject.laid_out((subject.token_ids(8), *chunks, subject.token_ids(8)))
        strategy = parse(f"patch-{case.rank}" if case.rank else "blind")
        plan = strategy.plan(prompt, subject.knowledge())
        table = subject.adapter.table(plan.rows)
        table.allocate(torch.arange(plan.rows, device=subject.device))
        patches = subject.patches(chunks, lambda chunk: case.rank)
        return LinkJob(plan, prompt, Resources(patches)), table, torch.arange(plan.rows)

    @torch.inference_mode()
    def place(self, placer: Placer | None = None) -> None:
        """Place one set, as the executor does it: what a plan needs is worked out, and every layer is written.

        Args:
            placer: who places; by default the device's own.
        """
        job, table, slots = self.sets[self._next % len(self.sets)]
        self._next += 1
        taken = TakenRows(self.subject.adapter, table, slots, job, placer)
        for layer in range(len(self.subject.adapter.layouts)):
            taken.write(layer)


def place_table(subject: CostSubject, tokens: int, pace: Pace, payload: int = PAYLOAD) -> Table:
    """Return the cost of placing so many rows, by rank and number of chunks, with the bars of 2,048 rows."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    again = subject.reprefill(tokens, pace)
    for case in (PlaceCase(tokens, *case) for case in CASES):
        ring = PlaceRing(subject, case, payload)
        copies = CopyRing(ring.bytes, subject.device, payload)
        seconds = interleaved({"place": ring.place, "copy": copies.copy}, subject.device, pace)
        place, copy = seconds.median("place"), seconds.median("copy")
        patches = ring.sets[0][0].resources.patches.values()
        moved = 2 * ring.bytes + sum(patch.bytes for patch in patches)
        share = (moved / place) / (2 * ring.bytes / copy)
        times = again / place
        rows.append((tokens, case.chunks, case.rank, 1e3 * place, moved / 1e6, share, times))
        if (tokens, case.chunks) == (BAR_TOKENS, 1) and case.rank in BAR_RANKS:
            what, on_cpu = f"{tokens:,} rows, rank {case.rank}", subject.device.type == "cpu"
            bars.append(Bar(f"place {what}, share of the copy rate", share, BAR_SHARE if on_cpu else DEVICE_SHARE))
            bars += [] if on_cpu else [Bar(f"prefill over place, {what}", times, PREFILL_OVER_PLACE)]
        del ring, copies
    return Table(
        "place",
        "Placing rows: relocated, patched and written, all layers",
        "MB: KV read and written, and patches read; past every cache. The share is of a plain copy's rate.",
        ("rows", "chunks", "rank", "place ms", "MB", "share of copy", "times re-prefill"),
        tuple(rows),
        bars=tuple(bars),
    )
