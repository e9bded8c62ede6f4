"""A trace under all its arms, step by step, every arm at a step before any at the next; what is on record is passed."""

from contextlib import ExitStack
from dataclasses import asdict

from rich.console import Console

from benchmarks.recordfile import RecordFile, digest
from benchmarks.window.arms import ARMS, AUTO, FULL, Served, arm_of
from benchmarks.window.counting import counted
from benchmarks.window.records import StepRecord
from benchmarks.window.trace import Step, Trace
from emblema.engine.engine import Engine
from emblema.eval.metrics import divergence
from emblema.eval.progress import steps
from emblema.link.policy.policy import Policy


def run_trace(
    engine: Engine,
    label: str,
    trace: Trace,
    records: RecordFile[StepRecord],
    screen: Console,
    policy: Policy | None = None,
) -> tuple[StepRecord, ...]:
    """The records of a trace, a step's arms together.

    The arms answer one after another at each step, so that a busy machine slows all of them alike; what an arm does
    behind its answer is waited for before the next begins, and its rows are counted.

    Args:
        engine: the model.
        label: its name.
        records: where figures are kept; a run that was killed goes on from them.
        policy: what `auto` keeps to.
    """
    names, policy = ARMS[trace.name], policy or Policy()
    # A step's figures do not depend on how many follow it.
    shape = {name: value for name, value in asdict(trace.settings).items() if name != "steps"}
    about = (engine.adapter.fingerprint, trace.name, trace.seed, shape, asdict(policy))
    keys = {(step.index, arm): digest(*about, step.index, arm) for step in trace.steps for arm in names}
    if all(key in records.held for key in keys.values()):
        return tuple(records.held[key] for key in keys.values())
    model, processor = engine.adapter.model, engine.processor
    judged = Engine(model, processor, policy=policy)
    plain = Engine(model, processor, policy=Policy.quiet())
    title = f"{label}, {trace.name} trace: {len(trace.steps)} steps"
    with counted(engine.adapter) as counter, ExitStack() as stack, steps(screen, title, len(trace.steps)) as advance:
        arms = {name: arm_of(name, judged, plain, trace, counter) for name in names}
        for arm in arms.values():
            stack.callback(arm.close)
        for step in trace.steps:
            if all(keys[step.index, name] in records.held for name in names):
                for arm in arms.values():
                    arm.follow(step)
            else:
                served = {name: arm.serve(step) for name, arm in arms.items()}
                right = engine.tokenizer.convert_tokens_to_ids(step.asked.answer)
                records.add(tuple(_record(label, trace, step, name, served, keys, right) for name in names))
            advance()
    return tuple(records.held[key] for key in keys.values())


def _record(
    label: str,
    trace: Trace,
    step: Step,
    name: str,
    served: dict[str, Served],
    keys: dict[tuple[int, str], str],
    right: int,
) -> StepRecord:
    own, full, window = served[name], served[FULL], served[AUTO]
    answer = int(own.logits.argmax())
    return StepRecord(
        key=keys[step.index, name],
        model=label,
        trace=trace.name,
        seed=trace.seed,
        step=step.index,
        arm=name,
        warm=step.index >= trace.warm,
        kind=step.asked.kind,
        where=step.asked.where,
        new_rows=window.new_rows,
        back_rows=window.back_rows,
        rows=own.rows,
        later=own.later,
        seconds=own.seconds,
        held=own.held,
        lane=own.lane,
        answer=answer,
        agrees=answer == int(full.logits.argmax()),
        right=answer == right,
        kl=divergence(full.logits, own.logits),
        checks=own.checks,
        skipped=own.skipped,
    )
