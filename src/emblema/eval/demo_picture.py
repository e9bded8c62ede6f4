"""Draw the demo's result: where every row came from, the time to first token, and the answers."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from emblema.eval.demo import STRATEGIES, DemoAnswer, DemoResult
from emblema.eval.demo_media import DemoQuestion
from emblema.eval.demo_report import count_of

SOURCES = ("computed now", "taken from the store", "taken and patched", "absent: slid out", "computed, then slid out")
COLOURS = ("#d1495b", "#9db4c0", "#1d6f8a", "#efece4", "#eab6bd")
LEAVING = 4
WORD = 11
"""Letters of an answer that are written, at most."""
COUNTS = ("one", "two", "three", "four", "five", "six")
HOPS = {"land": "multi-hop: what the colour under it means", "two": "multi-hop: of two pages"}
FIRST, LATER, FORMING = "#2b2b2b", "#c9c3b8", "#e9b44c"
INK, FAINT = "#2b2b2b", "#6b6b6b"
HEAD = 3.1
"""Inches above the first situation."""
EACH = 1.85
"""Inches a situation."""


def draw(result: DemoResult, path: Path) -> Path:
    """Write the picture as PNG and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(result.situations)
    height = HEAD + EACH * count + 0.45
    figure = Figure(figsize=(15, height), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(count, 3, width_ratios=(5.0, 4.0, 2.1), squeeze=False)
    longest = max(answer.replies[0].plan.rows for answer in result.outcomes)
    slowest = max(answer.ttft + answer.formed for answer in result.outcomes) * 1e3
    for index, situation in enumerate(result.situations):
        own = result.of_situation(index)
        _rows(axes[index][0], own, longest, last=index == count - 1)
        _times(axes[index][1], own, slowest, last=index == count - 1)
        _marks(axes[index][2], own)
        axes[index][0].set_title(situation.title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes[0][1].set_title("time to first token", loc="left", fontsize=11, color=FAINT)
    axes[0][2].set_title("answers", loc="left", fontsize=11, color=FAINT)
    figure.subplots_adjust(left=0.07, right=0.99, top=1 - HEAD / height, bottom=0.6 / height, hspace=0.5, wspace=0.05)
    _head(figure, result, height)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _rows(axes: Any, outcomes: Sequence[DemoAnswer], longest: int, *, last: bool) -> None:
    """Draw a strip for each strategy: where the last layer's rows come from, for the first question."""
    for place, strategy in enumerate(STRATEGIES):
        plan = next(answer.replies[0].plan for answer in outcomes if answer.strategy == strategy)
        codes = plan.sources()[-1].tolist()
        for start, stop in plan.leaving:
            codes[start:stop] = [LEAVING if code == 0 else code for code in codes[start:stop]]
        start = 0
        for row in range(1, len(codes) + 1):
            if row == len(codes) or codes[row] != codes[start]:
                axes.barh(place, row - start, left=start, height=0.74, color=COLOURS[codes[start]], linewidth=0)
                start = row
    axes.set_xlim(0, longest)
    _style(axes, last, "row of the prompt (one row a token)")
    axes.set_yticks(range(len(STRATEGIES)), STRATEGIES)


def _times(axes: Any, outcomes: Sequence[DemoAnswer], slowest: float, *, last: bool) -> None:
    """Draw the first question's time, what forming added to it once, and the median of the next questions."""
    gap = 0.012 * slowest
    for place, strategy in enumerate(STRATEGIES):
        first, *later = (answer for answer in outcomes if answer.strategy == strategy)
        own, formed = first.ttft * 1e3, first.formed * 1e3
        following = median(answer.ttft for answer in later) * 1e3
        axes.barh(place - 0.18, own, height=0.36, color=FIRST)
        axes.barh(place - 0.18, formed, left=own, height=0.36, color=FORMING)
        axes.barh(place + 0.18, following, height=0.36, color=LATER)
        note = f"{own:.0f} ms" + (f" + {formed:.0f} once" if formed else "")
        axes.text(own + formed + gap, place - 0.18, note, va="center", fontsize=8.5, color=INK)
        axes.text(following + gap, place + 0.21, f"{following:.0f}", va="center", fontsize=8, color=FAINT)
    axes.set_xlim(0, slowest * 1.3)
    _style(axes, last, "milliseconds")
    axes.set_yticks([])


def _marks(axes: Any, outcomes: Sequence[DemoAnswer]) -> None:
    """Write the answers: right in green, wrong in red."""
    for place, strategy in enumerate(STRATEGIES):
        for column, answer in enumerate(answer for answer in outcomes if answer.strategy == strategy):
            colour, mark = ("#2a7f3f", "\u2713") if answer.right else ("#c0392b", "\u2717")
            axes.text(
                column, place, f"{mark} {answer.reply.text[:WORD]}", va="center", ha="left", fontsize=9, color=colour
            )
    axes.set_xlim(0, 3)
    _style(axes, False, "")
    axes.set_axis_off()


def _style(axes: Any, last: bool, label: str) -> None:
    axes.set_ylim(len(STRATEGIES) - 0.5, -0.5)
    axes.tick_params(colors=INK, labelsize=9, length=0, labelbottom=last)
    axes.xaxis.grid(True, color="#e3e3e3", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    if last:
        axes.set_xlabel(label, color=FAINT, fontsize=9.5)


def _head(figure: Any, result: DemoResult, height: float) -> None:
    """Draw the title, the pages, the questions, and the legend of colours."""
    from matplotlib.patches import Patch

    def up(inches: float) -> float:
        return 1 - inches / height

    tokens = [answer.usage.prompt_tokens for answer in result.of("full")]
    title = f"Pages prefilled once, asked about in {COUNTS[len(result.situations) - 1]} arrangements"
    figure.text(0.02, up(0.2), title, fontsize=16, fontweight="bold", va="top", color=INK)
    rounds = count_of(result.rounds, "round" if result.rounds == 1 else "interleaved round")
    measured = (
        f"{result.media.described}, {result.chunks} chunks; prompts of {min(tokens):,} to {max(tokens):,} tokens; "
        f"model {result.model} on {result.device}, {count_of(result.threads, 'thread')}, medians of {rounds}"
    )
    figure.text(0.02, up(0.52), measured, fontsize=9.5, va="top", color=FAINT)
    for index, (caption, picture) in enumerate(result.media.thumbnails()):
        left = 0.02 + 0.082 * index
        axes = figure.add_axes((left, up(2.0), 0.072, 1.06 / height))
        axes.imshow(picture)
        axes.set_axis_off()
        axes.set_title(caption, fontsize=8.5, color=FAINT, pad=3)
    together: dict[tuple[DemoQuestion, ...], list[int]] = {}
    for number, situation in enumerate(result.situations, 1):
        together.setdefault(result.media.questions(situation), []).append(number)
    for inches, (asked, places) in zip((0.98, 1.6), together.items(), strict=False):
        span = str(places[0]) if len(places) == 1 else f"{places[0]} to {places[-1]}"
        figure.text(0.53, up(inches), f"asked in {span}", fontsize=9, va="baseline", color=FAINT)
        for line, question in enumerate(asked):
            text = f"{question.text.replace(' ?', '?')}  {question.answer}  ({HOPS.get(question.kind, 'single-hop')})"
            figure.text(0.6, up(inches + 0.18 * line), text, fontsize=9, va="baseline", color=INK)
    sources = [Patch(color=colour, label=name) for colour, name in zip(COLOURS, SOURCES, strict=True)]
    later = {FIRST: "first question", FORMING: "forming patches, once", LATER: "next questions, median"}
    times = [Patch(color=colour, label=name) for colour, name in later.items()]
    style: dict[str, Any] = {"loc": "upper left", "frameon": False, "fontsize": 8.5, "handlelength": 1.1}
    for handles, left in ((sources, 0.015), (times, 0.53)):
        place = (left, up(2.3))
        figure.legend(
            handles=handles, bbox_to_anchor=place, ncols=len(handles), columnspacing=1.2, borderaxespad=0, **style
        )
