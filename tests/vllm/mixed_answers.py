"""Answers of servers with what they have to be: stock vLLM's where nothing was linked, else the embedded engine's."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from emblema import Engine
from emblema.engine.generation import GenerateRequest
from emblema.link.plan import LinkPlan, RowRange, RowSource
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.registry import parse
from emblema.served.request_plan import compute_chunks
from emblema.session.decode_batch import DecodeBatch, DecodeSequence, NextToken
from emblema.session.decoding import DecodeStart, Sampler, Sampling

PAGE = 32
"""Rows of a page of the KV cache."""
LIKELIEST, MANY = 5, 20
"""Tokens that servers tell of each place, and that the embedded engine tells."""
TOLERANCE = 1e-4
"""Of a log-probability."""


@dataclass(frozen=True, slots=True)
class Told:
    """An answer.

    Attributes:
        text: of it.
        tokens: of it.
        likeliest: log-probabilities of the likeliest tokens, at each of them.
        prompt, cached: rows of the prompt, and those of them that were not computed.
        report: the plugin's; None in a stream, and from stock vLLM.
    """

    text: str
    tokens: tuple[int, ...]
    likeliest: tuple[Mapping[int, float], ...]
    prompt: int = 0
    cached: int = 0
    report: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AsServed:
    """A strategy as servers carry it out: after rows of an exact prefix, new chunks computed; what is read stands.

    Attributes:
        name: of the strategy.
        rows: of the prefix.
        new: chunks that the server's store did not have.
    """

    name: str
    rows: int
    new: frozenset[str]

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        plan = compute_chunks(parse(self.name).plan(prompt, knowledge), self.new)
        again = plan.recomputation
        plan = replace(plan, recomputation=again and again.after(self.rows), least_margin=0.0)
        if not self.rows:
            return plan
        kept = [part.after(self.rows) for part in plan.ranges if part.stop > self.rows]
        return replace(plan, ranges=(RowRange(0, self.rows, RowSource.COMPUTED, (0, plan.layers)), *kept))


@dataclass(frozen=True, slots=True)
class Difference:
    """How an answer differs from what it has to be.

    Attributes:
        off: largest difference of a log-probability where both wrote the same before.
        text: whether another token was written.
        tie: whether that token is as likely as the wanted one.
    """

    off: float
    text: bool = False
    tie: bool = False

    def fits(self, tolerance: float) -> bool:
        return self.off <= tolerance and (self.tie or not self.text)


def difference(told: Told, wanted: Told, tolerance: float = TOLERANCE) -> Difference:
    """Return how an answer differs from another."""
    off = 0.0
    for place, (own, other) in enumerate(zip(told.likeliest, wanted.likeliest, strict=False)):
        off = max([off, *(abs(value - other[token]) for token, value in own.items() if token in other)])
        chosen, meant = told.tokens[place], wanted.tokens[place]
        if chosen != meant:
            return Difference(off, text=True, tie=other[meant] - other.get(chosen, -1e9) <= 2 * tolerance)
    return Difference(off, text=told.tokens != wanted.tokens or told.text.strip() != wanted.text.strip())


class EmbeddedAnswers:
    """What the embedded engine answers, on pictures that it is given; each chunk and answer is made once.

    Args:
        engine: with the server's model.
        pictures: by number.
        tokens: of an answer at most.
    """

    def __init__(self, engine: Engine, pictures: Mapping[int, Image.Image], tokens: int) -> None:
        self._engine, self._pictures, self._tokens = engine, pictures, tokens
        self._chunks: dict[int, Any] = {}
        self._made: dict[tuple[Any, ...], Told] = {}

    def answer(self, parts: Sequence[str | int], strategy: str, rows: int = 0, new: Sequence[int] = ()) -> Told:
        """Return the answer to text and pictures, these by number, some of them new to the server's store."""
        key = (tuple(parts), strategy, rows, tuple(new))
        if key not in self._made:
            given = [part if isinstance(part, str) else self._chunk(part) for part in parts]
            served = AsServed(strategy, rows, frozenset(self._chunk(number).id for number in new))
            self._made[key] = self._answer(GenerateRequest(given, served, Sampling.of(max_new_tokens=self._tokens)))
        return self._made[key]

    def _answer(self, request: GenerateRequest) -> Told:
        engine, end = self._engine, self._engine.end_tokens
        prefill = engine.begin(request, time.perf_counter())
        start = DecodeStart.after(prefill.prompt, prefill.linked)
        sequence = DecodeSequence(start, Sampler(request.sampling), MANY)
        batch, made = DecodeBatch(engine.adapter, prefill.prompt.tokens + self._tokens), [sequence.first]
        batch.admit(start, sequence)
        while made[-1].token not in end and len(made) < self._tokens:
            ((_, following),) = batch.step()
            assert isinstance(following, NextToken), following
            made.append(following)
        engine.session.after_answer()
        tokens = tuple(each.token for each in made)
        likeliest = tuple(dict(each.probability.likeliest) for each in made if each.probability is not None)
        text = engine.tokenizer.decode([token for token in tokens if token not in end])
        return Told(text, tokens, likeliest, prefill.prompt.tokens)

    def linked(self, told: Told, parts: Sequence[str | int], strategy: str, new: Sequence[int] = ()) -> Iterator[Told]:
        """Yield what a linked request may answer.

        Where the server reports how many rows it took, those before them are known; a stream has no report, and any
        page may have ended the prefix.

        Args:
            strategy: as asked for, or as the report names it.
            new: pictures that nobody showed before, which the server prefills alone for `auto`, as for a second pass.
        """
        pictures = [part for part in parts if isinstance(part, int)]
        read: tuple[str, Sequence[int]] = ("query-25%", ())
        leading: tuple[str, Sequence[int]] = ("blind", pictures[1:])
        ways = [read, leading] if strategy == "auto" else [(strategy, new)]
        if "query" in strategy:
            ways = [read]
        elif strategy == "auto:leading":
            ways = [leading]
        prefixes = range(0, min(told.cached, told.prompt - 1) + 1, PAGE)
        if told.report is not None:
            prefixes = range(first := told.cached - told.report["linked_tokens"], first + 1)
        for name, computed in ways:
            for rows in prefixes:
                yield self.answer(parts, name, rows, computed)

    def _chunk(self, number: int) -> Any:
        if number not in self._chunks:
            self._chunks[number] = self._engine.add(self._pictures[number])
        return self._chunks[number]
