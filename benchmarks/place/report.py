"""Placement as tables, plots and bars."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.place.amounts import DEVICE_BYTES, EMBED_BYTES, HOT, MEDIA_BYTES, ROW_BYTES, SKEW, TOKENS, WARM
from benchmarks.report import ModelTables, write_page
from benchmarks.table import Bar, Plot, Table

TITLES = {
    "load": ("Load of the replicas", "share of their time"),
    "skew": ("Skew of the albums' popularity", "Zipf's exponent"),
    "churn": ("Conversations about albums that are new", "share"),
    "lost": ("Replicas lost half way", "share"),
    "added": ("Replicas added half way", "share"),
    "shared-bandwidth": ("Bandwidth of the shared tier", "GB/s together"),
    "memory": ("Pictures that a replica's memory holds", "pictures"),
    "replicas": ("Chunks and replicas that grow together", "replicas"),
}
OURS, OTHERS = "set affinity", ("session hash", "two choices")
ROUTING_SECONDS = 100.0
"""Microseconds that a request's routing may take."""
TAKEN = {
    "rows": "Simulated clusters",
    "routing": "Times of the router",
    "amounts": "Amounts",
    "real": "Real replicas",
    "streams": "Streams",
}
"""What figures of an earlier run are called."""
PARTS = len(TITLES) + 3
"""Parts that there are."""


def tables_of(found: dict[str, Any], plots: bool = True) -> list[ModelTables]:
    """Return what was measured as tables, for each set of costs, and the router's own."""
    rows = found["rows"]
    simulated = [ModelTables(f"costs-{name}", tuple(_studies(name, rows, plots))) for name in _order(rows, "costs")]
    return [*simulated, ModelTables("router", tuple(_router(found)))]


def _order(rows: Sequence[dict[str, Any]], column: str) -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))


def _studies(costs: str, rows: Sequence[dict[str, Any]], drawn: bool) -> Iterator[Table]:
    mine = [row for row in rows if row["costs"] == costs]
    for study in _order(mine, "study"):
        title, across = TITLES[study]
        cells = []
        for row in (row for row in mine if row["study"] == study):
            value = row["value"] / 1e9 if study == "shared-bandwidth" else row["value"]
            shares = [row[tier] for tier in ("device", "host", "shared", "computed")]
            cells.append(
                (row["policy"], value, row["chunks"], *shares, row["bytes"] / 1e12, row["p50"] * 1e3, row["p99"] * 1e3,
                 row["imbalance"])
            )  # fmt: skip
        columns = ("policy", across, "chunks", "device", "host", "shared", "computed", "TB", "p50 ms", "p99 ms",
                   "imbalance")  # fmt: skip
        plots = tuple(
            Plot(across, up, "policy", doubling=study == "replicas")
            for up in ("device", "TB", "p50 ms", "p99 ms")
            if drawn
        )
        note = (
            "Shares of pictures by the tier that had them, bytes that the shared tier gave, seconds to the first "
            "token, and the busiest replica's work over the average, in the second half of the trace."
        )
        bars = tuple(_bars(study, [row for row in mine if row["study"] == study]))
        yield Table(study, title, note, columns, tuple(cells), plots, bars)


def _bars(study: str, rows: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    """Yield the worst ratio of set affinity over each other policy, of all values of a study."""
    by = {(row["value"], row["policy"]): row for row in rows}
    values = _order(rows, "value")
    asked = [("bytes", other) for other in OTHERS] + [("p50", other) for other in OTHERS] + [("p99", "two choices")]
    for figure, other in asked:
        ratios = [by[value, OURS][figure] / max(by[value, other][figure], 1e-12) for value in values]
        name = f"{study}: {figure} of set affinity over {other}'s, the worst of {len(values)} settings"
        yield Bar(name, max(ratios), 1.0, least=False, count=len(values), strict=figure != "p99")


def _router(found: dict[str, Any]) -> Iterator[Table]:
    timed = found["routing"]
    columns = ("digests", "replicas", "kept", "bytes each", "choose µs", "p99", "note µs", "p99 of notes")
    if timed:
        cells = tuple(tuple(row[name] for name in ("digests", "replicas", "kept", "bytes", "rank", "rank_p99", "note",
                                                   "note_p99")) for row in timed)  # fmt: skip
        bars = [
            Bar(f"routing at {row['digests']:,} digests, {row['replicas']:,} replicas, p50, µs",
                row["rank"] + row["note"], ROUTING_SECONDS, least=False)
            for row in timed
        ]  # fmt: skip
        bars += [
            Bar(f"digests kept over the bound, {row['digests']:,} digests", row["kept"] / row["digests"], 1.0,
                least=False)
            for row in timed
        ]  # fmt: skip
        note = (
            "A request of ten pictures, half of which the table holds; it was shown twice as many digests as it may "
            "keep. Bytes as Python allocates them, digests included."
        )
        yield Table("routing", "What a decision takes", note, columns, cells, bars=tuple(bars))
    if found["amounts"]:
        yield _amounts(found["amounts"])
    if found.get("real"):
        yield _real(found["real"])
    if found.get("streams"):
        yield _streams(found["streams"])


def _amounts(rows: Sequence[dict[str, Any]]) -> Table:
    names = ("hot", "warm", "rows", "embeddings", "media", "index", "all_rows", "router")
    cells = tuple(
        (f"{row['pictures']:,}", *(row[name] if name in ("hot", "warm") else row[name] / 1e12 for name in names),
         row["replicas"])
        for row in rows
    )  # fmt: skip
    columns = ("pictures", "hot", "warm", "rows of hot, TB", "embeddings, TB", "media, TB", "index, TB",
               "rows of all, TB", "router, TB", "replicas")  # fmt: skip
    note = (
        f"Calculated, not run: {TOKENS:,} tokens a picture; {ROW_BYTES:,} bytes of rows and {EMBED_BYTES:,} of "
        f"embeddings a token (a model of 7B in bfloat16); media of {MEDIA_BYTES:,} bytes (assumed); the index's and "
        f"the router's bytes as measured. Hot pictures are those that get {HOT:.0%} of all showings under a Zipf law "
        f"of exponent {SKEW}, and are rows in device memory once ({DEVICE_BYTES / 1e9:.0f} GB of it a replica); warm "
        f"ones bring that to {WARM:.0%} and are embeddings; the rest are media and ids."
    )
    return Table("amounts", "What a million and a thousand million pictures take", note, columns, cells)


def _real(rows: Sequence[dict[str, Any]]) -> Table:
    columns = (
        "replicas",
        "policy",
        "device",
        "simulated",
        "least",
        "most",
        "loads",
        "p50 ms",
        "p99 ms",
        "failures",
        "spread",
        "load",
    )
    names = ("replicas", "policy", "device", "simulated", "least", "most", "loads", "p50", "p99", "failures", "spread",
             "load")  # fmt: skip
    scale = {"p50": 1e3, "p99": 1e3}
    cells = tuple(tuple(row[name] * scale[name] if name in scale else row[name] for name in names) for row in rows)
    bars = []
    by = {(row["replicas"], row["policy"]): row for row in rows}
    for row in rows:
        where = f"{row['replicas']} real replicas, {row['policy']}"
        bars.append(
            Bar(f"{where}: device hits from the simulator's", abs(row["device"] - row["simulated"]), 0.05, False)
        )
        bars.append(Bar(f"{where}: requests without an answer", float(row["failures"]), 0.0, False))
    for many in _order(rows, "replicas"):
        if (many, "set-affinity") not in by:
            continue
        asked = [(figure, other) for figure in ("loads", "p50") for other in ("session-hash", "two-choices")]
        for figure, other in [*asked, ("p99", "two-choices")]:
            if (many, other) in by:
                ratio = by[many, "set-affinity"][figure] / max(by[many, other][figure], 1e-9)
                name = f"{many} real replicas: {figure} of set affinity over {other}'s"
                bars.append(Bar(name, ratio, 1.0, False, strict=figure != "p99"))
    note = (
        "`emblema serve --replicas` on this machine, the bundled model, one trace; 90 pictures of 258 rows, each "
        "replica's memory holds 24, the others are read from the folder that all share. Device: share of pictures "
        "whose rows were in memory; simulated: the mean, least and most of sixteen draws; loads: pictures "
        "that were read; times from sending a request to its answer of one token, the policies' requests in turns; "
        "spread: requests of the busiest replica over the average; load: of the machine. Second half of it alone."
    )
    return Table("replicas-real", "Real replicas beside the simulator", note, columns, cells, bars=tuple(bars))


def _streams(rows: Sequence[dict[str, Any]]) -> Table:
    columns = (
        "workers",
        "streams",
        "frames a second",
        "least",
        "most",
        "over one worker",
        "ask all, s",
        "move one, ms",
        "cores",
        "load",
    )
    cells = tuple(
        (row["workers"], row["streams"], row["rate"], row.get("least"), row.get("most"),
         row["rate"] / rows[0]["rate"], row["ask"],
         None if row["move"] is None or row["move"] != row["move"] else row["move"] * 1e3, row["cores"], row["load"])
        for row in rows
    )  # fmt: skip
    rounds = "medians of rounds in turns, with the slowest and the fastest" if rows[0].get("least") else "one round"
    note = (
        f"Streams of {rows[0]['frames']} frames over workers in processes of one thread, on the bundled model: "
        f"{rounds}; the load is the machine's average over a minute then, other programs included."
    )
    return Table("streams", "Streams by data partition", note, columns, cells)


def write_report(found: dict[str, Any], folder: Path, plots: bool = True) -> Path:
    """Write `place.md`, and its plots where they are asked for, into a folder; returns the page's path."""
    asked, remarks = found["asked"], []
    for name, told in found.get("taken", {}).items():
        remarks.append(f"{TAKEN[name]}: of the run of {told['date']} with the seed {told['seed']}.")
    if found["rows"]:
        remarks += [
            f"Costs `{one['name']}`: {one['device'] * 1e3:.1f} ms a picture from memory, {one['disk'] * 1e3:.1f} from "
            f"disk, {one['computed'] * 1e3:.0f} computed; {one['bytes']:,} bytes ({one['source']})."
            for one in found["costs"]
        ]
        remarks.append(
            "Simulated: replicas that answer one request after another in the order in which they come; conversations "
            "of two to eight pictures of an album of twenty, sent whole at each turn, shuffled, slid or as they were. "
            "Each setting is as the others but for what its table says: 50 replicas, 100,000 pictures, 700 of them in "
            "a replica's memory and 8,700 on its disk, 60,000 requests, load 0.5, 1.25 GB/s to each replica."
        )
    parts = f" --only {','.join(asked['parts'])}" if len(asked["parts"]) < PARTS else ""
    real = f" --real {asked['real']}" if asked.get("real") else ""
    command = f"`python -m benchmarks place --seed {asked['seed']}{parts}{real}`"
    return write_page(folder / "place.md", "Placement", command, tables_of(found, plots), remarks=remarks)


def plain_rows(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return dataclasses as rows."""
    return [asdict(row) for row in rows]
