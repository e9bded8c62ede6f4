"""What has to hold of `auto`: bounds that were stated before the runs."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.load.figures import STRETCH, LoadBar, RateFigures, StageFigures
from benchmarks.load.requests import GONE, Traffic
from benchmarks.load.stages import AUTO, FULL, PREFIX, LoadAnswer, LoadStage


def stage_bars(
    stage: LoadStage,
    whole: StageFigures,
    parts: Sequence[StageFigures],
    traffic: Traffic,
    answers: Mapping[str, Sequence[LoadAnswer]],
) -> Iterator[LoadBar]:
    """Yield what has to hold of `auto` on the embedded engine; nothing of a smaller stage than was promised of.

    Args:
        whole, parts: figures of `auto`, over all requests and stretch by stretch.
        answers: of every arm to every request.
    """

    def bar(
        name: str, value: float | None, bound: float, least: bool = False, count: int = 0, aim: bool = False
    ) -> LoadBar:
        return LoadBar("stages", whole.engine, stage.name, name, value, bound, least, count or whole.requests, aim)

    kind = stage.shape.kind
    if kind == "novelty":
        yield bar("TTFT p50", whole.ttft, 1.05)
    elif not stage.promised:
        return
    elif stage.shape.slid:
        yield bar("rows", whole.rows, 0.36)
        yield bar("agrees with re-prefill", whole.agrees, 0.97, least=True)
        yield bar("wrong, of the accepted", whole.wrong, 0.01, count=whole.sure)
    elif kind == "rag":
        last = parts[-1].seen - parts[-1].requests
        yield bar("rows, from the first requests on", max(part.rows or 0.0 for part in parts), 0.35)
        yield bar(f"rows, after {last} requests", parts[-1].rows, 0.15, count=STRETCH)
        yield bar("TTFT p50, first requests", parts[0].ttft, 0.4, count=STRETCH)
        yield bar(f"TTFT p50, after {last} requests", parts[-1].ttft, 0.2, count=STRETCH)
        yield bar("agrees with re-prefill", whole.agrees, 0.99, least=True)
    else:
        both = zip(answers[AUTO], answers[FULL], traffic.requests, strict=True)
        dropped = [own.text == full.text for own, full, request in both if request.where == GONE]
        share = sum(dropped) / len(dropped) if dropped else None
        yield bar("rows", whole.rows, 0.36)
        yield bar("rows run, all counted", whole.ran, 0.36, aim=True)
        yield bar("TTFT p50", whole.ttft, 1.05)
        yield bar("agrees with re-prefill", whole.agrees, 0.97, least=True)
        yield bar("agrees on dropped legends", share, 0.97, least=True, count=len(dropped))
    yield bar("throughput", whole.throughput, 0.95, least=True, aim=True)


def rate_bars(rows: Sequence[RateFigures]) -> Iterator[LoadBar]:
    """Yield what has to hold of `auto` in one stage of one server, beside `prefix`: there it is `full` under vLLM."""
    by: dict[str, list[RateFigures]] = {}
    for row in rows:
        by.setdefault(row.method, []).append(row)
    auto, other = by.get(AUTO), by.get(PREFIX) or by.get(FULL)
    if not auto or not other:
        return

    def bar(name: str, value: float, bound: float, least: bool, count: int, aim: bool = False) -> LoadBar:
        return LoadBar(
            "rates", rows[0].engine, rows[0].stage, f"{name}, over prefix's", value, bound, least, count, aim
        )

    def processor(of: Sequence[RateFigures]) -> float:
        return sum(row.processor_ms * row.requests for row in of) / sum(row.requests for row in of)

    sent = sum(row.requests for row in auto)
    if auto[0].rate == other[0].rate == 0:
        yield bar("TTFT p50", auto[0].ttft_p50_ms / other[0].ttft_p50_ms, 0.25, False, auto[0].requests)
    most, before = (max(row.tokens_s for row in of) for of in (auto, other))
    yield bar("most tokens a second", most / before, 2.0, True, sent)
    if processor(auto):
        yield bar("answers a processor second", processor(other) / processor(auto), 2.0, True, sent, aim=True)
