"""Placing: taken rows turned, patched and written into a table, over a copy of the same bytes and over re-prefill."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.cost.rates import PAYLOAD, CopyRing
from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Pace, interleaved
from benchmarks.table import Bar, Cell, Plot, Table
from emblema.kv.artifacts import Artifact
from emblema.kv.placing import Placer
from emblema.link.plan import RowSource
from emblema.link.strategies.registry import parse
from emblema.link.taken_rows import LinkJob, Resources, TakenRows
from emblema.models.table import KVTable
from emblema.store.keys import ArtifactKey

BAR_TOKENS, BAR_SHARE = 2048, 0.5
BAR_RANKS = (0, 32)
PREFILL_OVER_PLACE = 150.0
DEVICE_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class PlaceCase:
    """What is placed: `chunks` chunks of `tokens` rows together, with patches of a rank (0: none)."""

    tokens: int
    chunks: int
    rank: int


def place_cases(most: int, chunks: Sequence[int] = (1, 4, 32)) -> tuple[PlaceCase, ...]:
    """Return the cases up to `most` tokens: by length, by rank, and by number of chunks."""
    lengths = [tokens for tokens in (256, 1024, 2048, 4096, 8192) if tokens <= most]
    middle = BAR_TOKENS if most >= BAR_TOKENS else most
    found = [PlaceCase(tokens, 1, rank) for tokens in lengths or [most] for rank in (0, 32)]
    found += [PlaceCase(middle, 1, rank) for rank in (16, 64, 128, 256)]
    found += [PlaceCase(middle, count, rank) for count in chunks for rank in (0, 32)]
    return tuple(dict.fromkeys(found))


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
        sizes = [case.tokens // case.chunks + (place < case.tokens % case.chunks) for place in range(case.chunks)]
        chunks = [subject.chunk(size) for size in sizes]
        prompt = subject.laid_out((subject.token_ids(8), *chunks, subject.token_ids(8)))
        artifacts: dict[ArtifactKey, Artifact] = {}
        for place, chunk in enumerate(chunks if case.rank else ()):
            key = ArtifactKey(chunk.model, chunk.id, tuple(other.id for other in chunks[:place]))
            artifacts[key] = subject.patch(chunk.tokens, case.rank)
        strategy = parse(f"patch-{case.rank}" if case.rank else "blind")
        plan = strategy.plan(prompt, subject.knowledge())
        table = subject.adapter.table(plan.rows)
        table.allocate(torch.arange(plan.rows, device=subject.device))
        return LinkJob(plan, prompt, Resources(artifacts)), table, torch.arange(plan.rows)

    @property
    def patch_bytes(self) -> int:
        """Bytes of one set's patches."""
        job, _, _ = self.sets[0]
        return sum(artifact.bytes for artifact in job.resources.artifacts.values())

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

    def rewind(self) -> None:
        """Begin with the first set again."""
        self._next = 0

    def check(self) -> bool:
        """Return whether placing one set writes all its rows, which were zeros."""
        self.place()
        job, table, _ = self.sets[0]
        spans = [(part.start, part.stop) for part in job.plan.ranges if part.source is RowSource.TAKEN]
        return all(
            bool(table.read(layer, start, stop).values.abs().sum(dim=(0, 2)).min() > 0)
            for layer in range(len(table.layouts))
            for start, stop in spans
        )


def place_table(
    subject: CostSubject, cases: Sequence[PlaceCase], pace: Pace, *, payload: int = PAYLOAD, reprefill: bool = True
) -> Table:
    """Return the cost of placing, case by case, with the bars of 2,048 rows."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    for case in cases:
        ring = PlaceRing(subject, case, payload)
        copies = CopyRing(ring.bytes, subject.device, payload)
        seconds = interleaved({"place": ring.place, "copy": copies.copy}, subject.device, pace)
        moved = 2 * ring.bytes + ring.patch_bytes
        share = (moved / seconds.median("place")) / (2 * ring.bytes / seconds.median("copy"))
        again = subject.reprefill(case.tokens, pace) if reprefill else None
        times = None if again is None else again / seconds.median("place")
        rows.append(
            (case.tokens, case.chunks, case.rank, 1e3 * seconds.median("place"), moved / 1e6,
             moved / seconds.median("place") / 1e9, share, times, seconds.count)
        )  # fmt: skip
        if case.tokens == BAR_TOKENS and case.chunks == 1 and case.rank in BAR_RANKS:
            bars += _bars(case, share, times, subject.device.type)
        del ring, copies
    return Table(
        "place",
        "Placing rows: relocated, patched and written, all layers",
        "One call is the executor's own: what the plan needs is worked out, and every layer is written into a table. "
        "Sources and tables are gone through in turn, past every cache. MB: KV read and written, and patches read. "
        "share: the rate over that of a copy of the same KV in the same rounds. times: prefilling as many rows again "
        "(`full` or transformers, the quicker) over placing them.",
        ("rows", "chunks", "rank", "place ms", "MB", "GB/s", "share of copy", "times re-prefill", "rounds"),
        tuple(rows),
        (Plot("rows", "share of copy", "rank", only=("chunks", 1), doubling=True),),
        tuple(bars),
    )


def _bars(case: PlaceCase, share: float, times: float | None, device: str) -> list[Bar]:
    what = f"{case.tokens:,} rows, rank {case.rank}"
    if device == "cpu":
        return [Bar(f"place {what}, share of the copy rate", share, BAR_SHARE)]
    return [
        Bar(f"place {what}, share of the copy rate", share, DEVICE_SHARE),
        Bar(f"prefill over place, {what}", times, PREFILL_OVER_PLACE),
    ]
