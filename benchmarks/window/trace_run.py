"""A trace under all its arms, step by step, every arm at a step before any at the next; what is on record is passed."""

from contextlib import ExitStack
from dataclasses import asdict, dataclass

from rich.console import Console

from benchmarks.recordfile import RecordFile, digest
from benchmarks.window.arms import ARMS, AUTO, FULL, arm_of, counted_rows
from benchmarks.window.trace import Trace, Where
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.link.policy.fidelity import Sample, first_token
from emblema.link.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a trace under one arm.

    Attributes:
        key: see `recordfile.digest`.
        model: its name; `trace`: `agent` or `novelty`; `seed`, `step` of it.
        warm: whether the window was full, so that something left.
        kind, where: of the question; see `trace.TraceQuestion`.
        new_rows, back_rows: of the window's arm, whichever arm this is; see `arms.StepResult`.
        rows, later, seconds, held, lane, checks, skipped: see `arms.StepResult`.
        answer: the greedy token; `agrees`: whether full prefill gives it too; `right`: whether it is the right one.
        kl: nats from full prefill.
    """

    key: str
    model: str
    trace: str
    seed: int
    step: int
    arm: str
    warm: bool
    kind: str
    where: Where
    new_rows: int
    back_rows: int
    rows: float
    later: float
    seconds: float
    held: int
    lane: str
    answer: int
    agrees: bool
    right: bool
    kl: float
    checks: int
    skipped: int


def run_trace(
    engine: Engine,
    label: str,
    trace: Trace,
    records: RecordFile[StepRecord],
    screen: Console,
    policy: Policy | None = None,
) -> tuple[StepRecord, ...]:
    """Return the records of a trace, a step's arms together.

    The arms answer one after another at each step, so that a busy machine slows all of them alike; what an arm does
    after its answer is waited for before the next begins, and its rows are counted.

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
    with (
        counted_rows(engine.adapter) as counter,
        ExitStack() as stack,
        steps(screen, title, len(trace.steps)) as advance,
    ):
        arms = {name: arm_of(name, judged, plain, trace, counter) for name in names}
        for arm in arms.values():
            stack.callback(arm.engine.close)
        for step in trace.steps:
            if all(keys[step.index, name] in records.held for name in names):
                for arm in arms.values():
                    arm.follow(step)
                advance()
                continue
            results = {name: arm.serve(step) for name, arm in arms.items()}
            right = engine.tokenizer.convert_tokens_to_ids(step.question.answer)
            full, window = results[FULL], results[AUTO]
            samples = {name: Sample.of(full.logits, own.logits) for name, own in results.items()}
            records.add(
                StepRecord(
                    key=keys[step.index, name],
                    model=label,
                    trace=trace.name,
                    seed=trace.seed,
                    step=step.index,
                    arm=name,
                    warm=step.index >= trace.warm,
                    kind=step.question.kind,
                    where=step.question.where,
                    new_rows=window.new_rows,
                    back_rows=window.back_rows,
                    rows=own.rows,
                    later=own.later,
                    seconds=own.seconds,
                    held=own.held,
                    lane=own.lane,
                    answer=first_token(own.logits),
                    agrees=samples[name].agrees,
                    right=first_token(own.logits) == right,
                    kl=samples[name].kl,
                    checks=own.checks,
                    skipped=own.skipped,
                )
                for name, own in results.items()
            )
            advance()
    return tuple(records.held[key] for key in keys.values())
