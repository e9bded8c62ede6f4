"""The figures of a trace as tables: what each arm cost and answered, where `auto`'s rows went, and the bars."""

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.table import Bar, Cell, Table
from benchmarks.window.arms import AUTO, BROUGHT, FULL
from benchmarks.window.records import StepRecord
from emblema.eval.metrics import Interval, bootstrap

AGREEMENT, ROWS, NOVEL = 0.99, 1.25, 1.05
BLOCK = 8
"""Steps that are drawn together for intervals: neighbours share most of their window."""
WHERES = {"one": "one picture", "binding": "pictures bound inside the window", "gone": "legend has left"}


def trace_tables(records: Sequence[StepRecord]) -> tuple[Table, ...]:
    """The tables of one trace on one model; none without records."""
    if not records:
        return ()
    return (
        (_novelty(records),)
        if records[0].trace == "novelty"
        else (_arms(records), _questions(records), _spent(records))
    )


def arms_of(records: Sequence[StepRecord]) -> tuple[str, ...]:
    """The arms, in the order that they ran in."""
    return tuple(dict.fromkeys(record.arm for record in records))


def of(records: Sequence[StepRecord], arm: str, warm: bool = True, gone: bool = True) -> list[StepRecord]:
    """An arm's records in order, of the full window alone, without questions whose legend has left."""
    kept = [one for one in records if one.arm == arm and (one.warm or not warm) and (gone or one.where != "gone")]
    return sorted(kept, key=lambda one: one.step)


def mean(records: Sequence[StepRecord], value: Callable[[StepRecord], float]) -> Interval | None:
    """A mean with its interval, blocks of steps drawn together; None of nothing."""
    if not records:
        return None
    return bootstrap([value(one) for one in records], [one.step // BLOCK for one in records])


def ratio(
    records: Sequence[StepRecord], above: Callable[[StepRecord], float], below: Callable[[StepRecord], float]
) -> float:
    """Sum over sum; NaN of nothing."""
    bottom = sum(below(one) for one in records)
    return sum(above(one) for one in records) / bottom if bottom else float("nan")


def spent(one: StepRecord) -> float:
    """All rows that ran for a step, before its answer and behind it."""
    return one.rows + one.later


def _arms(records: Sequence[StepRecord]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for arm in arms_of(records):
        warm, inside = of(records, arm), of(records, arm, gone=False)
        seconds = np.array([one.seconds for one in warm]) * 1e3
        rows.append(
            (
                arm,
                _per_step(warm, spent),
                ratio(warm, spent, lambda one: one.new_rows),
                _quantile(seconds, 0.5),
                _quantile(seconds, 0.95),
                mean(inside, lambda one: one.agrees),
                mean(inside, lambda one: one.right),
                _per_step(inside, lambda one: one.kl),
                max((one.held for one in warm), default=0) / 1e6,
            )
        )
    auto, inside = of(records, AUTO), of(records, AUTO, gone=False)
    agreed = sum(one.agrees for one in inside) / len(inside) if inside else None
    bars = (
        Bar("auto agrees with full prefill", agreed, AGREEMENT, True, len(inside)),
        Bar(
            "auto's rows over new rows, all counted",
            ratio(auto, spent, lambda one: one.new_rows),
            ROWS,
            False,
            len(auto),
        ),
    )
    steps, cold = len(auto), len(of(records, AUTO, warm=False)) - len(auto)
    return Table(
        "trace-agent",
        "An agent's trace: sliding screenshots with look-backs",
        f"{steps} steps of a full window, behind {cold} that filled it. Rows: every row that the decoder ran, pieces "
        "alone, forming and the canary included. Over new: over the rows of the new picture, the step's text and the "
        "question; a picture looked back at is not new. TTFT: ms from the new picture to the answer's logits, its "
        "encoding included. Agreement and accuracy: of the questions that the window can answer; intervals draw "
        f"{BLOCK} steps together. MB: most that was kept from one step to the next: rows, patches, and embeddings of "
        "what may be looked back at; `prefix` keeps its last prompt, `blind` every piece.",
        ("arm", "rows a step", "over new", "TTFT p50", "TTFT p95", "agreement", "accuracy", "KL", "MB held"),
        tuple(rows),
        bars=bars,
    )  # fmt: skip


def _questions(records: Sequence[StepRecord]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for where, words in WHERES.items():
        for arm in arms_of(records):
            asked = [one for one in of(records, arm) if one.where == where]
            agreed, right = mean(asked, lambda one: one.agrees), mean(asked, lambda one: one.right)
            rows.append((words, arm, len(asked), agreed, right, _per_step(asked, lambda one: one.kl)))
    return Table(
        "trace-questions",
        "The trace's answers by what the question needs",
        "Steps of a full window. Where the legend of a map has left, a prefill of the window cannot know the land; "
        "what the map absorbed while the legend stood there can. Such questions count nowhere else.",
        ("question", "arm", "steps", "agreement", "accuracy", "KL"),
        tuple(rows),
    )


def _spent(records: Sequence[StepRecord]) -> Table:
    auto = of(records, AUTO)
    new = sum(one.new_rows for one in auto)
    parts: dict[str, Callable[[StepRecord], float]] = {
        "new picture, text and question": lambda one: one.new_rows,
        "pictures looked back at": lambda one: one.back_rows,
        "others before the answer": lambda one: one.rows - one.new_rows - one.back_rows,
        "behind the answer": lambda one: one.later,
        "all": spent,
    }
    rows = tuple(
        (name, _per_step(auto, value), sum(value(one) for one in auto) / new if new else None)
        for name, value in parts.items()
    )
    looked = sum(one.back_rows > 0 for one in auto)
    return Table(
        "trace-rows",
        "Where auto's rows went",
        f"Rows a step over {len(auto)} steps of a full window, {looked} of them with a look-back. Others: pieces "
        "alone, forming, survivors computed again. Behind the answer: the canary, "
        f"which compared {_last(auto, lambda one: one.checks)} answers and had to skip "
        f"{_last(auto, lambda one: one.skipped)}.",
        ("rows", "a step", "over new"),
        rows,
    )


def _novelty(records: Sequence[StepRecord]) -> Table:
    full = sum(spent(one) for one in of(records, FULL, warm=False))
    rows: list[tuple[Cell, ...]] = []
    for arm in arms_of(records):
        own = of(records, arm, warm=False)
        seconds = np.array([one.seconds for one in own]) * 1e3
        total = sum(spent(one) for one in own) / full
        agreed = mean(own, lambda one: one.agrees)
        largest = max(one.held for one in own) / 1e6
        rows.append((arm, _per_step(own, spent), total, _quantile(seconds, 0.5), agreed, largest))
    bars = tuple(
        Bar(f"{arm}'s rows over full prefill's, novelty", sum(map(spent, own)) / full, NOVEL, False, len(own))
        for arm in (AUTO, BROUGHT)
        if (own := of(records, arm, warm=False))
    )
    return Table(
        "trace-novelty",
        "Sustained novelty: every step replaces the whole window",
        f"{len(own)} steps, each with pictures that nobody saw before. Rows as in the agent's trace. `{BROUGHT}`: the "
        "pictures themselves are put into a prompt under `auto`, without a window.",
        ("arm", "rows a step", "over full", "TTFT p50", "agreement", "MB held"),
        tuple(rows),
        bars=bars,
    )


def _per_step(records: Sequence[StepRecord], value: Callable[[StepRecord], float]) -> float | None:
    return sum(value(one) for one in records) / len(records) if records else None


def _last(records: Sequence[StepRecord], value: Callable[[StepRecord], int]) -> int:
    return value(records[-1]) if records else 0


def _quantile(values: np.ndarray, share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None
