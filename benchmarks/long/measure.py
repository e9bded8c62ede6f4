"""Every list of every item by every method, in both settings; what is on record is not done again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from benchmarks.fidelity.memories import DEFAULT, ItemMemories, ShownPrompts, chunks_of
from benchmarks.long.answers import AnswerForm, AnswerRun, LongAnswer, LongMethod, linker_of
from benchmarks.recordfile import RecordFile, digest
from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.list_tasks import dropped_legend
from benchmarks.tasks.prompts import SETTINGS, Piece, forget, pieces, question_prompt
from benchmarks.tasks.registry import task_of
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError
from emblema.eval.progress import steps
from emblema.kv.artifacts import Artifact
from emblema.link.executor import LinkedTable
from emblema.link.policy.policy import Lane, Policy
from emblema.link.prompt import Prompt
from emblema.session.requests import LinkRequest
from emblema.store.keys import ArtifactKey

TASK = "lists"
FULL, BLIND, SURVIVORS = "full", "blind", "survivors"
METHODS = (
    FULL, BLIND, "mpic-32", "query-3%", "query-12%", "query-25%", "query-50%", "query-12%, again every 16", "pair",
    "pair+query-3%", SURVIVORS,
)  # fmt: skip
BASIS_SEED = 0x1157
"""Items that the memory's basis is made from are drawn by another seed than any that is measured."""
BASIS_ITEMS = 8
TAUGHT = "what is on these pages ?"
"""What earlier requests asked."""


@dataclass(frozen=True, slots=True)
class LongOptions:
    """What is measured: the list of lands of so many items from a seed, by some methods.

    Attributes:
        controls: of the first so many items the list of colours too.
    """

    seed: int
    items: int
    controls: int = 0
    methods: tuple[str, ...] = METHODS

    def __post_init__(self) -> None:
        if self.items < 1 or self.seed < 0:
            raise PromptError(f"{self.items} items of seed {self.seed}: give one item or more, and a seed of 0 or more")
        for name in self.methods:
            if name != SURVIVORS:
                LongMethod.of(name)


@dataclass(frozen=True, slots=True)
class LongRecord:
    """One list by one method in one setting.

    Attributes:
        kind: of `list_tasks.LISTED`.
        answer: see `LongAnswer`; of re-prefill, itself beside itself. The icons are dictated.
        right: [entries] of 0 and 1, whether the free-running answer has what goes with an icon.
    """

    key: str
    setting: str
    method: str
    item: str
    kind: str
    answer: LongAnswer
    right: tuple[int, ...]


class LongRun:
    """One model under measurement.

    Args:
        engine: the model; nothing else is done with its store meanwhile.
        options: what is measured.
        records: of this run and of those before it.
    """

    def __init__(self, engine: Engine, options: LongOptions, records: RecordFile[LongRecord]) -> None:
        self._engine, self._options, self._records = engine, options, records
        self._survivors = Engine(
            engine.adapter.model,
            engine.processor,
            store=engine.store,
            policy=replace(Policy.quiet(), query_share=0),
        )
        self._memories: ItemMemories | None = None

    def run(self, screen: Console) -> list[LongRecord]:
        """Measure what is not on record; return all records asked for."""
        options, made = self._options, []
        with steps(screen, f"{options.items} items, {len(options.methods)} methods", options.items) as advance:
            for place, item in enumerate(task_of(TASK).items(options.seed, options.items)):
                asked = range(len(item.questions) if place < options.controls else 1)
                keys = {
                    (setting, index, method): self._key(item, setting, index, method)
                    for setting in SETTINGS
                    for index in asked
                    for method in options.methods
                }
                if any(key not in self._records.held for key in keys.values()):
                    self._item(item, place, keys)
                made += [self._records.held[key] for key in keys.values()]
                advance()
        return made

    def _key(self, item: TaskItem, setting: str, index: int, method: str) -> str:
        return digest(self._engine.adapter.fingerprint, TASK, self._options.seed, item.id, setting, index, method)

    def _item(self, item: TaskItem, place: int, keys: dict[tuple[str, int, str], str]) -> None:
        engine, made = self._engine, pieces(self._engine, item)
        try:
            if any("pair" in method for method in self._options.methods):
                self._taught().show_pairs(question_prompt(engine, item, 0, made, "visible"))
            for setting in SETTINGS:
                for index in sorted({index for _, index, _ in keys}):
                    missing = {
                        method: key
                        for (where, number, method), key in keys.items()
                        if (where, number) == (setting, index) and key not in self._records.held
                    }
                    if missing:
                        prompt = question_prompt(engine, item, index, made, setting)
                        self._question(item, place, index, made, prompt, setting, missing)
        finally:
            forget(engine, made)

    def _question(
        self,
        item: TaskItem,
        place: int,
        index: int,
        made: Sequence[Piece],
        prompt: Prompt,
        setting: str,
        keys: dict[str, str],
    ) -> None:
        engine, question = self._engine, item.questions[index]
        form, wanted = form_of(engine, question.answer)
        tokens, logits = self._run(LongMethod.of(FULL), prompt, form).first()
        records = []
        for name, key in keys.items():
            if name == SURVIVORS:
                run = AnswerRun(engine.adapter, prompt, self._surviving(place, made), form)
            else:
                run = self._run(LongMethod.of(name), prompt, form)
            answer = run.beside(tokens, logits)
            right = tuple(int(answer.tokens[place] == wanted[place]) for place in form.own)
            rounded = replace(answer, divergences=tuple(float(f"{value:.4g}") for value in answer.divergences))
            records.append(LongRecord(key, setting, name, item.id, question.kind, rounded, right))
        self._records.add(records)

    def _run(self, method: LongMethod, prompt: Prompt, form: AnswerForm) -> AnswerRun:
        engine = self._engine
        find = _nothing if self._memories is None else self._memories.find(DEFAULT)
        link = linker_of(engine.adapter, method.strategy, find)
        return AnswerRun(engine.adapter, prompt, link, form, method.every)

    def _surviving(self, place: int, made: Sequence[Piece]) -> Callable[[Prompt], LinkedTable]:
        """Return what links prompts with rows of a request that showed an older legend in front of the same pages."""
        engine = self._survivors
        older = engine.add(dropped_legend(self._options.seed, place).image())

        def link(prompt: Prompt) -> LinkedTable:
            before = engine.prompt([older, *chunks_of(made), TAUGHT])
            engine.session.link(LinkRequest(before, survivors=True))
            prefill = engine.session.link(LinkRequest(prompt, survivors=True))
            engine.forget_prompts()
            if Lane.SURVIVOR.value not in prefill.usage.lane:
                raise EmblemaError(f"survivors were not taken, but {prefill.usage.lane}")
            return prefill.linked

        return link

    def _taught(self) -> ItemMemories:
        """Return the memory of pairs, its basis made from other items; what it learnt of them goes with them."""
        if self._memories is None:
            engine, seed = self._engine, self._options.seed ^ BASIS_SEED
            self._memories = ItemMemories(engine, (DEFAULT,))
            shown = [pieces(engine, item) for item in task_of(TASK).items(seed, BASIS_ITEMS)]
            opening = engine.prompt([TAUGHT]).token_ids.tolist()[:2]
            self._memories.make_bases(ShownPrompts([chunks_of(made) for made in shown], seed), opening)
            for made in shown:
                forget(engine, made)
        return self._memories


def _nothing(key: ArtifactKey) -> Artifact | None:
    return None


def form_of(engine: Engine, answer: str) -> tuple[AnswerForm, tuple[int, ...]]:
    """Return the form of a right list, which dictates its icons, and its tokens."""
    tokens = tuple(engine.tokenizer(answer, add_special_tokens=False)["input_ids"])
    return AnswerForm(len(tokens), {place: tokens[place] for place in range(0, len(tokens), 2)}), tokens
