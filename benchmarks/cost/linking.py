"""Time to first token of a linked prompt, by method and by the share of rows computed, over prefilling it again."""

from collections.abc import Sequence
from functools import partial

from benchmarks.cost.computed_share import ScatteredShare
from benchmarks.cost.rates import DeviceRates
from benchmarks.cost.subject import BEFORE, QUESTION, CostPrompt, CostSubject, link_checked, link_seconds
from benchmarks.cost.timing import Action, Pace, Seconds, interleaved
from benchmarks.table import Bar, Cell, Plot, Table

STOCK, FULL, STOCK_PREFIX = "transformers, all", "full", "transformers, kept prefix"
REPREFILL = (STOCK, FULL)
BAR_TOKENS, BAR_CHUNKS, BAR_LANE = 2048, 8, "patch-25%"
LANES = ("prefix", "full-reuse", "blind", "patch-32", BAR_LANE, "mpic-32")
BOUNDS = {"reference": 0.06}
LARGER_BOUND = 0.04
SHARES = (0.0, 0.02, 0.05, 0.12, 0.25, 0.5, 1.0)
BAR_SHARE, BAR_ROWS = 0.12, 0.2
DEVICE_BOUND = 1 / 8


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


def lane_seconds(
    subject: CostSubject, tokens: int, chunks: int, lanes: Sequence[str], pace: Pace
) -> tuple[Seconds, dict[str, int]]:
    """Return seconds to the logits of a prompt by each of some methods, and by transformers; and bytes moved.

    These are of the methods alone: rows that are taken, read and written, and patches, read.
    """
    patched = [lane for lane in lanes if lane.startswith("patch-")]
    with subject.prompt(tokens, chunks, patches=patched) as prompt:
        stock = PrefixReuse(subject, prompt)
        # Under `prefix` all of the prompt but a question is known, and the question is another one each time.
        before = prompt.parts[:-1]

        def prefix() -> float:
            parts = (*before, subject.token_ids(QUESTION))
            return link_seconds(subject.engine, parts, "prefix")

        actions: dict[str, Action] = {
            STOCK: lambda: subject.stock_prefill(prompt.prompt),
            FULL: lambda: subject.link(prompt, "full"),
            STOCK_PREFIX: stock.run,
        }
        for lane in lanes:
            actions[lane] = prefix if lane == "prefix" else partial(subject.link, prompt, lane)
        seconds = interleaved(actions, subject.device, pace)
        moved = {}
        for lane in lanes:
            parts = (*before, subject.token_ids(QUESTION)) if lane == "prefix" else prompt.parts
            trace = link_checked(subject.engine, parts, lane).trace
            moved[lane] = 2 * trace.bytes_read + trace.patch_bytes
        return seconds, moved


def link_cases(most: int) -> tuple[tuple[int, int], ...]:
    """Return rows and chunks of the prompts up to `most` rows, by length."""
    lengths = [tokens for tokens in (256, 1024, 2048, 4096, 8192) if tokens <= most] or [most]
    return tuple((tokens, BAR_CHUNKS) for tokens in lengths)


def chunk_cases(tokens: int) -> tuple[tuple[int, int], ...]:
    """Return rows and chunks of prompts of one length by number of chunks, beside those of `link_cases`."""
    return tuple((tokens, count) for count in (1, 32) if (tokens - BEFORE - QUESTION) // count >= 4)


def link_table(
    subject: CostSubject,
    cases: Sequence[tuple[int, int]],
    pace: Pace,
    rates: DeviceRates | None = None,
    name: str = "link",
) -> Table:
    """Return the time to first token by length, number of chunks and method; over a copy's where rates are given."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    for tokens, chunks in cases:
        found, moved = lane_seconds(subject, tokens, chunks, LANES, pace)
        base = found.least(REPREFILL)
        for lane in (*REPREFILL, STOCK_PREFIX, *LANES):
            ratio = found.ratio(lane, base)
            size = moved.get(lane)
            floor = None if size is None or rates is None else size / rates.copy / found.median(lane)
            rows.append((tokens, chunks, lane, 1e3 * found.median(lane), ratio, None if size is None else size / 1e6,
                         floor, found.count))  # fmt: skip
        # With its text or without: 2,048 rows of prompt, or 2,048 of chunks.
        if tokens in (BAR_TOKENS, BAR_TOKENS + BEFORE + QUESTION):
            bars += link_bars(subject, tokens, chunks, found, base)
    return Table(
        name,
        "Time to first token, by method" + (" and number of chunks" if name == "chunks" else ""),
        f"From the call to the logits of the last row; {BEFORE} rows of text, the chunks, {QUESTION} rows of question. "
        "Chunks and patches are in memory. Over re-prefill: over the quicker of `full` and transformers' own prefill "
        "from the same embeddings. `prefix` and transformers' kept prefix have everything but the question, which "
        "needs the same chunks in the same order; the others take the chunks in any. MB: taken rows read and written, "
        "patches read. share of copy: moving so much at the measured copy rate over the TTFT.",
        ("rows", "chunks", "method", "TTFT ms", "over re-prefill", "MB", "share of copy", "rounds"),
        tuple(rows),
        # Lines need prompts of several lengths.
        (Plot("rows", "over re-prefill", "method", doubling=True),) if name == "link" else (),
        tuple(bars),
    )


def link_bars(subject: CostSubject, tokens: int, chunks: int, found: Seconds, base: str) -> list[Bar]:
    """Return the bar of a prompt of 2,048 rows, where its chunks are as many as the bar is about."""
    ratio = found.median(BAR_LANE) / found.median(base)
    name = f"TTFT of {tokens:,} rows in {chunks} chunk{'s' * (chunks > 1)}, {BAR_LANE}, over re-prefill"
    if subject.device.type != "cpu":
        return [Bar(name, ratio, DEVICE_BOUND, least=False)] if chunks == 1 else []
    return [Bar(name, ratio, BOUNDS.get(subject.name, LARGER_BOUND), least=False)] if chunks == BAR_CHUNKS else []


def rows_table(subject: CostSubject, tokens: int, pace: Pace) -> Table:
    """Return the cost of linked prefills by the share of chunks' rows that are computed: first ones, or any."""
    chunks = BAR_CHUNKS if tokens >= 8 * BAR_CHUNKS else 1
    with subject.prompt(tokens, chunks) as prompt:
        longest = max(chunk.tokens for chunk in prompt.chunks)
        media = sum(chunk.tokens for chunk in prompt.chunks)
        lanes = {share: "blind" if share == 0 else f"mpic-{max(1, round(share * longest))}" for share in SHARES}
        actions: dict[str, Action] = {
            STOCK: lambda: subject.stock_prefill(prompt.prompt),
            FULL: lambda: subject.link(prompt, "full"),
        }
        for lane in lanes.values():
            actions[lane] = partial(subject.link, prompt, lane)
        scattered = {share: ScatteredShare(share) for share in SHARES if 0 < share < 1}
        for strategy in scattered.values():
            actions[strategy.name] = partial(subject.link, prompt, strategy)
        found = interleaved(actions, subject.device, pace)
        base = found.least(REPREFILL)
        computed = {
            lane: subject.engine.prefill(prompt.parts, lane, template=False).usage.computed_tokens
            for lane in lanes.values()
        }
    rows: list[tuple[Cell, ...]] = []
    for share, lane in lanes.items():
        other = scattered.get(share)
        rows.append((100 * share, computed[lane], computed[lane] / tokens, 1e3 * found.median(lane),
                     found.ratio(lane, base), None if other is None else 1e3 * found.median(other.name),
                     None if other is None else found.ratio(other.name, base)))  # fmt: skip
    bars = [
        Bar(f"{BAR_SHARE:.0%} of rows computed, {where}, over full",
            found.median(name) / found.median(base), BAR_ROWS, False)
        for where, name in (("the first", lanes[BAR_SHARE]), ("scattered", scattered[BAR_SHARE].name))
    ]  # fmt: skip
    return Table(
        "rows",
        f"Linked prefill of {tokens:,} rows by the share of rows computed",
        f"The first rows of each of {chunks} chunks ({media:,} rows) are computed (`mpic-K`), or as many of any rows "
        f"(scattered), and all text; medians of {found.count} rounds. Over full: over the quicker of `full` "
        f"({1e3 * found.median(FULL):.1f} ms) and transformers ({1e3 * found.median(STOCK):.1f} ms).",
        ("% of chunks", "rows computed", "share of rows", "TTFT ms", "over full", "scattered ms",
         "scattered over full"),
        tuple(rows),
        (Plot("% of chunks", "over full"), Plot("% of chunks", "scattered over full")),
        tuple(bars if tokens == BAR_TOKENS else ()),
    )  # fmt: skip
