"""One model through every measurement: half of the items teach what is pooled or fitted, the other half is held out."""

from dataclasses import dataclass, field

import numpy as np
import torch
from rich.console import Console

from benchmarks.deficit.answerlog import BLIND, FULL, MULTI, AnswerLog
from benchmarks.deficit.cases import Controls, ItemCases, controls_of, gather, grey, isolation_answers, items_of
from benchmarks.deficit.depth import depth_answers, depth_figures, injected
from benchmarks.deficit.negatives import (
    Linear,
    both,
    explained,
    fit_operator,
    fit_seed,
    operated,
    seeded,
    shallow_layers,
    sink_answer,
)
from benchmarks.deficit.rank import Pool, basis_answers, pool_of, rank_answers, rank_figures, slot_answers
from benchmarks.deficit.rows import attention_figures, relocation_figures, rounding_figures
from benchmarks.deficit.selectors import recall_figures, redundancy, selector_answers
from benchmarks.deficit.subject import Case, CaseAnswer, Subject
from benchmarks.deficit.tokens import link_figures, token_answers, token_figures
from benchmarks.tasks.prompts import Piece, forget
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.eval.progress import steps
from emblema.kv.layout import LayerRows
from emblema.link.policy.fidelity import divergence
from emblema.link.policy.policy import Policy

LEAST = 4
"""Items from which half can teach and half be held out."""
TAUGHT = 16
"""Items of the teaching half that are kept in memory, at most."""
Guesses = dict[str, list[LayerRows]]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What kind of model was measured; `widths` are numbers kept per token and layer, keys and values apart."""

    name: str
    family: str
    kind: str
    layers: int
    widths: tuple[int, int]
    heads: int
    experts: int
    rotary: str


@dataclass
class Examples:
    """Arrays for figures, of the first held-out item: planes [layers, features, tokens], and curves by token."""

    planes: np.ndarray | None = None
    attention: np.ndarray | None = None
    moved: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeficitOptions:
    """What to measure on: items of a task, and the task whose directions are carried to it.

    Attributes:
        questions: multi-hop questions an item; with one single-hop question.

    Raises:
        EmblemaError: too few items or questions, or a task that there is not.
    """

    task: str = "maps"
    carried: str = "clip"
    seed: int = 0
    items: int = 40
    questions: int = 2

    def __post_init__(self) -> None:
        if self.items < LEAST:
            raise EmblemaError(f"--items {self.items}: give {LEAST} or more; half of them teach, half are held out")
        if self.questions < 1:
            raise EmblemaError(f"{self.questions} questions an item: give one or more")
        for task in (self.task, self.carried):
            items_of(task, self.seed, 1)


@dataclass
class DeficitResult:
    """One model's log, with what it was measured on.

    Attributes:
        pairs: for each chunk, its deficit's relative size and what `redundancy` sets beside it.
        left_out: items that had no chunk after another.
        binds: False for a model that was taken along because it should not.
    """

    model: ModelFacts
    wanted: DeficitOptions
    log: AnswerLog
    examples: Examples
    pairs: list[tuple[float, dict[str, float]]]
    left_out: int = 0
    binds: bool = True


def facts(engine: Engine, name: str) -> ModelFacts:
    """Return what an engine holds."""
    adapter = engine.adapter
    layout = adapter.layouts[-1]
    band, config = layout.rotary, adapter.config
    experts = next(
        (int(getattr(config, key)) for key in ("n_routed_experts", "num_experts", "num_local_experts")
         if getattr(config, key, None)), 0)  # fmt: skip
    axes = 1 if band is None else len(set(band.axes))
    rotary = "none"
    if band is not None:
        width = layout.keys[1] if band.slot == "keys" else layout.values[1]
        rotary = f"{band.pairing}, {band.width} of {width} rotated, {axes} axes"
    return ModelFacts(
        name, adapter.family, layout.kind, len(adapter.layouts),
        (layout.keys[0] * layout.keys[1], layout.values[0] * layout.values[1]), layout.keys[0], experts, rotary,
    )  # fmt: skip


def measure(
    engine: Engine, name: str, wanted: DeficitOptions, *, screen: Console | None = None, brief: bool = False
) -> DeficitResult:
    """Measure a model.

    Args:
        name: what the report calls it.
        brief: only isolation and rank, for a model that is set beside others.

    Raises:
        EmblemaError: no item of the task asks a multi-hop question about a chunk after another one.
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
    if not any(question.hop == MULTI for question in run.result.log.noted):
        raise EmblemaError(
            f"task {wanted.task}: no item asks a multi-hop question about a chunk after another; choose another task"
        )
    return run.result


def measure_untrained(
    engine: Engine, name: str, wanted: DeficitOptions, *, screen: Console | None = None
) -> DeficitResult:
    """Return the same architecture with the weights that it has before training: a model that does not bind."""
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
        self.kept: list[Piece] = []
        self.lessons: Lessons | None = None
        self._carried = None if brief else carried_pool(engine, wanted, min(TAUGHT, wanted.items // 2))

    def take(self, found: ItemCases | None, *, teaching: bool) -> None:
        """Measure one item, and keep it where it teaches."""
        if found is None:
            self.result.left_out += 1
            return
        if not teaching and not self.brief and self.lessons is None and self.taught:
            fitted = fit_seed(self.taught)
            self.lessons = Lessons(tuple(self.taught), pool_of(self.taught), self._carried, fitted)
        note_subject(self.result, found, self.brief)
        lessons = None if teaching else self.lessons
        guesses: dict[int, Guesses] = {}
        controls: dict[int, Controls] = {}
        for case in found.cases:
            if id(case.subject) not in controls:
                controls[id(case.subject)] = controls_of(case.subject, self.filler)
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
            self.kept += found.made
        else:
            forget(self.engine, found.made)


def basics(case: Case, controls: Controls) -> dict[str, CaseAnswer]:
    """Return re-prefill, blind reuse, the isolation and the ranks."""
    found = {FULL: case.conditioned(), BLIND: case.blind(), "raw": case.blind(relocated=False)}
    return found | isolation_answers(case, controls) | rank_answers(case)


def structure(case: Case) -> dict[str, CaseAnswer]:
    """Return what needs no other items."""
    found = depth_answers(case) | token_answers(case) | slot_answers(case) | selector_answers(case)
    return found | {"sink": sink_answer(case)}


@dataclass(frozen=True, slots=True)
class Lessons:
    """What the teaching half leaves: its subjects, pooled and carried directions, the fit from shallow layers."""

    subjects: tuple[Subject, ...]
    pooled: Pool
    carried: Pool | None
    fitted: Linear


def guess(log: AnswerLog, subject: Subject, lessons: Lessons) -> Guesses:
    """Return deficits guessed without the conditioned forward; note how much of the true ones they explain."""
    guesses = {
        "linear operator": operated(subject, fit_operator(subject, lessons.subjects)),
        "shallow seed": seeded(subject, lessons.fitted),
    }
    for name, deltas in guesses.items():
        first = shallow_layers(subject) if name == "shallow seed" else 0
        log.value(subject.episode, {f"explained/{name}": explained(subject, deltas, first)})
    return guesses


def held_out(case: Case, lessons: Lessons, guesses: Guesses) -> dict[str, CaseAnswer]:
    """Return what the teaching half pooled or fitted, on a held-out item."""
    subject = case.subject
    found = basis_answers(case, lessons.pooled, lessons.carried)
    found |= {name: case.ask(deltas) for name, deltas in guesses.items()}
    cut = shallow_layers(subject)
    found["true shallow only"] = case.ask([delta if at < cut else None for at, delta in enumerate(subject.deficits)])
    return found


def note_subject(result: DeficitResult, found: ItemCases, brief: bool) -> None:
    """Note the figures of an item's chunk."""
    subject, log = found.subject, result.log
    figures = rank_figures(subject)
    if not brief:
        case = next((asked for asked in found.cases if asked.subject is subject), found.cases[-1])
        seen, attention, moved = attention_figures(case)
        together = redundancy(subject)
        result.pairs.append((together.pop("size"), together))
        for part in (depth_figures(subject), injected(case), token_figures(subject),
                     link_figures(subject), recall_figures(subject), rounding_figures(subject),
                     relocation_figures(subject), seen, together):  # fmt: skip
            figures |= part
        if result.examples.planes is None:
            pairs = zip(subject.deficits, subject.conditioned, strict=True)
            planes = [both(delta).abs() / both(rows).square().mean().sqrt() for delta, rows in pairs]
            result.examples.planes = np.stack([plane.T.cpu().numpy() for plane in planes])
            result.examples.attention = attention
        result.examples.moved.append(moved)
    log.value(subject.episode, figures)


def note_case(log: AnswerLog, case: Case, found: dict[str, CaseAnswer]) -> None:
    """Note a question's answers."""
    logits = {name: answer.logits for name, answer in found.items()}
    log.answers(case.subject.episode, case.setting, case.hop, case.expected, logits)
    label = f"{case.setting}, {case.hop}"
    log.value(
        case.subject.episode,
        {f"control kl/{label}": divergence(logits["blocked"], logits[BLIND])},
    )


def carried_pool(engine: Engine, wanted: DeficitOptions, items: int) -> Pool | None:
    """Return directions pooled over another task's items; None where it has no chunk after another."""
    subjects: list[Subject] = []
    made: list[Piece] = []
    for item in items_of(wanted.carried, wanted.seed, items):
        found = gather(engine, item, 1, 0)
        if found is not None:
            subjects.append(found.subject)
            made += found.made
    pooled = pool_of(subjects) if subjects else None
    forget(engine, made)
    return pooled
