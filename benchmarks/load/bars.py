"""What has to hold of `auto`: bounds that were stated before the runs."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.load.figures import STRETCH
from benchmarks.load.requests import LoadRequest, TrafficShape
from benchmarks.load.stages import AUTO, FULL, PREFIX, LoadAnswer
from benchmarks.table import Bar
from benchmarks.window.experiment import Row


def stage_bars(
    shape: TrafficShape,
    whole: Row,
    parts: Sequence[Row],
    requests: Sequence[LoadRequest],
    answers: Mapping[str, Sequence[LoadAnswer]],
) -> Iterator[Bar]:
    """Yield what has to hold of `auto` on the embedded engine; nothing of a smaller stage than was promised of.

    Args:
        whole, parts: figures of `auto`, over all requests and stretch by stretch.
        answers: of every arm to every request.
    """
    kind, count = shape.kind, whole["requests"]
    if kind == "novelty":
        yield Bar("TTFT p50", whole["ttft"], 1.05, False, count)
    elif not shape.promised:
        return
    elif shape.slid:
        yield Bar("rows", whole["rows"], 0.36, False, count)
        yield Bar("agrees with re-prefill", whole["agrees"], 0.97, True, count)
        yield Bar("wrong, of the accepted", whole["wrong"], 0.01, False, whole["sure"])
    elif kind == "rag":
        last = parts[-1]["seen"] - parts[-1]["requests"]
        most = max(part["rows"] or 0.0 for part in parts)
        yield Bar("rows, from the first requests on", most, 0.35, False, count)
        yield Bar(f"rows, after {last} requests", parts[-1]["rows"], 0.15, False, STRETCH)
        yield Bar("TTFT p50, first requests", parts[0]["ttft"], 0.4, False, STRETCH)
        yield Bar(f"TTFT p50, after {last} requests", parts[-1]["ttft"], 0.2, False, STRETCH)
        yield Bar("agrees with re-prefill", whole["agrees"], 0.99, True, count)
    else:
        both = zip(answers[AUTO], answers[FULL], requests, strict=True)
        dropped = [own.text == full.text for own, full, request in both if request.dropped]
        share = sum(dropped) / len(dropped) if dropped else None
        yield Bar("rows", whole["rows"], 0.36, False, count)
        yield Bar("rows run, all counted", whole["ran"], 0.36, False, count, aim=True)
        yield Bar("TTFT p50", whole["ttft"], 1.05, False, count)
        yield Bar("agrees with re-prefill", whole["agrees"], 0.97, True, count)
        yield Bar("agrees on dropped legends", share, 0.97, True, len(dropped))
    yield Bar("throughput", whole["throughput"], 0.95, True, count, aim=True)


def beside_prefix(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows of `auto` in one stage of one server, and those of `prefix`: there it is `full` under vLLM."""
    other = PREFIX if any(row["method"] == PREFIX for row in rows) else FULL
    auto, before = ([row for row in rows if row["method"] == method] for method in (AUTO, other))
    return auto, before


def rate_bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """Yield what has to hold of `auto` in one stage of one server, beside `prefix`."""
    auto, other = both = beside_prefix(rows)
    if not auto or not other:
        return
    sent = sum(row["requests"] for row in auto)
    if auto[0]["rate"] == other[0]["rate"] == 0:
        first = auto[0]["ttft_p50_ms"] / other[0]["ttft_p50_ms"]
        yield Bar("TTFT p50, over prefix's", first, 0.25, False, auto[0]["requests"])
    most, before = (max(row["tokens_s"] for row in own) for own in both)
    yield Bar("most tokens a second, over prefix's", most / before, 2.0, True, sent)
    spent, spent_before = (
        sum(row["processor_ms"] * row["requests"] for row in own) / sum(row["requests"] for row in own) for own in both
    )
    if spent:
        yield Bar("answers a processor second, over prefix's", spent_before / spent, 2.0, True, sent, aim=True)
