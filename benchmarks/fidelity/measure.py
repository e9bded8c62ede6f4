"""Every question of every item under every strategy, in the settings asked for; what is on record is not done again."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Self

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from benchmarks.data.forms import FORMS, load_items
from benchmarks.fidelity.arms import FULL, Arm, AtShare, arm_of
from benchmarks.fidelity.linking import Linking
from benchmarks.recordfile import RecordFile, digest
from benchmarks.report import labels_of
from benchmarks.tasks.items import TaskItem, describe
from benchmarks.tasks.judge import Judge
from benchmarks.tasks.prompts import (
    SETTINGS,
    Piece,
    Style,
    expected,
    forget,
    pieces,
    question_prompt,
    right,
    slides,
    style_of,
)
from benchmarks.tasks.registry import TASKS, task_of
from emblema.engine.engine import Engine
from emblema.errors import MediaError, PromptError, StrategyError
from emblema.eval.progress import steps
from emblema.kv.artifacts import Artifact
from emblema.kv.layout import LayerLayout
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.link.executor import Executor
from emblema.link.policy.fidelity import divergence, first_token
from emblema.link.second_pass import margin_of
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.basis import Basis
from emblema.link.strategies.patch import PatchStrategy
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.store.keys import ArtifactKey

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
    """The items of one task or data set.

    Attributes:
        name: as it is asked for; of a data set its file's name comes after the form.
        path: the data set's file or folder; None for a generated task.
        familiar: whether the bundled models were trained on such items.
        kinds: of the questions that are asked; all of them without any.
        most: questions of an item at the most, drawn at random by its name; all of them if None.
    """

    name: str
    form: str
    path: Path | None
    familiar: bool
    kinds: tuple[str, ...] = ()
    most: int | None = None

    def first(self, seed: int, count: int) -> Iterator[TaskItem]:
        """Return the first `count` items; those without a question of the kinds are left out.

        Raises:
            DataError: the data set is broken; it names file and line.
        """
        drawn = task_of(self.name).items(seed, count) if self.path is None else load_items(self.path, self.form)
        return self._asked(islice(drawn, count))

    def _asked(self, items: Iterable[TaskItem]) -> Iterator[TaskItem]:
        for item in items:
            asked = tuple(question for question in item.questions if question.kind in self.kinds or not self.kinds)
            if self.most is not None and len(asked) > self.most:
                drawn = np.random.default_rng(list(item.id.encode())).permutation(len(asked))[: self.most]
                asked = tuple(asked[place] for place in sorted(drawn))
            if asked:
                yield replace(item, questions=asked)

    def others(self, seed: int, measured: int, count: int) -> Iterator[TaskItem]:
        """Return `count` items that are not among the first `measured`; fewer where a data set has no more."""
        if self.path is None:
            return task_of(self.name).items(seed ^ POOL_SEED, count)
        return islice(load_items(self.path, self.form), measured, measured + count)


def items_of(wanted: Iterable[str]) -> tuple[TaskSource, ...]:
    """Return tasks by name, data sets as `form:path`; `trained` is every task that the bundled models know.

    Raises:
        PromptError: there are none, or one is unknown.
    """
    given = [part.strip() for part in wanted if part.strip()]
    if not given:
        raise PromptError("no tasks: give names with commas between them, or form:path for a data set")
    found: dict[str, TaskSource] = {}
    for part in given:
        form, colon, path = part.partition(":")
        if colon and form in FORMS:
            found[part] = TaskSource(f"{form}:{Path(path).name}", form, Path(path), False)
            continue
        names = [name for name, task in TASKS.items() if task.familiar] if part == "trained" else [part]
        for name in names:
            if name not in TASKS:
                known = f"{', '.join(TASKS)}; trained; or form:path with a form of {', '.join(FORMS)}"
                raise PromptError(f"unknown task {name!r}: choose one of {known}")
            found[name] = TaskSource(name, TASKS[name].form, None, TASKS[name].familiar)
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
        judged: overall scores of a judge, 1 to 10; empty without one.
        margins: by how much the probabilities of an answer's two likeliest first tokens differ; empty in records of
            before they were kept.
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
    judged: tuple[int, ...] = ()
    margins: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        counts = {len(self.multi_hop), len(self.answers), len(self.right), len(self.divergences)}
        if len(counts) != 1 or (self.margins and len(self.margins) not in counts):
            raise ValueError("a record with missing questions")

    def only(self, places: Sequence[int]) -> Self:
        """Return the record of some of its questions, without a judge's scores."""
        return replace(
            self,
            multi_hop=tuple(self.multi_hop[place] for place in places),
            answers=tuple(self.answers[place] for place in places),
            right=tuple(self.right[place] for place in places),
            divergences=tuple(self.divergences[place] for place in places),
            judged=(),
            margins=tuple(self.margins[place] for place in places) if self.margins else (),
        )


def learned_rank(arms: Iterable[Arm], layouts: Sequence[LayerLayout]) -> int:
    """Return the most directions that one of the strategies takes from other items, 0 if none does."""
    widest = max(heads * width for layout in layouts for heads, width in (layout.keys, layout.values))
    ranks = [0]
    for arm in arms:
        if isinstance(arm, Basis):
            ranks.append(arm.rank)
        elif isinstance(arm, AtShare) and arm.method == "basis":
            # The widest slot may take more than its share where others are full.
            ranks.append(widest if not _even(layouts) else ceil(widest * arm.percent / 100))
    return min(widest, max(ranks))


def merged(patches: Mapping[ArtifactKey, Patch], rank: int) -> dict[ArtifactKey, Patch]:
    """Return one piece whose directions are what all patches pool to, weighted as they are; of the model's own key."""
    if not patches:
        return {}
    layers: list[LayerPatch | None] = []
    for every in zip(*(patch.layers for patch in patches.values()), strict=True):
        held = [layer for layer in every if layer is not None]
        layers.append(
            LayerPatch(_merged([layer.keys for layer in held], rank), _merged([layer.values for layer in held], rank))
            if held
            else None
        )
    model = next(iter(patches)).model
    return {ArtifactKey(model, "pool", ()): Patch(tuple(layers))}


def _merged(items: Sequence[Factors], rank: int) -> Factors:
    weighted = torch.cat([factors.left.float().norm(dim=0)[:, None] * factors.right.float() for factors in items])
    found = torch.linalg.svd(weighted, full_matrices=False)
    return Factors(torch.diag(found.S[:rank]), found.Vh[:rank])


def _even(layouts: Sequence[LayerLayout]) -> bool:
    return len({heads * width for layout in layouts for heads, width in (layout.keys, layout.values)}) == 1


@dataclass(frozen=True, slots=True)
class FidelityOptions:
    """What to measure.

    Attributes:
        strategies: names, re-prefill among them.
        style: how options are asked for.
        answer_tokens: the longest answer; as many as the right one has if None.
        judge: scores the answers of dialogues.
    """

    strategies: tuple[str, ...]
    settings: tuple[str, ...]
    items: int
    seed: int
    style: Style = "words"
    answer_tokens: int | None = None
    judge: Judge | None = None

    def __post_init__(self) -> None:
        if self.items < 1:
            raise PromptError(f"{self.items} items: give one or more")
        if self.seed < 0:
            raise PromptError(f"the seed is {self.seed}: give 0 or more")
        unknown = set(self.settings) - set(SETTINGS)
        if unknown or not self.settings:
            raise PromptError(f"unknown setting {', '.join(sorted(unknown))!r}: choose of {', '.join(SETTINGS)}")

    @property
    def answering(self) -> str:
        """What of the answering decides a record's figures."""
        judge = "" if self.judge is None else f"{self.judge.url} {self.judge.model}"
        return f"{self.answer_tokens} {judge}".strip()


def measure_models(
    models: Sequence[str],
    load: Callable[[str], Engine],
    wanted: FidelityOptions,
    tasks: Sequence[TaskSource],
    listing: Path,
    screen: Console,
) -> tuple[list[FidelityRecord], dict[str, str]]:
    """Measure models on the same items; return their records, and what was refused with the reason.

    Args:
        load: gives an engine on a model by its name.
        listing: file of the run's figures; records lie beside it, and a killed run goes on from these.
    """
    kept: list[FidelityRecord] = []
    refused: dict[str, str] = {}
    with RecordFile(listing.with_suffix(".records.jsonl"), FidelityRecord) as records:
        for model, label in zip(models, labels_of(models), strict=True):
            with load(model) as engine:
                bench = FidelityRun(engine, label, wanted, records)
                bench.run(tasks, screen)
            kept += [records.held[key] for key in dict.fromkeys(bench.made) if key in records.held]
            refused |= {f"{label}: {name}": reason for name, reason in bench.refused.items()}
    return kept, refused


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
                # Of a data set it may be one bad file; what we draw is a kind that the model does not take.
                if task.path is not None:
                    raise
                _log.warning("%s is left out: %s", task.name, error)
                self.refused[task.name] = str(error)

    def _task(self, task: TaskSource, advance: Callable[[], None]) -> None:
        wanted = self.wanted
        pool: dict[ArtifactKey, Patch] | None = None
        for item in task.first(wanted.seed, wanted.items):
            settings = [setting for setting in wanted.settings if setting == "visible" or slides(item)]
            keys = {
                (setting, name): self._key(task, item, setting, name)
                for setting in settings
                for name in wanted.strategies
            }
            self.made += keys.values()
            if any(key not in self.records.held for (_, name), key in keys.items() if name not in self.refused):
                if pool is None:
                    pool = self._pool(task)
                self._item(task.name, item, settings, keys, pool)
            advance()

    def _key(self, task: TaskSource, item: TaskItem, setting: str, strategy: str) -> str:
        """Return the digest of everything that a record's figures depend on; a data set's items have no seed."""
        seed, wanted = -1 if task.path else self.wanted.seed, self.wanted
        about = (self.engine.adapter.fingerprint, task.name, seed, wanted.style, setting, strategy, wanted.answering)
        return digest(*about, describe(item))

    def _item(
        self,
        task: str,
        item: TaskItem,
        settings: Sequence[str],
        keys: dict[tuple[str, str], str],
        pool: dict[ArtifactKey, Patch],
    ) -> None:
        made = pieces(self.engine, item)
        patches: dict[ArtifactKey, Artifact] = {}
        try:
            for setting in settings:
                missing = [name for name in self.wanted.strategies if keys[setting, name] not in self.records.held]
                if missing:
                    linking = self._linking(item, made, setting, patches, pool)
                    self._setting(linking, task, item, setting, {name: keys[setting, name] for name in missing})
                    self.done += len(missing)
        finally:
            forget(self.engine, made)

    def _setting(self, linking: Linking, task: str, item: TaskItem, setting: str, keys: dict[str, str]) -> None:
        arms: dict[str, Arm] = {name: arm_of(name) for name in keys if name not in self.refused}
        linking.prepare(list(arms.values()))
        lengths = [self._length(item, index) for index in range(len(item.questions))]
        reference, own = self._answered(linking, linking.strategies(arm_of(FULL)), lengths)
        for name, arm in arms.items():
            try:
                strategies = linking.strategies(arm)
                logits, answers = (reference, own) if name == FULL else self._answered(linking, strategies, lengths)
            except StrategyError as error:
                _log.warning("%s", error)
                self.refused[name] = str(error)
                continue
            spent = linking.spent(strategies)
            self.records.add(
                [
                    FidelityRecord(
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
                        divergences=_divergences(reference, logits),
                        kv_bytes_share=spent.kv_bytes_share,
                        rows_computed_share=spent.rows_computed_share,
                        judged=self._judged(item, answers),
                        margins=tuple(margin_of(own) for own in logits),
                    )
                ]
            )

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
        patches: dict[ArtifactKey, Artifact],
        pool: dict[ArtifactKey, Patch],
    ) -> Linking:
        prompts = [
            question_prompt(self.engine, item, index, made, setting, style_of(item, index, self.wanted.style))
            for index in range(len(item.questions))
        ]
        return Linking(Executor(self.engine.adapter), prompts, patches, pool)

    def _length(self, item: TaskItem, index: int) -> int:
        if self.wanted.answer_tokens is not None:
            return self.wanted.answer_tokens
        answer = expected(item.questions[index], style_of(item, index, self.wanted.style))
        return max(1, len(self.engine.template.tokenizer(answer, add_special_tokens=False)["input_ids"]))

    def _right(self, item: TaskItem, index: int, answer: tuple[int, ...]) -> bool:
        return right(item.questions[index], self._text(answer))

    def _text(self, answer: tuple[int, ...]) -> str:
        return str(self.engine.template.tokenizer.decode(answer, skip_special_tokens=True))

    def _judged(self, item: TaskItem, answers: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        judge = self.wanted.judge
        if judge is None or not item.dialogue:
            return ()
        asked = zip(item.questions, answers, strict=True)
        return tuple(judge.score(question.text, question.answer, self._text(answer)) for question, answer in asked)

    def _pool(self, task: TaskSource) -> dict[ArtifactKey, Patch]:
        """Return what other items than those measured have in common, where a strategy learns from it."""
        arms = [arm_of(name) for name in self.wanted.strategies]
        rank = learned_rank(arms, self.engine.adapter.layouts)
        if rank == 0:
            return {}
        patches: dict[ArtifactKey, Patch] = {}
        for item in task.others(self.wanted.seed, self.wanted.items, POOLED_ITEMS):
            made = pieces(self.engine, item)
            linking = self._linking(item, made, "visible", {}, {})
            linking.prepare([WHOLE])
            patches |= {key: patch for key, patch in linking.patches.items() if isinstance(patch, Patch)}
            forget(self.engine, made)
        if not patches:
            raise StrategyError(f"{task.name} has no items beside those measured, for basis-M to learn from: ask fewer")
        return merged(patches, rank)


def _divergences(reference: Sequence[Tensor], logits: Sequence[Tensor]) -> tuple[float, ...]:
    return tuple(
        divergence(exact.cpu().numpy(), own.cpu().numpy()) for exact, own in zip(reference, logits, strict=True)
    )
