"""The demo's result for a reader: a table of every request, a summary, and one sentence."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emblema.eval.demo_result import PATCHED, STRATEGIES, DemoResult, Outcome

WIDTHS = {"strategy": 13, "answer": 8, "": 5, "computed": 8, "cached": 6, "patched": 7, "ttft": 8, "formed once": 17}
LEFT = ("strategy", "answer", "")


def show(console: Console, result: DemoResult) -> None:
    """Print everything."""
    lengths = [one.usage.prompt_tokens for one in result.of("full")]
    console.print(
        f"\n{len(result.media.pictures)} pictures and a clip: {result.chunks} chunks, encoded and prefilled once in "
        f"{result.adding_seconds:.1f} s. Prompts of {min(lengths):,} to {max(lengths):,} tokens on {result.device}, "
        f"{_count(result.threads, 'thread')}; times are medians of {_count(result.rounds, 'interleaved round')}"
        f"{'' if result.rounds == result.wanted else ' (time ran short for more)'}. Every strategy"
        " has its own history and starts each round with nothing but the chunks.\n"
    )
    console.print(_table(show_header=True))
    for index, situation in enumerate(result.situations):
        console.print(Text(f"\n{situation.title}", "bold"))
        for question in situation.questions(result.media):
            own = [one for one in result.of_situation(index) if one.request.question == question]
            console.print(Text(f"  {question.text}", "italic"))
            table = _table(show_header=False)
            for one in own:
                table.add_row(*_line(one))
            console.print(table)
    console.print(
        "\ncomputed + cached = tokens of the prompt; slid pages are absent unless a strategy has to run them. ttft: "
        "time to first token. formed once: rows run to form patches, and the time that added to the first use; ttft is "
        "then that of the second use. next questions: all but the first of an arrangement.\n"
    )
    console.print(summary_table(result))
    console.print("first: nothing was asked about this arrangement before. 2.0x: twice as fast as full.\n")
    console.print(exactness(result))
    console.print(Text(verdict(result), "bold"))


def exactness(result: DemoResult) -> Text:
    """Whether prefix, which is exact by construction, answered as full did."""
    if not result.broken:
        return Text(f"prefix, exact by construction, answered as full did on all {len(result.of('prefix'))} requests.")
    names = [f"{result.situations[one.request.situation].title}: {one.request.question.text}" for one in result.broken]
    said = f"BROKEN: prefix is exact by construction, yet it answered otherwise than full: {'; '.join(names)}"
    return Text(said, "bold red")


def summary_table(result: DemoResult) -> Table:
    """Right answers, and medians of time to first token by case; a column for each strategy."""
    title = "right answers, and time to first token"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for strategy in STRATEGIES:
        table.add_column(strategy, justify="right")
    table.add_row("right, single-hop", *(_right(result.of(name), False) for name in STRATEGIES))
    table.add_row("right, multi-hop", *(_right(result.of(name), True) for name in STRATEGIES), end_section=True)
    for case in dict.fromkeys(one.case for one in result.situations):
        table.add_row(f"first, {case}", *(_timed(result, name, case) for name in STRATEGIES))
        cost = _cost(result, case)
        if cost:
            table.add_row(Text("   forming, once", "dim"), "", "", "", Text(cost, "dim"))
    table.add_row("next questions", *(_timed(result, name, None) for name in STRATEGIES))
    return table


def verdict(result: DemoResult) -> str:
    """One sentence: what was found, in this run."""
    full, blind, patch = (result.of(name) for name in ("full", "blind", PATCHED))
    same = sum(one.token_ids == other.token_ids for one, other in zip(full, patch, strict=True))
    fast, slow = (median(one.ttft for one in lane if one.request.place == 0) for lane in (patch, full))
    formed = [one.formed for one in patch if one.forming_tokens]
    return (
        f"{PATCHED} gave re-prefill's answer on {same} of {len(full)} requests and was right on {_sum(patch)} "
        f"(re-prefill {_sum(full)}, blind reuse {_sum(blind)}); with its patches in place a first question took "
        f"{fast * 1e3:.0f} ms to the first token against {slow * 1e3:.0f} ms for re-prefill ({slow / fast:.1f} times "
        f"faster), and pages in an order not met before cost {_milliseconds(formed)} once to form them."
    )


def _table(*, show_header: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=show_header, header_style="dim")
    for name, width in WIDTHS.items():
        justify: Literal["left", "right"] = "left" if name in LEFT else "right"
        table.add_column(f"    {name}" if name == "strategy" else name, justify=justify, width=width, no_wrap=True)
    return table


def _line(one: Outcome) -> tuple[str | Text, ...]:
    usage = one.usage
    mark = Text("right", "green") if one.right else Text("wrong", "red")
    rows = (usage.computed_tokens, usage.cached_tokens, usage.patched_tokens)
    counts = (f"{count:,}" if count else "-" for count in rows)
    formed = f"{one.forming_tokens:,} in {one.formed * 1e3:,.0f} ms" if one.forming_tokens else ""
    return f"    {one.strategy}", one.text, mark, *counts, f"{one.ttft * 1e3:,.0f} ms", formed


def _timed(result: DemoResult, strategy: str, case: str | None) -> str:
    own, full = _seconds(result, strategy, case), _seconds(result, STRATEGIES[0], case)
    return f"{own * 1e3:,.0f} ms" + ("" if strategy == STRATEGIES[0] else f" {full / own:.1f}x")


def _seconds(result: DemoResult, strategy: str, case: str | None) -> float:
    chosen = result.of(strategy, case)
    return median(one.ttft for one in chosen if (one.request.place == 0) == (case is not None))


def _cost(result: DemoResult, case: str) -> str:
    formed = [one for one in result.of(PATCHED, case) if one.forming_tokens]
    return f"+{median(one.formed for one in formed) * 1e3:,.0f} ms" if formed else ""


def _right(outcomes: Sequence[Outcome], multi_hop: bool) -> str:
    chosen = [one for one in outcomes if one.request.question.multi_hop == multi_hop]
    return f"{_sum(chosen)} of {len(chosen)}"


def _sum(outcomes: Sequence[Outcome]) -> int:
    return sum(one.right for one in outcomes)


def _milliseconds(seconds: Sequence[float]) -> str:
    low, high = (f"{value * 1e3:,.0f}" for value in (min(seconds, default=0), max(seconds, default=0)))
    return f"{low} ms" if low == high else f"{low} to {high} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
