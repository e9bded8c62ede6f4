"""Every question of every item under every strategy, in the settings asked for; what is on record is not done again."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from rich.console import Console
from torch import Tensor

from benchmarks.fidelity.ablations import Basis, Directions, pooled_directions
from benchmarks.fidelity.arms import FULL, Arm, AtShare, arm_of
from benchmarks.fidelity.linking import Linking
from benchmarks.recordfile import RecordFile, digest
from benchmarks.tasks.items import TaskItem, describe
from benchmarks.tasks.prompts import (
    Piece,
    forget,
    messages,
    pieces,
    right,
    slides,
)
from benchmarks.tasks.registry import TASKS, task_of
from emblema.engine.engine import Engine
from emblema.errors import MediaError, PromptError, StrategyError
from emblema.eval.progress import steps
from emblema.kv.keys import ArtifactKey
from emblema.kv.patch import Patch
from emblema.link.executor import Executor
from emblema.link.policy.samples import divergence, first_token
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.patch import PatchStrategy
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode

POOL_SEED = 0x0BA515
"""Items that others learn from are drawn by another seed than any that is measured."""
POOLED_ITEMS = 16
"""Items whose patches are pooled, for strategies that learn from items which are not measured.

The pool is the same for every item: one that grew along a run would give its early items less than its late ones, and a
run that was killed another pool than a whole one.
"""
WHOLE = PatchStrategy(share=1.0)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskSource:
    """The items of one task.

    Attributes:
        name: as it is asked for.
        kinds: of the questions that are asked; all of them without any.
    """

    name: str
    kinds: tuple[str, ...] = ()

    def first(self, seed: int, count: int) -> Iterator[TaskItem]:
        """Return the first `count` items; those without a question of the kinds are left out."""
        for item in task_of(self.name).items(seed, count):
            asked = tuple(question for question in item.questions if question.kind in self.kinds or not self.kinds)
            if asked:
                yield replace(item, questions=asked)

    def others(self, seed: int, count: int) -> Iterator[TaskItem]:
        """Return `count` items that are not measured."""
        return task_of(self.name).items(seed ^ POOL_SEED, count)


def items_of(wanted: Iterable[str]) -> tuple[TaskSource, ...]:
    """Return tasks by name; `trained` is every task that the bundled models know.

    Raises:
        PromptError: there are none, or one is unknown.
    """
    given = [part.strip() for part in wanted if part.strip()]
    if not given:
        raise PromptError("no tasks: give names with commas between them")
    found: dict[str, TaskSource] = {}
    for part in given:
        names = [name for name, task in TASKS.items() if task.familiar] if part == "trained" else [part]
        for name in names:
            if name not in TASKS:
                raise PromptError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}; or trained")
            found[name] = TaskSource(name)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class FidelityRecord:
    """One item under one strategy in one setting, question by question.

    Attributes:
        multi_hop: whether a question needs several pieces of media.
        answers: token ids of the greedy answers.
        right: whether they are right.
        divergences: KL from re-prefill at the answer's first token, nats.
        rows_computed_share: rows computed over the prompt's, the mean over questions; a row that runs twice counts
            twice.
    """

    key: str
    model: str
    task: str
    setting: str
    strategy: str
    item: str
    episode: str
    multi_hop: tuple[bool, ...]
    answers: tuple[tuple[int, ...], ...]
    right: tuple[bool, ...]
    divergences: tuple[float, ...]
    kv_bytes_share: float
    rows_computed_share: float

    def __post_init__(self) -> None:
        if len({len(self.multi_hop), len(self.answers), len(self.right), len(self.divergences)}) != 1:
            raise ValueError("a record with missing questions")

    def only(self, places: Sequence[int]) -> Self:
        """Return the record of some of its questions."""
        return replace(
            self,
            multi_hop=tuple(self.multi_hop[place] for place in places),
            answers=tuple(self.answers[place] for place in places),
            right=tuple(self.right[place] for place in places),
            divergences=tuple(self.divergences[place] for place in places),
        )


@dataclass(frozen=True, slots=True)
class FidelityOptions:
    """What to measure.

    Attributes:
        strategies: names, re-prefill among them.
    """

    strategies: tuple[str, ...]
    settings: tuple[str, ...]
    items: int
    seed: int

    def __post_init__(self) -> None:
        if self.items < 1:
            raise PromptError(f"{self.items} items: give one or more")


@dataclass(slots=True)
class FidelityRun:
    """One model under measurement.

    Attributes:
        refused: strategies that the model cannot carry out, and tasks of media that it does not take, with the reason;
            they are left out.
        made: keys of the records that this run asked for, made now or before.
    """

    engine: Engine
    name: str
    wanted: FidelityOptions
    records: RecordFile[FidelityRecord]
    refused: dict[str, str] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    done: int = 0

    def run(self, tasks: Sequence[TaskSource], screen: Console) -> None:
        """Measure all tasks, one after another."""
        for task in tasks:
            title = f"{self.name}, {task.name}: {self.wanted.items} items"
            try:
                with steps(screen, title, self.wanted.items) as advance:
                    self._task(task, advance)
            except MediaError as error:
                _log.warning("%s is left out: %s", task.name, error)
                self.refused[task.name] = str(error)

    def _task(self, task: TaskSource, advance: Callable[[], None]) -> None:
        wanted = self.wanted
        pool: Directions | None = None
        for item in task.first(wanted.seed, wanted.items):
            made: Sequence[Piece] = ()
            patches: dict[ArtifactKey, Patch] = {}
            try:
                for setting in wanted.settings:
                    if setting == "slid" and not slides(item):
                        continue
                    keys = {name: self._key(task, item, setting, name) for name in wanted.strategies}
                    self.made += keys.values()
                    lacking = [name for name, key in keys.items() if key not in self.records.held]
                    missing = {name: keys[name] for name in lacking if name not in self.refused}
                    if missing:
                        pool = self._pool(task) if pool is None else pool
                        made = made or pieces(self.engine, item)
                        linking = self._linking(item, made, setting, patches, pool)
                        self._setting(linking, task.name, item, setting, missing)
                        self.done += len(missing)
            finally:
                forget(self.engine, made)
            advance()

    def _key(self, task: TaskSource, item: TaskItem, setting: str, strategy: str) -> str:
        """Return the digest of everything that a record's figures depend on."""
        about = (self.engine.adapter.fingerprint, task.name, self.wanted.seed, setting, strategy)
        return digest(*about, describe(item))

    def _setting(self, linking: Linking, task: str, item: TaskItem, setting: str, keys: dict[str, str]) -> None:
        arms: dict[str, Arm] = {name: arm_of(name) for name in keys}
        linking.prepare(list(arms.values()))
        lengths = [self._length(item, index) for index in range(len(item.questions))]
        reference, exact = self._answered(linking, linking.strategies(arm_of(FULL)), lengths)
        for name, arm in arms.items():
            try:
                strategies = linking.strategies(arm)
                logits, answers = (reference, exact) if name == FULL else self._answered(linking, strategies, lengths)
            except StrategyError as error:
                _log.warning("%s", error)
                self.refused[name] = str(error)
                continue
            spent = linking.spent(strategies)
            record = FidelityRecord(
                key=keys[name],
                model=self.name,
                task=task,
                setting=setting,
                strategy=name,
                item=item.id,
                episode=item.episode,
                multi_hop=tuple(question.multi_hop for question in item.questions),
                answers=tuple(answers),
                right=tuple(self._right(item, index, answer) for index, answer in enumerate(answers)),
                divergences=tuple(
                    divergence(whole.cpu().numpy(), own.cpu().numpy())
                    for whole, own in zip(reference, logits, strict=True)
                ),
                kv_bytes_share=spent.kv_bytes_share,
                rows_computed_share=spent.rows_computed_share,
            )
            self.records.add([record])

    def _answered(
        self, linking: Linking, strategies: Sequence[Strategy], lengths: Sequence[int]
    ) -> tuple[list[Tensor], list[tuple[int, ...]]]:
        """Return logits of the first token of every answer, and the greedy answers."""
        if max(lengths) == 1:
            logits = linking.logits(strategies)
            return logits, [(first_token(answer.cpu().numpy()),) for answer in logits]
        logits, answers = [], []
        linked = linking.linked(strategies, max(lengths))
        for outcome, prompt, length in zip(linked, linking.prompts, lengths, strict=True):
            sampler = Sampler(Sampling(max_new_tokens=length))
            logits.append(outcome.logits)
            answers.append(
                tuple(decode(self.engine.adapter, DecodeStart.after(prompt, outcome), sampler, self.engine.end_tokens))
            )
        return logits, answers

    def _linking(
        self,
        item: TaskItem,
        made: Sequence[Piece],
        setting: str,
        patches: dict[ArtifactKey, Patch],
        pool: Directions,
    ) -> Linking:
        prompts = [self.engine.prompt(messages(item, index, made, setting)) for index in range(len(item.questions))]
        return Linking(Executor(self.engine.adapter), prompts, patches, pool)

    def _length(self, item: TaskItem, index: int) -> int:
        answer = item.questions[index].answer
        return max(1, len(self.engine.template.tokenizer(answer, add_special_tokens=False)["input_ids"]))

    def _right(self, item: TaskItem, index: int, answer: tuple[int, ...]) -> bool:
        text = str(self.engine.template.tokenizer.decode(answer, skip_special_tokens=True))
        return right(item.questions[index], text)

    def _pool(self, task: TaskSource) -> Directions:
        """Return what other items than those measured have in common, where a strategy learns from it."""
        arms = [arm_of(name) for name in self.wanted.strategies]
        if not any(isinstance(arm, Basis) or (isinstance(arm, AtShare) and arm.method == "basis") for arm in arms):
            return ()
        patches: list[Patch] = []
        for item in task.others(self.wanted.seed, POOLED_ITEMS):
            made = pieces(self.engine, item)
            linking = self._linking(item, made, "visible", {}, ())
            linking.prepare([WHOLE])
            patches += linking.patches.values()
            forget(self.engine, made)
        return pooled_directions(patches)
