"""One long answer under one method: teacher-forced along re-prefill's answer, and free-running by itself.

Some tokens of an answer may be dictated by a form, as a grammar does that answers are held to; only the others are the
model's own, and only those are compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from emblema.kv.artifacts import Artifact
from emblema.link.context import LinkContext
from emblema.link.executor import Executor, LinkedTable
from emblema.link.prompt import Prompt, TextPart
from emblema.link.second_pass import margin_of
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.link.strategies.pair import Pair
from emblema.link.strategies.query import QueryStrategy
from emblema.link.strategies.registry import parse
from emblema.link.taken_rows import LinkJob
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.store.keys import ArtifactKey

Link = Callable[[Prompt], LinkedTable]
"""Links a prompt."""
NO_END: frozenset[int] = frozenset()
RESERVE = 64
"""Rows that a linked prompt keeps room for."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What of an answer is dictated.

    Attributes:
        length: tokens of the answer.
        dictated: tokens by their place in it, the first at 0.
    """

    length: int
    dictated: Mapping[int, int]

    @property
    def own(self) -> list[int]:
        """Places of the model's own tokens."""
        return [place for place in range(self.length) if place not in self.dictated]


class FormSampler(Sampler):
    """Greedy, but where a form dictates.

    Args:
        form: the form.
        place: of the next token.
    """

    def __init__(self, form: AnswerForm, place: int) -> None:
        super().__init__(Sampling(max_new_tokens=form.length))
        self._form, self._place = form, place

    def __call__(self, logits: Tensor) -> int:
        """Return the next token for logits [vocab] float32."""
        place, self._place = self._place, self._place + 1
        return self._form.dictated.get(place, int(logits.argmax()))


@dataclass(frozen=True, slots=True)
class LongAnswer:
    """An answer by one method beside re-prefill's, both of a form with n tokens of the model's own.

    Attributes:
        agrees: [n] of 0 and 1, whether a token of re-prefill's answer is the likeliest after those before it.
        divergences: [n] KL from re-prefill there, nats.
        tokens: the method's own greedy answer, what is dictated included.
        same: [n] of 0 and 1, whether its own tokens are re-prefill's.
        margin: by how much the probabilities of the two likeliest tokens differ at the first of its own.
        computed: rows that were computed for the prompt, over its rows; those of readings later in the answer count.
    """

    agrees: tuple[int, ...]
    divergences: tuple[float, ...]
    tokens: tuple[int, ...]
    same: tuple[int, ...]
    margin: float
    computed: float


@dataclass(frozen=True, slots=True)
class LongMethod:
    """How an answer is linked.

    Attributes:
        name: as tables have it.
        strategy: links the prompt; without its fallback.
        every: tokens after which the prompt and the answer so far are linked anew; 0 for never.
    """

    name: str
    strategy: Strategy
    every: int = 0

    @classmethod
    def of(cls, name: str) -> "LongMethod":
        """Return a method by its name: a strategy's, or one with `, again every N`.

        Raises:
            StrategyError: there is no such strategy.
        """
        strategy, _, every = name.partition(", again every ")
        return cls(name, without_fallback(parse(strategy)), int(every or 0))


def without_fallback(strategy: Strategy) -> Strategy:
    """Return a strategy that takes any answer of its second pass."""
    return replace(strategy, least_margin=0) if isinstance(strategy, QueryStrategy | Pair) else strategy


def linker_of(adapter: Adapter, strategy: Strategy, find: Callable[[ArtifactKey], Artifact | None]) -> Link:
    """Return what links prompts by a strategy.

    Args:
        find: looks artifacts up, those of a memory of pairs among them.
    """
    executor = Executor(adapter)

    def link(prompt: Prompt) -> LinkedTable:
        knowledge = Knowledge(adapter.fingerprint, adapter.layouts, find, lambda other: None, second_pass=True)
        context = LinkContext(knowledge, {})
        plan = strategy.plan(prompt, context.knowledge)
        return executor.run(LinkJob(plan, prompt, context.resources), reserve=RESERVE)

    return link


class AnswerRun:
    """Answers one prompt by one method.

    Args:
        adapter: the model.
        prompt: the prompt.
        link: links it, and what it is continued to.
        form: of the answer.
        every: see `LongMethod`.
    """

    def __init__(self, adapter: Adapter, prompt: Prompt, link: Link, form: AnswerForm, every: int = 0) -> None:
        self._adapter, self._prompt, self._link, self._form, self._every = adapter, prompt, link, form, every
        self._computed = 0

    def first(self) -> tuple[tuple[int, ...], Tensor]:
        """Return the greedy answer, and the logits [length, vocab] float32 before each of its tokens."""
        tokens = self._free(())
        return tokens, self._forced(tokens)

    def beside(self, tokens: tuple[int, ...], logits: Tensor) -> LongAnswer:
        """Return the answer beside re-prefill's tokens and its logits, as `first` gives them."""
        self._computed = 0
        found = self._forced(tokens)
        computed, places = self._computed, self._form.own
        likeliest, own = found.argmax(dim=-1).tolist(), torch.tensor(places)
        agrees = tuple(int(likeliest[place] == tokens[place]) for place in places)
        answer = tokens
        if 0 in agrees:
            # Up to there the greedy answer is re-prefill's: it is decoded from there on.
            place = places[agrees.index(0)]
            answer = self._free((*tokens[:place], likeliest[place]))
        exact, method = torch.log_softmax(logits[own].double(), -1), torch.log_softmax(found[own].double(), -1)
        divergences = (exact.exp() * (exact - method)).sum(dim=-1).clamp_min(0).tolist()
        return LongAnswer(
            agrees,
            tuple(divergences),
            answer,
            tuple(int(answer[place] == tokens[place]) for place in places),
            margin_of(found[places[0]]),
            computed / self._prompt.tokens,
        )

    def _read(self, answer: Sequence[int]) -> tuple[LinkedTable, Prompt]:
        """Link the prompt and an answer so far."""
        prompt = self._prompt
        if answer:
            parts = [segment.part for segment in prompt.segments]
            prompt = Prompt.of([*parts, TextPart(tuple(answer))], prompt.axes)
        linked = self._link(prompt)
        self._computed += linked.trace.computed + linked.trace.repeated
        return linked, prompt

    def _forced(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits [n, vocab] of each token of an answer, after those before it."""
        step = self._every or len(tokens)
        found = []
        for first in range(0, len(tokens), step):
            linked, prompt = self._read(tokens[:first])
            start = DecodeStart.after(prompt, linked)
            found += [start.logits[None].cpu(), run_tokens(self._adapter, start, tokens[first : first + step - 1])]
        return torch.cat(found)[: len(tokens)]

    def _free(self, begun: Sequence[int]) -> tuple[int, ...]:
        """Return the greedy answer that begins with some tokens."""
        answer, length = list(begun), self._form.length
        while len(answer) < length:
            read = len(answer) // self._every * self._every if self._every else 0
            stop = min(length, read + self._every) if self._every else length
            linked, prompt = self._read(answer[:read])
            start = DecodeStart.after(prompt, linked)
            if len(answer) > read:
                logits = run_tokens(self._adapter, start, answer[read:])[-1]
                done = len(answer) - read
                start = replace(start, logits=logits, row=start.row + done, position=start.position + done)
            sampler = FormSampler(self._form, len(answer))
            answer += decode(self._adapter, start, sampler, NO_END, stop - len(answer))
        return tuple(answer)


@torch.inference_mode()
def run_tokens(adapter: Adapter, start: DecodeStart, tokens: Sequence[int]) -> Tensor:
    """Append the rows of tokens to a linked table in one forward, and return the logits [tokens, vocab] after each."""
    count, device = len(tokens), adapter.device
    if count == 0:
        return start.logits.new_empty(0, start.logits.shape[0]).cpu()
    places = torch.arange(count, device=device)
    slots = start.table.allocate(start.row + places, torch.full_like(places, -1))
    batch = RowBatch(
        embeds=adapter.embed(torch.tensor(list(tokens), device=device)),
        positions=(start.position + places).expand(start.axes, -1),
        slots=torch.arange(slots.start, slots.stop, device=device),
        visual=torch.zeros(count, dtype=torch.bool, device=device),
    )
    return adapter.logits(adapter.forward(batch, start.table)).cpu()
