"""A trace under all its arms, every arm at a step before any at the next, and what the steps come to."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from benchmarks.table import Bar
from benchmarks.window.arms import ARMS, AUTO, FULL, PREFIX, arm_of, counted_rows
from benchmarks.window.experiment import Measured, Row
from benchmarks.window.trace import Trace, Where
from emblema.engine.engine import Engine
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import compare, first_token

AGREEMENT, ROWS, NOVEL = 0.99, 1.25, 1.05
"""Bounds: share of equal answers, rows over new rows, and rows over full prefill's where all is new."""
WHERES: dict[Where, str] = {"one": "one picture", "binding": "two pictures", "gone": "legend has left"}


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a trace under one arm.

    Attributes:
        warm: whether the window was full, so that something left.
        where: see `trace.TraceQuestion`.
        new_rows, back_rows: of the window's arm, whichever arm this is; see `arms.StepResult`.
        rows, seconds, held: see `arms.StepResult`.
        agrees: whether full prefill gives the same answer; `right`: whether it is the right one.
    """

    step: int
    arm: str
    warm: bool
    where: Where
    new_rows: int
    back_rows: int
    rows: float
    seconds: float
    held: int
    agrees: bool
    right: bool


def run_trace(
    engine: Engine,
    trace: Trace,
    advance: Callable[[], object] = lambda: None,
    policy: Policy | None = None,
) -> tuple[StepRecord, ...]:
    """Return the records of a trace, a step's arms together, so that a busy machine slows all of them alike.

    What an arm does after its answer is waited for before the next begins, and its rows are counted.

    Args:
        advance: called after each step.
        policy: what `auto` keeps to.
    """
    model, processor = engine.adapter.model, engine.processor
    judged = Engine(model, processor, policy=policy or Policy())
    plain = Engine(model, processor, policy=Policy.quiet())
    records = []
    with counted_rows(engine.adapter) as counter, ExitStack() as stack:
        arms = {name: arm_of(name, judged, plain, trace, counter) for name in ARMS[trace.name]}
        for arm in arms.values():
            stack.callback(arm.engine.close)
        for step in trace.steps:
            results = {name: arm.serve(step) for name, arm in arms.items()}
            right = engine.tokenizer.convert_tokens_to_ids(step.question.answer)
            full, window = results[FULL], results[AUTO]
            records += [
                StepRecord(
                    step=step.index,
                    arm=name,
                    warm=step.index >= trace.warm,
                    where=step.question.where,
                    new_rows=window.new_rows,
                    back_rows=window.back_rows,
                    rows=own.rows,
                    seconds=own.seconds,
                    held=own.held,
                    agrees=compare(full.logits, own.logits).agrees,
                    right=first_token(own.logits) == right,
                )
                for name, own in results.items()
            ]
            advance()
    return tuple(records)


def trace_measured(model: str, trace: Trace, records: Sequence[StepRecord]) -> Measured:
    """Return what the records of a trace come to, with its bars."""
    agent = trace.name == "agent"
    label = f"{trace.name}, {trace.settings.window}"
    kept = [record for record in records if record.warm or not agent]
    by_arm = {name: [record for record in kept if record.arm == name] for name in ARMS[trace.name]}
    if not kept:
        return Measured({}, ())
    needed = sum(record.new_rows if agent else record.rows for record in by_arm[FULL])
    over, about = {name: sum(record.rows for record in own) / needed for name, own in by_arm.items()}, (model, label)
    rows: dict[str, list[Row]] = {"trace": [_costs(*about, name, own, over[name]) for name, own in by_arm.items()]}
    steps = len(by_arm[AUTO])
    if not agent:
        bar = Bar(f"rows of auto over full prefill's, {label}", over[AUTO], NOVEL, False, steps)
        return Measured(rows, (bar,))
    rows["answered"] = [
        _answered(*about, words, arm, own)
        for where, words in WHERES.items()
        for arm, records in by_arm.items()
        if arm != PREFIX and (own := [record for record in records if record.where == where])
    ]
    inside = [record.agrees for record in by_arm[AUTO] if record.where != "gone"]
    agreed = sum(inside) / len(inside) if inside else None
    bars = (
        Bar(f"agreement of auto with full prefill, {label}", agreed, AGREEMENT, True, len(inside)),
        Bar(f"rows of auto over new rows, {label}", over[AUTO], ROWS, False, steps),
    )
    return Measured(rows, bars)


def _costs(model: str, trace: str, arm: str, records: Sequence[StepRecord], over: float) -> Row:
    """Return an arm's rows over those needed, median milliseconds to the logits, and most megabytes kept."""
    ttft = float(np.median([record.seconds * 1e3 for record in records]))
    held = max(record.held for record in records) / 1e6
    return {"model": model, "trace": trace, "arm": arm, "over": over, "ttft": ttft, "held": held}


def _answered(model: str, trace: str, where: str, arm: str, records: Sequence[StepRecord]) -> Row:
    """Return how many of an arm's answers are full prefill's, and how many are right."""
    count = len(records)
    shares = {
        "agreement": sum(record.agrees for record in records) / count,
        "accuracy": sum(record.right for record in records) / count,
    }
    return {"model": model, "trace": trace, "where": where, "arm": arm, "steps": count, **shares}
