"""The figures of a trace: what each arm cost and answered, where `auto`'s rows went, the bars, and the pictures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intervals import Interval, bootstrap
from benchmarks.plots import FAINT, INK, draw_legend, make_panels, save_figure, style_panel
from benchmarks.table import Bar, Cell, Table
from benchmarks.window.arms import AUTO, BLIND, FULL, PREFIX, PROMPTS
from benchmarks.window.trace_run import StepRecord

AGREEMENT, ROWS, NOVEL = 0.99, 1.25, 1.05
"""Bounds: share of equal answers, rows over new rows, and rows over full prefill's where all is new."""
BLOCK = 8
"""Steps that are drawn together for intervals: neighbours share most of their window."""
WHERES = {"one": "one picture", "binding": "pictures bound inside the window", "gone": "legend has left"}
LABELS = ("one picture", "bound inside\nthe window", "legend\nhas left")
COLOURS = {AUTO: "#1d6f8a", FULL: "#444444", PREFIX: "#e9b44c", BLIND: "#d1495b", PROMPTS: "#9db4c0"}
SMOOTH = 9
"""Steps of the running median of times."""

Figure = Callable[[StepRecord], float]


def trace_tables(records: Sequence[StepRecord]) -> tuple[Table, ...]:
    """Return the tables of one trace on one model; none without records."""
    if not records:
        return ()
    if records[0].trace == "novelty":
        return (_novelty(records),)
    return (_arms(records), _questions(records), _rows(records))


def arms_of(records: Sequence[StepRecord]) -> tuple[str, ...]:
    """Return the arms, in the order that they ran in."""
    return tuple(dict.fromkeys(record.arm for record in records))


def of_arm(records: Sequence[StepRecord], arm: str, warm: bool = True, gone: bool = True) -> list[StepRecord]:
    """Return an arm's records in order, by default of the full window alone; without `gone`, no lost legends'."""
    kept = [
        record
        for record in records
        if record.arm == arm and (record.warm or not warm) and (gone or record.where != "gone")
    ]
    return sorted(kept, key=lambda record: record.step)


def mean(records: Sequence[StepRecord], figure: Figure) -> Interval | None:
    """Return a mean with its interval, blocks of steps drawn together; None of nothing."""
    if not records:
        return None
    return bootstrap([figure(record) for record in records], [record.step // BLOCK for record in records])


def ratio(records: Sequence[StepRecord], above: Figure, below: Figure) -> float:
    """Return sum over sum; NaN of nothing."""
    bottom = sum(map(below, records))
    return sum(map(above, records)) / bottom if bottom else float("nan")


def all_rows(record: StepRecord) -> float:
    """Return all rows that ran for a step, before its answer and after it."""
    return record.rows + record.later


def new_rows(record: StepRecord) -> float:
    """Return the rows that no arm can do without."""
    return record.new_rows


def agrees(record: StepRecord) -> float:
    """Return 1 where the answer is full prefill's."""
    return record.agrees


def right(record: StepRecord) -> float:
    """Return 1 where the answer is the right one."""
    return record.right


def _arms(records: Sequence[StepRecord]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for arm in arms_of(records):
        warm, inside = of_arm(records, arm), of_arm(records, arm, gone=False)
        costs = (_per_step(warm, all_rows), ratio(warm, all_rows, new_rows), _wait(warm, 0.5), _wait(warm, 0.95))
        quality = (mean(inside, agrees), mean(inside, right), _per_step(inside, lambda record: record.kl))
        rows.append((arm, *costs, *quality, max((record.held for record in warm), default=0) / 1e6))
    auto, inside = of_arm(records, AUTO), of_arm(records, AUTO, gone=False)
    over = ratio(auto, all_rows, new_rows)
    bars = (
        Bar("auto agrees with full prefill", _per_step(inside, agrees), AGREEMENT, True, len(inside)),
        Bar("auto's rows over new rows, all counted", over, ROWS, False, len(auto)),
    )
    steps, cold = len(auto), len(of_arm(records, AUTO, warm=False)) - len(auto)
    return Table(
        "trace-agent",
        "An agent's trace: sliding screenshots with look-backs",
        f"{steps} steps of a full window, after {cold} that filled it. Rows: every row that the decoder ran, pieces "
        "alone, forming and the canary included. Over new: over the rows of the new picture, the step's text and the "
        "question; a picture looked back at is not new. TTFT: ms from the new picture to the answer's logits, its "
        "encoding included. Agreement and accuracy: of the questions that the window can answer; intervals draw "
        f"{BLOCK} steps together. MB: most that was kept from one step to the next: rows, patches, and embeddings of "
        "what may be looked back at; `prefix` keeps its last prompt, `blind` every piece.",
        ("arm", "rows a step", "over new", "TTFT p50", "TTFT p95", "agreement", "accuracy", "KL", "MB held"),
        tuple(rows),
        bars=bars,
    )


def _questions(records: Sequence[StepRecord]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for where, words in WHERES.items():
        for arm in arms_of(records):
            asked = [record for record in of_arm(records, arm) if record.where == where]
            kl = _per_step(asked, lambda record: record.kl)
            rows.append((words, arm, len(asked), mean(asked, agrees), mean(asked, right), kl))
    return Table(
        "trace-questions",
        "The trace's answers by what the question needs",
        "Steps of a full window. Where the legend of a map has left, a prefill of the window cannot know the land; "
        "what the map absorbed while the legend was there can. Such questions count nowhere else.",
        ("question", "arm", "steps", "agreement", "accuracy", "KL"),
        tuple(rows),
    )


def _rows(records: Sequence[StepRecord]) -> Table:
    auto = of_arm(records, AUTO)
    new = sum(map(new_rows, auto))
    parts: dict[str, Figure] = {
        "new picture, text and question": new_rows,
        "pictures looked back at": lambda record: record.back_rows,
        "others before the answer": lambda record: record.rows - record.new_rows - record.back_rows,
        "after the answer": lambda record: record.later,
        "all": all_rows,
    }
    rows = tuple(
        (name, _per_step(auto, figure), sum(map(figure, auto)) / new if new else None) for name, figure in parts.items()
    )
    looked = sum(record.back_rows > 0 for record in auto)
    checks, skipped = (auto[-1].checks, auto[-1].skipped) if auto else (0, 0)
    return Table(
        "trace-rows",
        "Where auto's rows went",
        f"Rows a step over {len(auto)} steps of a full window, {looked} of them with a look-back. Others: pieces "
        f"alone, forming, survivors computed again. After the answer: the canary, which compared {checks} answers and "
        f"had to skip {skipped}.",
        ("rows", "a step", "over new"),
        rows,
    )


def _novelty(records: Sequence[StepRecord]) -> Table:
    full = sum(map(all_rows, of_arm(records, FULL, warm=False)))
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    for arm in arms_of(records):
        own = of_arm(records, arm, warm=False)
        over = sum(map(all_rows, own)) / full
        largest = max(record.held for record in own) / 1e6
        rows.append((arm, _per_step(own, all_rows), over, _wait(own, 0.5), mean(own, agrees), largest))
        if arm in (AUTO, PROMPTS):
            bars.append(Bar(f"{arm}'s rows over full prefill's, novelty", over, NOVEL, False, len(own)))
    return Table(
        "trace-novelty",
        "Sustained novelty: every step replaces the whole window",
        f"{len(own)} steps, each with pictures that were never seen before. Rows as in the agent's trace. `{PROMPTS}`: "
        "the pictures themselves are put into a prompt under `auto`, without a window.",
        ("arm", "rows a step", "over full", "TTFT p50", "agreement", "MB held"),
        tuple(rows),
        bars=tuple(bars),
    )


def _per_step(records: Sequence[StepRecord], figure: Figure) -> float | None:
    return sum(map(figure, records)) / len(records) if records else None


def _milliseconds(records: Sequence[StepRecord]) -> np.ndarray:
    return np.array([record.seconds for record in records]) * 1e3


def _wait(records: Sequence[StepRecord], share: float) -> float | None:
    return float(np.quantile(_milliseconds(records), share)) if records else None


def draw_trace(records: Sequence[StepRecord], title: str, folder: Path, name: str) -> list[Path]:
    """Draw panels over the steps, and agreement for an agent's trace; return the pictures' paths."""
    paths = [_draw_steps(records, title, folder, f"{name}-steps")]
    if records[0].trace == "agent" and any(record.warm for record in records):
        paths.append(_draw_agreement(records, title, folder, f"{name}-agreement"))
    return paths


def _draw_steps(records: Sequence[StepRecord], title: str, folder: Path, name: str) -> Path:
    figure, panels = make_panels(3, title)
    rows, times, held = panels
    agent = records[0].trace == "agent"
    for arm in arms_of(records):
        own, colour = of_arm(records, arm, warm=False), COLOURS[arm]
        steps, waits = [record.step for record in own], _milliseconds(own)
        rows.plot(steps, list(map(all_rows, own)), color=colour, linewidth=1.5, label=arm)
        times.plot(steps, waits, color=colour, linewidth=0.5, alpha=0.35)
        times.plot(steps, _running_median(waits), color=colour, linewidth=1.6, label=arm)
        held.plot(steps, [record.held / 1e6 for record in own], color=colour, linewidth=1.5, label=arm)
    if agent:
        auto = of_arm(records, AUTO, warm=False)
        steps, needed = [record.step for record in auto], list(map(new_rows, auto))
        rows.plot(steps, needed, color=INK, linewidth=1.2, linestyle=":", label="new rows")
    first = next((record.step for record in records if record.warm), None)
    for axes in panels:
        if first and agent:
            axes.axvline(first, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)))
            axes.annotate("window full", (first, 0.99), xycoords=("data", "axes fraction"), xytext=(3, 0),
                          textcoords="offset points", fontsize=7, color=FAINT, va="top")  # fmt: skip
        axes.xaxis.get_major_locator().set_params(integer=True)
        if agent and axes is not held:
            _logarithmic(axes)
        else:
            axes.set_ylim(bottom=0)
    scale = " (logarithmic)" if agent else ""
    style_panel(rows, "Rows computed", "step", f"rows{scale}")
    style_panel(times, f"Time to first token; thick: median of {SMOOTH} steps", "step", f"ms{scale}")
    style_panel(held, "Kept between steps", "step", "MB")
    handles, labels = rows.get_legend_handles_labels()
    draw_legend(held, handles=handles, labels=labels, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save_figure(figure, folder, name)


def _draw_agreement(records: Sequence[StepRecord], title: str, folder: Path, name: str) -> Path:
    figure, (agreed, correct) = make_panels(2, title, width=5.2, height=3.4)
    arms = arms_of(records)
    asked = {where: sum(record.where == where for record in of_arm(records, AUTO)) for where in WHERES}
    for axes, value, words in ((agreed, agrees, "Agreement with full prefill"), (correct, right, "Accuracy")):
        for place, arm in enumerate(arms):
            for spot, where in enumerate(WHERES):
                found = mean([record for record in of_arm(records, arm) if record.where == where], value)
                if found is None:
                    continue
                across = spot + (place - (len(arms) - 1) / 2) * 0.2
                error = [[max(0.0, found.value - found.low)], [max(0.0, found.high - found.value)]]
                axes.bar(across, found.value, 0.18, color=COLOURS[arm], label=arm if spot == 0 else None)
                axes.errorbar(across, found.value, error, fmt="none", ecolor=INK, elinewidth=1)
                axes.text(across, 0.02, f"{found.value:.2f}", rotation=90, ha="center", va="bottom", fontsize=7,
                          color="white")  # fmt: skip
        labels = [f"{label}\n{count} steps" for label, count in zip(LABELS, asked.values(), strict=True)]
        axes.set_xticks(range(len(WHERES)), labels)
        axes.set_ylim(0, 1.02)
        style_panel(axes, words, "", "")
    agreed.axhline(AGREEMENT, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)))
    draw_legend(correct, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save_figure(figure, folder, name)


def _running_median(values: np.ndarray) -> np.ndarray:
    half = SMOOTH // 2
    return np.array([np.median(values[max(0, place - half) : place + half + 1]) for place in range(len(values))])


def _logarithmic(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
