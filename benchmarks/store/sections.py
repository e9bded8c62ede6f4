"""Each measurement as one table with a note on how to read it; what the screen and the report both show."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.intervals import Interval
from benchmarks.store import compression, overlap, sharing
from benchmarks.store.compression import CompressionResult
from benchmarks.store.hits import DISK_FACTOR, HitRatio
from benchmarks.store.index import TOUCHED, Lookups
from benchmarks.store.novelty import DISK, MEMORY, PAGES, Gain
from benchmarks.store.overlap import Overlap
from benchmarks.store.run import StoreBench
from benchmarks.store.sharing import SharingResult
from benchmarks.store.throughput import COLD, LOAD, PLAIN_READ, PLAIN_WRITE, REUSED, SAVE, WARM, Throughput


@dataclass(frozen=True, slots=True)
class Section:
    """A table; `name` is that of its picture."""

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def sections(result: StoreBench) -> tuple[Section, ...]:
    """One for each measurement that was made."""
    return tuple(_sections(result))


def _sections(result: StoreBench) -> Iterator[Section]:
    if result.throughput:
        yield _throughput(result.throughput)
    for one in result.overlap:
        yield _overlap(one, result.overlap.index(one))
    if result.index:
        yield _index(result.index)
    if result.hits:
        yield _hits(result.hits)
    if result.novelty:
        yield _novelty(result.novelty)
    if result.sharing is not None:
        yield _sharing(result.sharing)
    if result.compression is not None:
        yield _compression(result.compression)


def _throughput(found: tuple[Throughput, ...]) -> Section:
    rows = []
    for one in found:
        size = f"{one.bytes / 1e6:.1f} MB"
        plain, save = (one.rate(one.writes[name]) for name in (PLAIN_WRITE, SAVE))
        rows.append((f"{size}, write", f"{plain:.2f}", f"{save:.2f}", f"{one.save_ratio:.2f}", "", ""))
        for warmth in (COLD, WARM):
            rates = {name: one.rate(seconds) for name, seconds in one.reads[warmth].items()}
            low, high = one.spread(warmth)
            rows.append(
                (
                    f"{size}, read {warmth}",
                    f"{rates[PLAIN_READ]:.2f}",
                    f"{rates[LOAD]:.2f}",
                    f"{one.ratio(warmth):.2f}",
                    f"{low:.2f}-{high:.2f}",
                    f"{one.ratio(warmth, REUSED):.2f}",
                )
            )
    rounds = len(found[0].writes[SAVE])
    cold = all(one.cold for one in found)
    return Section(
        "throughput",
        "Saving and loading against plain writing and reading, GB/s",
        ("file", "plain", "store", "ratio", "quartiles", "against a reused buffer"),
        tuple(rows),
        f"Medians of {rounds} interleaved rounds, one thread. A save checks, syncs, renames and indexes; a load "
        "verifies every byte and hands tensors over. A plain read goes into fresh memory as a load's does; the last "
        "column compares with a read into a buffer that was there already. "
        + (
            "Before each cold read none of the file was in the page cache (mincore); what lies below the operating "
            "system may keep its own."
            if cold
            else "Whether the cold reads were cold is not known."
        ),
    )


def _overlap(one: Overlap, place: int) -> Section:
    memory = one.median(overlap.MEMORY)
    rows = [(lane, _milliseconds(one.median(lane)), f"{one.median(lane) / memory:.2f}") for lane in overlap.LANES]
    return Section(
        f"overlap-{place}" if place else "overlap",
        f"Time to first token by where the KV is: {one.model}, {one.parameters / 1e6:.1f} M parameters",
        ("KV", "ms", "against memory"),
        tuple(rows),
        f"{one.chunks} chunks, {one.tokens:,} rows, {one.bytes / 1e6:.1f} MB of files; medians of "
        f"{len(one.seconds[overlap.DISK])} rounds, each with its own opening of the store. From ids to the answer's "
        "logits, look-ups and embeddings included; `recompute` has the embeddings. Hidden share of a load, 1 - (disk - "
        f"memory) / load alone, unclipped, median and quartiles of rounds: {_spread(one.hidden, one.spread)} behind "
        f"the linked prefill alone, {_spread(one.hidden_by_misses, one.spread_by_misses)} with half of the chunks "
        "computed "
        "meanwhile (negative: more was lost than the load "
        f"takes by itself). Largest difference of a logit, disk against memory: {one.gap:g}.",
    )


def _index(found: tuple[Lookups, ...]) -> Section:
    rows = tuple(
        (
            f"{one.entries:,}",
            *(f"{value:.1f}" for value in (*one.hits, *one.misses, one.touch, one.put)),
            f"{one.bytes / one.entries:.0f}",
        )
        for one in found
    )
    return Section(
        "index",
        "The index, µs for one entry",
        ("entries", "hit p50", "p99", "miss p50", "p99", "use", "insert", "bytes each"),
        rows,
        f"{found[0].lookups:,} random look-ups at each size, each row's checksum compared. A use is recorded in "
        f"batches of {TOUCHED}; an insertion includes its share of the commit.",
    )


def _hits(found: tuple[HitRatio, ...]) -> Section:
    rows = tuple(
        (
            f"{one.exponent:g}, {one.budget:.0%}",
            f"{one.memory:.1%}",
            f"{one.best_memory:.1%}",
            f"{one.either:.1%}",
            f"{one.best_either:.1%}",
        )
        for one in found
    )
    return Section(
        "hits",
        "Hit ratio under a Zipf trace",
        ("exponent, memory's share", "memory", "best fixed choice", "memory or disk", "best fixed choice"),
        rows,
        f"{found[0].requests:,} requests over {found[0].catalogue:,} chunks of one size from an empty store; the disk "
        f"holds {DISK_FACTOR} times what memory does. The best fixed choice knows the whole trace beforehand and "
        "starts full.",
    )


def _novelty(found: tuple[Gain, ...]) -> Section:
    rows = tuple(
        (
            f"{one.policy}, {one.queries:,}",
            f"{one.in_memory:.0%}",
            f"{one.found:.0%}",
            _milliseconds(one.seconds),
            _milliseconds(one.scratch),
            f"{one.gain:.1f}x",
        )
        for one in found
    )
    return Section(
        "novelty",
        "What a library gains after new queries about other things",
        ("kept, new queries", "in memory", "in the store", "ms", "from nothing, ms", "gain"),
        rows,
        f"{PAGES} pages are asked about, then so many new queries come with a chunk each that nobody saw before, then "
        f"the pages again; memory has room for {MEMORY} pieces, the disk for {DISK}. Time to first token from the "
        "pictures: encoding and prefill where the store has them no more.",
    )


def _sharing(found: SharingResult) -> Section:
    tables = found.way(sharing.TABLES)
    rows = tuple(
        (
            one.name,
            f"{one.canonical / 1e6:.2f}",
            f"{one.per_context / 1e3:,.1f}",
            f"{one.per_gigabyte:,.0f}" if one.per_context else "no bound",
            f"{one.per_gigabyte / tables.per_gigabyte:.1f}x" if one.per_context else "",
            _interval(one.divergence),
        )
        for one in found.ways
    )
    return Section(
        "sharing",
        "Contexts over shared chunks",
        ("kept", "MB shared", "kB a context", "contexts a GB", "against", "KL, nats"),
        rows,
        f"{found.contexts} contexts, each {sharing.PAGES} of {found.pool} pages in an order of its own, "
        f"{found.tokens:.0f} rows on average. KL from re-prefill at the answer, with its 95 % interval over contexts. "
        "Contexts in a GB (1e9 bytes) if further ones cost what these did.",
    )


def _compression(found: CompressionResult) -> Section:
    rows = []
    for setting in compression.SETTINGS:
        for strategy in compression.STRATEGIES:
            for name in found.files:
                line = found.line(name, strategy, setting)
                rows.append(
                    (
                        f"{setting}, {strategy}, {name}",
                        f"{found.rows[name] / found.rows['none']:.3f}",
                        _interval(line.moved),
                        _interval(line.divergence),
                        f"{line.same:.3f}",
                        f"{line.lost.high:.3f}",
                    )
                )
    items = found.lines[0].items
    files = ", ".join(f"{name} {size / found.files['none']:.3f}" for name, size in found.files.items())
    return Section(
        "compression",
        "Compressed rows",
        ("", "rows", "KL from uncompressed", "KL from re-prefill", "same", "loss"),
        tuple(rows),
        f"{items:,} questions in each setting on {found.episodes} fresh episodes, {found.chunks} chunks. rows: bytes "
        f"as a share of uncompressed ones; of whole files, in which embeddings stay as they are: {files}. KL in nats "
        "at the answer, with 95 % intervals by episode. same: answers as on uncompressed rows. loss: accuracy lost "
        "against them, upper bound. `none` comes back bit by bit.",
    )


def _spread(value: float, quartiles: tuple[float, float]) -> str:
    return f"{value:.0%} [{quartiles[0]:.0%}, {quartiles[1]:.0%}]"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}"


def _interval(found: Interval) -> str:
    if found.value == found.low == found.high == 0:
        return "0"
    return f"{found.value:.2g} [{found.low:.2g}, {found.high:.2g}]"
