"""One model through every measurement: half of the items teach what is pooled or fitted, the other half is held out."""

from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console

from benchmarks.deficit import (
    depth,
    insights,
    isolation,
    link,
    negatives,
    rank,
    selectors,
    shared,
    slots,
    tokens,
    ulp,
)
from benchmarks.deficit.answerlog import BLIND, FULL, MULTI, AnswerLog
from benchmarks.deficit.gather import ItemCases, forget, gather, grey, items_of
from benchmarks.deficit.result import DeficitOptions, DeficitResult, Examples, facts
from benchmarks.deficit.subject import Case, CaseAnswer, Subject
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.eval.metrics import divergence
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.policy.policy import Policy

TAUGHT = 16
"""Items of the teaching half that are kept in memory, at most."""


def measure(
    engine: Engine, name: str, wanted: DeficitOptions, *, screen: Console | None = None, brief: bool = False
) -> DeficitResult:
    """Measure a model.

    Args:
        name: what the report calls it.
        brief: only isolation and rank, for a model that is set beside others.

    Raises:
        EmblemaError: no item of the task asks a multi-hop question about a chunk behind another one.
    """
    drawn = items_of(wanted.task, wanted.seed, wanted.items)
    drawn = [*drawn[0::2], *drawn[1::2]]
    title = f"{name}: {wanted.items} items of {wanted.task}, seed {wanted.seed}"
    run = _DeficitRun(engine, name, wanted, brief)
    with steps(screen or Console(quiet=True), title, wanted.items) as advance:
        # The teaching half first: what is pooled or fitted has seen no item that it is tried on.
        for place, item in enumerate(drawn):
            run.take(gather(engine, item, wanted.questions, 1), teaching=place < (len(drawn) + 1) // 2)
            advance()
    forget(engine, run.kept)
    if not any(one.hop == MULTI for one in run.result.log.noted):
        raise EmblemaError(
            f"task {wanted.task}: no item asks a multi-hop question about a chunk behind another; choose another task"
        )
    return run.result


def measure_untrained(
    engine: Engine, name: str, wanted: DeficitOptions, *, screen: Console | None = None
) -> DeficitResult:
    """The same architecture with the weights that it has before training: a model that does not bind."""
    before = engine.adapter.model
    torch.manual_seed(0)
    model = type(before)(before.config).eval().to(device=engine.adapter.device, dtype=engine.adapter.dtype)
    other = Engine(model, engine.template.preparer.processor, policy=Policy.quiet())
    result = measure(other, f"{name}-untrained", wanted, screen=screen, brief=True)
    result.binds = False
    return result


class _DeficitRun:
    """One model under way: what has been noted, and what the teaching half has left."""

    def __init__(self, engine: Engine, name: str, wanted: DeficitOptions, brief: bool) -> None:
        self.engine, self.brief = engine, brief
        self.result = DeficitResult(facts(engine, name), wanted, AnswerLog(), Examples(), [])
        self.filler = grey(engine)
        self.taught: list[Subject] = []
        self.kept: list[Chunk] = []
        self.lessons: Lessons | None = None
        self._carried = None if brief else carried_pool(engine, wanted, min(TAUGHT, wanted.items // 2))

    def take(self, found: ItemCases | None, *, teaching: bool) -> None:
        """Measure one item, and keep it where it teaches."""
        if found is None:
            self.result.left_out += 1
            return
        if not teaching and not self.brief and self.lessons is None and self.taught:
            fitted = negatives.seed(self.taught)
            self.lessons = Lessons(tuple(self.taught), shared.pool(self.taught), self._carried, fitted)
        note_subject(self.result, found, self.brief)
        lessons = None if teaching else self.lessons
        guesses: dict[int, Guesses] = {}
        controls: dict[int, isolation.Controls] = {}
        for case in found.cases:
            if id(case.subject) not in controls:
                controls[id(case.subject)] = isolation.controls(case.subject, self.filler)
            answers = basics(case, controls[id(case.subject)])
            if case.hop == MULTI and not self.brief:
                answers |= structure(case)
                if lessons is not None:
                    if id(case.subject) not in guesses:
                        guesses[id(case.subject)] = guess(self.result.log, case.subject, lessons)
                    answers |= held_out(case, lessons, guesses[id(case.subject)])
            note_case(self.result.log, case, answers)
        if teaching and len(self.taught) < TAUGHT and not self.brief:
            self.taught.append(found.subject)
            self.kept += found.chunks
        else:
            forget(self.engine, found.chunks)


def basics(case: Case, controls: isolation.Controls) -> dict[str, CaseAnswer]:
    """Re-prefill, blind reuse, the isolation and the ranks."""
    found = {FULL: case.conditioned(), BLIND: case.blind(), "raw": case.blind(relocated=False)}
    return found | isolation.of_case(case, controls) | rank.of_case(case)


def structure(case: Case) -> dict[str, CaseAnswer]:
    """What needs no other items."""
    found = depth.of_case(case) | tokens.of_case(case) | slots.of_case(case) | selectors.of_case(case)
    return found | {"sink": negatives.sink(case)}


@dataclass(frozen=True, slots=True)
class Lessons:
    """What the teaching half leaves: its subjects, pooled and carried directions, the fit from shallow layers."""

    subjects: tuple[Subject, ...]
    pooled: shared.Pool
    carried: shared.Pool | None
    fitted: negatives.Linear


Guesses = dict[str, list[LayerRows]]


def guess(log: AnswerLog, subject: Subject, lessons: Lessons) -> Guesses:
    """Deficits guessed without the subject's own conditioned forward, and how much of the true ones they explain."""
    guesses = {
        "linear operator": negatives.operated(subject, negatives.operator(subject, lessons.subjects)),
        "shallow seed": negatives.seeded(subject, lessons.fitted),
    }
    for name, deltas in guesses.items():
        first = negatives.shallow(subject) if name == "shallow seed" else 0
        log.value(subject.episode, {f"explained/{name}": negatives.explained(subject, deltas, first)})
    return guesses


def held_out(case: Case, lessons: Lessons, guesses: Guesses) -> dict[str, CaseAnswer]:
    """What the teaching half pooled or fitted, on a held-out item."""
    subject = case.subject
    found = shared.of_case(case, lessons.pooled, lessons.carried)
    found |= {name: case.ask(deltas) for name, deltas in guesses.items()}
    cut = negatives.shallow(subject)
    found["true shallow only"] = case.ask([one if at < cut else None for at, one in enumerate(subject.deficits)])
    return found


def note_subject(result: DeficitResult, found: ItemCases, brief: bool) -> None:
    """Figures of an item's chunk."""
    subject, log = found.subject, result.log
    figures = rank.of_subject(subject)
    if not brief:
        case = next((one for one in found.cases if one.subject is subject), found.cases[-1])
        seen, attention, moved = insights.of_case(case)
        together = selectors.redundancy(subject)
        result.pairs.append((together.pop("size"), together))
        for part in (depth.of_subject(subject), depth.injected(case), tokens.of_subject(subject),
                     link.of_subject(subject), selectors.of_subject(subject), ulp.of_subject(subject),
                     ulp.relocation(subject), seen, together):  # fmt: skip
            figures |= part
        if result.examples.planes is None:
            sizes = [torch.cat((rank.matrix(one.keys), rank.matrix(one.values)), dim=1) for one in subject.deficits]
            norms = [torch.cat((rank.matrix(one.keys), rank.matrix(one.values)), dim=1) for one in subject.conditioned]
            result.examples.planes = np.stack(
                [
                    (one.abs() / own.square().mean().sqrt()).T.cpu().numpy()
                    for one, own in zip(sizes, norms, strict=True)
                ]
            )
            result.examples.attention = attention
        result.examples.moved.append(moved)
    log.value(subject.episode, figures)


def note_case(log: AnswerLog, case: Case, found: dict[str, CaseAnswer]) -> None:
    """A question's answers."""
    logits = {name: one.logits for name, one in found.items()}
    log.answers(case.subject.episode, case.setting, case.hop, case.expected, logits)
    label = f"{case.setting}, {case.hop}"
    log.value(
        case.subject.episode,
        {f"control kl/{label}": divergence(logits["blocked"], logits[BLIND])},
    )


def carried_pool(engine: Engine, wanted: DeficitOptions, items: int) -> shared.Pool | None:
    """Directions pooled over another task's items; None where it has no chunk behind another."""
    subjects: list[Subject] = []
    chunks: list[Chunk] = []
    for item in items_of(wanted.carried, wanted.seed, items):
        found = gather(engine, item, 1, 0)
        if found is not None:
            subjects.append(found.subject)
            chunks += found.chunks
    pooled = shared.pool(subjects) if subjects else None
    forget(engine, chunks)
    return pooled
