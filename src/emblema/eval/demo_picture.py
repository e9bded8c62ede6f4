"""Draw the demo's result: where every row came from, the time to first token, and the answers."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

from emblema.eval.demo import STRATEGIES, DemoAnswer, DemoResult
from emblema.eval.demo_media import DemoMedia

SOURCES = ("computed now", "taken from the store", "taken and patched", "absent: slid out", "computed, then slid out")
COLOURS = ("#d1495b", "#9db4c0", "#1d6f8a", "#efece4", "#eab6bd")
LEAVING = 4
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
    longest = max(answer.plan.rows for answer in result.outcomes)
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
        plan = next(answer.plan for answer in outcomes if answer.strategy == strategy)
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
            axes.text(column, place, f"{mark} {answer.text}", va="center", ha="left", fontsize=9, color=colour)
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
    figure.text(
        0.02,
        up(0.2),
        "Pages prefilled once, asked about in six arrangements",
        fontsize=16,
        fontweight="bold",
        va="top",
        color=INK,
    )
    threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
    rounds = "1 round" if result.rounds == 1 else f"{result.rounds} interleaved rounds"
    figure.text(
        0.02,
        up(0.52),
        f"{len(result.media.pictures)} pictures and a clip, {result.chunks} chunks; prompts of {min(tokens):,} to "
        f"{max(tokens):,} tokens; model {result.model} on {result.device}, {threads}, medians of {rounds}",
        fontsize=9.5,
        va="top",
        color=FAINT,
    )
    for index, (caption, picture) in enumerate(_thumbnails(result.media)):
        left = 0.02 + 0.082 * index
        axes = figure.add_axes((left, up(2.0), 0.072, 1.06 / height))
        axes.imshow(picture)
        axes.set_axis_off()
        axes.set_title(caption, fontsize=8.5, color=FAINT, pad=3)
    for clip, title, inches in ((False, "asked in 1 to 5", 0.98), (True, "asked in 6", 1.6)):
        for line, text in enumerate(_questions(result, clip=clip)):
            if line == 0:
                figure.text(0.53, up(inches), title, fontsize=9, va="baseline", color=FAINT)
            figure.text(0.6, up(inches + 0.18 * line), text, fontsize=9, va="baseline", color=INK)
    sources = [Patch(color=colour, label=name) for colour, name in zip(COLOURS, SOURCES, strict=True)]
    times = [
        Patch(color=FIRST, label="first question"),
        Patch(color=FORMING, label="forming patches, once"),
        Patch(color=LATER, label="next questions, median"),
    ]
    for handles, left in ((sources, 0.015), (times, 0.53)):
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(left, up(2.3)),
            ncols=len(handles),
            frameon=False,
            fontsize=8.5,
            handlelength=1.1,
            columnspacing=1.2,
            borderaxespad=0,
        )


def _questions(result: DemoResult, *, clip: bool) -> list[str]:
    situation = next((situation for situation in result.situations if situation.clip == clip), None)
    asked = () if situation is None else situation.questions(result.media)
    hops = {True: "multi-hop: what the colour under it means", False: "single-hop"}
    return [
        f"{question.text.replace(' ?', '?')}  {question.answer}  ({hops[question.multi_hop]})" for question in asked
    ]


def _thumbnails(media: DemoMedia) -> list[tuple[str, Image.Image]]:
    """Return captions and pictures: the legends, a map, and two scenes of the clip."""
    from emblema.media import load_video

    shown = [(f"legend {index + 1}", Image.open(media.folder / name)) for index, name in enumerate(media.legends)]
    asked = next(question for question in media.questions if question.multi_hop)
    page = next(name for name in asked.pages if name in media.maps)
    shown.append((f"one of {len(media.maps)} maps", Image.open(media.folder / page)))
    frames = load_video(media.folder / media.clip, media.frames_per_second).frames
    return [*shown, ("clip: first scene", frames[0]), ("clip: last scene", frames[-1])]
