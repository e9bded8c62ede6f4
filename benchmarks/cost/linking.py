"""Time to first token of a linked prompt, by method and by the share of rows computed, over prefilling it again."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.cost.subject import BEFORE, QUESTION, CostPrompt, CostSubject, link_seconds
from benchmarks.cost.timing import Action, Pace, Seconds, interleaved
from benchmarks.table import Bar, Cell, Plot, Table
from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, RowSource
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, plan_chunks

STOCK, FULL, STOCK_PREFIX = "transformers, all", "full", "transformers, kept prefix"
REPREFILL = (STOCK, FULL)
BAR_TOKENS, BAR_CHUNKS, BAR_LANE = 2048, 8, "patch-25%"
LANES = ("prefix", "full-reuse", "blind", "patch-32", BAR_LANE, "mpic-32")
REFERENCE_BOUND, LARGER_BOUND, DEVICE_BOUND = 0.06, 0.04, 1 / 8
SHARES = (0.0, 0.02, 0.05, 0.12, 0.25, 0.5, 1.0)
BAR_SHARE, BAR_ROWS = 0.12, 0.2
LINK_PLOT = Plot("rows", "over re-prefill", "method", doubling=True)


@dataclass(frozen=True, slots=True)
class ScatteredShare:
    """A strategy that computes a share of each chunk's rows, drawn anywhere in it."""

    share: float
    seed: int = 0

    @property
    def name(self) -> str:
        return f"scattered-{100 * self.share:g}%"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            computed = np.zeros(chunk.tokens, dtype=bool)
            random = np.random.default_rng([self.seed, segment.start])
            computed[random.choice(chunk.tokens, round(self.share * chunk.tokens), replace=False)] = True
            edges = [0, *(np.flatnonzero(computed[1:] != computed[:-1]) + 1).tolist(), chunk.tokens]
            ranges = []
            for first, last in zip(edges, edges[1:], strict=False):
                source = RowSource.COMPUTED if computed[first] else RowSource.TAKEN
                origin = None if computed[first] else ChunkOrigin(chunk.id, first)
                rows = (segment.start + first, segment.start + last)
                ranges.append(RowRange(*rows, source, (0, knowledge.layers), origin))
            return ranges

        return plan_chunks(self.name, prompt, knowledge, chunk_ranges)


class PrefixReuse:
    """Transformers' own reuse of a prefix: a cache with all rows but the question's, which is run after it."""

    def __init__(self, subject: CostSubject, prompt: CostPrompt) -> None:
        from transformers import DynamicCache

        self._subject, self._rows = subject, prompt.prompt.tokens - QUESTION
        embeds = subject.embeds(prompt.prompt)
        self._question = embeds[:, self._rows :]
        self._positions = prompt.prompt.positions
        self._cache = DynamicCache()
        subject.stock_forward(embeds[:, : self._rows], self._positions[:, : self._rows], self._cache)

    def run(self) -> None:
        """Run the question, and forget its rows."""
        self._subject.stock_forward(self._question, self._positions[:, self._rows :], self._cache)
        self._cache.crop(-QUESTION)


def lane_seconds(subject: CostSubject, tokens: int, chunks: int, lanes: Sequence[str], pace: Pace) -> Seconds:
    """Return seconds to the logits of a prompt by each of some methods, and by transformers."""
    patched = [lane for lane in lanes if lane.startswith("patch-")]
    with subject.prompt(tokens, chunks, patches=patched) as prompt:

        def prefix() -> float:
            """All of the prompt but a question is known, and the question is another one each time."""
            return link_seconds(subject.engine, (*prompt.parts[:-1], subject.token_ids(QUESTION)), "prefix")

        actions: dict[str, Action] = {
            STOCK: partial(subject.stock_prefill, prompt.prompt),
            FULL: partial(subject.link, prompt, FULL),
            STOCK_PREFIX: PrefixReuse(subject, prompt).run,
        }
        for lane in lanes:
            actions[lane] = prefix if lane == "prefix" else partial(subject.link, prompt, lane)
        return interleaved(actions, subject.device, pace)


def link_cases(most: int) -> tuple[tuple[int, int], ...]:
    """Return rows and chunks of the prompts up to `most` rows, by length."""
    lengths = [tokens for tokens in (256, 1024, 2048, 4096, 8192) if tokens <= most] or [most]
    return tuple((tokens, BAR_CHUNKS) for tokens in lengths)


def link_table(subject: CostSubject, cases: Sequence[tuple[int, int]], pace: Pace) -> Table:
    """Return the time to first token by length, number of chunks and method."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    for tokens, chunks in cases:
        found = lane_seconds(subject, tokens, chunks, LANES, pace)
        base = found.least(REPREFILL)
        for lane in (*REPREFILL, STOCK_PREFIX, *LANES):
            rows.append((tokens, chunks, lane, 1e3 * found.median(lane), found.ratio(lane, base)))
        on_cpu = subject.device.type == "cpu"
        # With its text or without: 2,048 rows of prompt, or 2,048 of chunks.
        if (tokens, chunks) == ((BAR_TOKENS, BAR_CHUNKS) if on_cpu else (BAR_TOKENS + BEFORE + QUESTION, 1)):
            bound = (REFERENCE_BOUND if subject.name == "reference" else LARGER_BOUND) if on_cpu else DEVICE_BOUND
            name = f"TTFT of {tokens:,} rows in {chunks} chunk{'s' * (chunks > 1)}, {BAR_LANE}, over re-prefill"
            bars.append(Bar(name, found.median(BAR_LANE) / found.median(base), bound, least=False))
    return Table(
        "link",
        "Time to first token, by method",
        f"{BEFORE} rows of text, the chunks in memory, {QUESTION} rows of question; `prefix` has all but the question.",
        ("rows", "chunks", "method", "TTFT ms", "over re-prefill"),
        tuple(rows),
        (LINK_PLOT,),
        tuple(bars),
    )


def rows_table(subject: CostSubject, tokens: int, pace: Pace) -> Table:
    """Return the cost of linked prefills by the share of chunks' rows that are computed: first ones, or any."""
    chunks = BAR_CHUNKS if tokens >= 8 * BAR_CHUNKS else 1
    with subject.prompt(tokens, chunks) as prompt:
        longest = max(chunk.tokens for chunk in prompt.chunks)
        first = {share: f"mpic-{max(1, round(share * longest))}" if share else "blind" for share in SHARES}
        scattered = {share: ScatteredShare(share) for share in SHARES if 0 < share < 1}
        actions: dict[str, Action] = {
            STOCK: partial(subject.stock_prefill, prompt.prompt),
            FULL: partial(subject.link, prompt, FULL),
        }
        actions |= {lane: partial(subject.link, prompt, lane) for lane in first.values()}
        actions |= {strategy.name: partial(subject.link, prompt, strategy) for strategy in scattered.values()}
        found = interleaved(actions, subject.device, pace)
    base = found.least(REPREFILL)
    rows = [
        (100 * share, found.ratio(lane, base), found.ratio(scattered[share].name, base) if share in scattered else None)
        for share, lane in first.items()
    ]
    bars = [
        Bar(f"{BAR_SHARE:.0%} of rows computed, {where}, over full", found.ratio(name, base).value, BAR_ROWS, False)
        for where, name in (("the first", first[BAR_SHARE]), ("scattered", scattered[BAR_SHARE].name))
    ]
    return Table(
        "rows",
        f"Linked prefill of {tokens:,} rows by the share of rows computed",
        f"Of each of {chunks} chunks; over the quicker of `full` ({1e3 * found.median(FULL):.1f} ms) and transformers.",
        ("% of chunks", "over full", "scattered over full"),
        tuple(rows),
        bars=tuple(bars if tokens == BAR_TOKENS else ()),
    )
