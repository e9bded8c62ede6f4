"""Print the demo's result: a table of every request, a summary, and one sentence."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emblema.eval.demo import PATCHED, STRATEGIES, DemoAnswer, DemoResult

WIDTHS = {"strategy": 13, "answer": 12, "": 5, "computed": 8, "cached": 6, "patched": 7, "ttft": 8, "formed once": 17}
LEFT = ("strategy", "answer", "")


def show(console: Console, result: DemoResult) -> None:
    """Print everything."""
    lengths = [answer.usage.prompt_tokens for answer in result.of("full")]
    console.print(
        f"\n{result.media.described}: {result.chunks} chunks, encoded and prefilled once in "
        f"{result.adding_seconds:.1f} s. Prompts of {min(lengths):,} to {max(lengths):,} tokens on {result.device}, "
        f"{count_of(result.threads, 'thread')}; times are medians of {count_of(result.rounds, 'interleaved round')}"
        f"{'' if result.rounds == result.wanted else ' (time ran short for more)'}. Every strategy"
        " has its own history and starts each round with nothing but the chunks.\n"
    )
    console.print(_table(show_header=True))
    for index, situation in enumerate(result.situations):
        console.print(Text(f"\n{situation.title}", "bold"))
        for place, question in enumerate(result.media.questions(situation)):
            console.print(Text(f"  {question.text}", "italic"))
            table = _table(show_header=False)
            for answer in result.of_situation(index):
                if answer.place == place:
                    table.add_row(*_line(answer))
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
    """Say whether `prefix`, which is exact by construction, answered as `full` did."""
    if not result.broken:
        return Text(f"prefix, exact by construction, answered as full did on all {len(result.of('prefix'))} requests.")
    names = [f"{result.situations[answer.situation].title}: {answer.question.text}" for answer in result.broken]
    said = f"BROKEN: prefix is exact by construction, yet it answered otherwise than full: {'; '.join(names)}"
    return Text(said, "bold red")


def summary_table(result: DemoResult) -> Table:
    """Return a table of right answers and median times to first token by case; a column for each strategy."""
    title = "right answers, and time to first token"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for strategy in STRATEGIES:
        table.add_column(strategy, justify="right")
    table.add_row("right, single-hop", *(_right(result.of(name), False) for name in STRATEGIES))
    table.add_row("right, multi-hop", *(_right(result.of(name), True) for name in STRATEGIES), end_section=True)
    for case in dict.fromkeys(situation.case for situation in result.situations):
        table.add_row(f"first, {case}", *(_timed(result, name, case) for name in STRATEGIES))
        formed = [answer.formed for answer in result.of(PATCHED, case) if answer.forming_tokens]
        if formed:
            cost = f"+{median(formed) * 1e3:,.0f} ms"
            table.add_row(Text("   forming, once", "dim"), "", "", "", Text(cost, "dim"))
    table.add_row("next questions", *(_timed(result, name, None) for name in STRATEGIES))
    return table


def verdict(result: DemoResult) -> str:
    """Return what was found in this run, in one sentence."""
    full, blind, patch = (result.of(name) for name in ("full", "blind", PATCHED))
    same = sum(answer.reply.token_ids == other.reply.token_ids for answer, other in zip(full, patch, strict=True))
    fast, slow = (median(answer.ttft for answer in lane if answer.place == 0) for lane in (patch, full))
    formed = [answer.formed for answer in patch if answer.forming_tokens]
    return (
        f"{PATCHED} gave re-prefill's answer on {same} of {len(full)} requests and was right on {_sum(patch)} "
        f"(re-prefill {_sum(full)}, blind reuse {_sum(blind)}); with its patches in place a first question took "
        f"{fast * 1e3:.0f} ms to the first token against {slow * 1e3:.0f} ms for re-prefill ({slow / fast:.1f} times "
        f"faster), and pages in a new order cost {_milliseconds(formed)} once to form them."
    )


def _table(*, show_header: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=show_header, header_style="dim")
    for name, width in WIDTHS.items():
        justify: Literal["left", "right"] = "left" if name in LEFT else "right"
        table.add_column(f"    {name}" if name == "strategy" else name, justify=justify, width=width, no_wrap=True)
    return table


def _line(answer: DemoAnswer) -> tuple[str | Text, ...]:
    usage = answer.usage
    mark = Text("right", "green") if answer.right else Text("wrong", "red")
    rows = (usage.computed_tokens, usage.cached_tokens, usage.patched_tokens)
    counts = (f"{count:,}" if count else "-" for count in rows)
    formed = f"{answer.forming_tokens:,} in {answer.formed * 1e3:,.0f} ms" if answer.forming_tokens else ""
    return f"    {answer.strategy}", answer.reply.text, mark, *counts, f"{answer.ttft * 1e3:,.0f} ms", formed


def _timed(result: DemoResult, strategy: str, case: str | None) -> str:
    own, full = (
        median(answer.ttft for answer in result.of(name, case) if (answer.place == 0) == (case is not None))
        for name in (strategy, STRATEGIES[0])
    )
    return f"{own * 1e3:,.0f} ms" + ("" if strategy == STRATEGIES[0] else f" {full / own:.1f}x")


def _right(outcomes: Sequence[DemoAnswer], multi_hop: bool) -> str:
    chosen = [answer for answer in outcomes if answer.question.multi_hop == multi_hop]
    return f"{_sum(chosen)} of {len(chosen)}"


def _sum(outcomes: Sequence[DemoAnswer]) -> int:
    return sum(answer.right for answer in outcomes)


def _milliseconds(seconds: Sequence[float]) -> str:
    low, high = (f"{value * 1e3:,.0f}" for value in (min(seconds, default=0), max(seconds, default=0)))
    return f"{low} ms" if low == high else f"{low} to {high} ms"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
