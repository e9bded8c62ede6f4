"""Decoding from a linked table: a token at a time, greedy or sampled, in the same rows that the prefill left."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypedDict

import torch
from torch import Tensor

from emblema.errors import ModelError, PromptError
from emblema.link.executor import LinkedTable
from emblema.link.prompt import Prompt
from emblema.models.batch import RowBatch
from emblema.models.tables import KVTable
from emblema.session.grammar import Grammar

NOT_FINITE = "the model's logits are not finite: the reply cannot go on"


TOP = 256
"""Likeliest tokens that are put in order at first to find the smallest set of a probability."""


class SamplingKnobs(TypedDict, total=False):
    """`Sampling`'s attributes as callers write them: `stop` may be a string, several, or None."""

    max_new_tokens: int
    temperature: float
    top_p: float
    stop: str | Sequence[str] | None
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    grammar: Grammar | None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Nothing is taken from the model's generation configuration but its end tokens.

    Attributes:
        max_new_tokens: at most so many tokens.
        temperature: 0 is greedy.
        top_p: the smallest set of tokens with this probability is sampled from.
        stop: strings that end the reply; not part of it.
        seed: of the sampler; None draws one.
        presence_penalty: taken once from the logit of every token that the reply has already, -2 to 2.
        frequency_penalty: taken from it for each time that the reply has the token, -2 to 2.
        logit_bias: tokens, and what is added to their logits, -100 to 100.
        grammar: what the reply's text has to be; a token that it does not allow is never chosen.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None

    @classmethod
    def of(
        cls,
        *,
        stop: str | Sequence[str] | None = None,
        logit_bias: Mapping[int, float] | None = None,
        **knobs: Any,
    ) -> Self:
        """Return sampling as callers write it: a stop string, several, or None; biases by token.

        Raises:
            PromptError: a knob is out of range, or there is no such knob.
        """
        if stop is not None and not isinstance(stop, str | list | tuple):
            raise PromptError(f"stop is a {type(stop).__name__}: give a string, a list of strings, or None")
        if logit_bias is not None and not isinstance(logit_bias, Mapping):
            raise PromptError(f"logit_bias is a {type(logit_bias).__name__}: give numbers by token, or None")
        unknown = sorted(knobs.keys() - SamplingKnobs.__annotations__.keys())
        if unknown:
            raise PromptError(f"there is no sampling knob {unknown[0]!r}")
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        return cls(stop=stops, logit_bias=tuple((logit_bias or {}).items()), **knobs)

    def of_choice(self, choice: int, max_new_tokens: int) -> Self:
        """Return the sampling of one of several replies to a prompt: of the seed that is so many further."""
        seed = None if self.seed is None else (self.seed + choice) % 2**63
        return replace(self, seed=seed, max_new_tokens=max_new_tokens)

    def __post_init__(self) -> None:
        if type(self.max_new_tokens) is not int or self.max_new_tokens < 1:
            raise PromptError(f"max_new_tokens is {self.max_new_tokens!r}: it must be a whole number, 1 or more")
        if not isinstance(self.temperature, int | float) or not 0 <= self.temperature <= 100:
            raise PromptError(f"temperature is {self.temperature!r}: it must be a number between 0 and 100")
        if not isinstance(self.top_p, int | float) or not 0 < self.top_p <= 1:
            raise PromptError(f"top_p is {self.top_p!r}: it must be a number above 0 and at most 1")
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < 2**63):
            raise PromptError(f"seed is {self.seed!r}: it must be a whole number from 0 to 2**63 - 1, or None")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise PromptError("a stop string is empty or no string: leave it out")
        for name in ("presence_penalty", "frequency_penalty"):
            if not _within(getattr(self, name), 2):
                raise PromptError(f"{name} is {getattr(self, name)!r}: it must be a number from -2 to 2")
        for token, bias in self.logit_bias:
            if type(token) is not int or token < 0:
                raise PromptError(f"logit_bias names {token!r}: name tokens by their ids")
            if not _within(bias, 100):
                raise PromptError(f"logit_bias of token {token} is {bias!r}: it must be a number from -100 to 100")


def _within(number: object, most: float) -> bool:
    return isinstance(number, int | float) and -most <= number <= most


class Sampler:
    """Chooses the tokens of one reply from logits; holds its own random state, and what the reply has so far."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.generator = torch.Generator()
        if sampling.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(sampling.seed)
        self._bias = dict(sampling.logit_bias)
        self._counts: Counter[int] = Counter()
        self._matcher = None if sampling.grammar is None else sampling.grammar.matcher()
        # What is added to the logits [vocab] of the next token; None until there is any.
        self._shift: Tensor | None = None

    @property
    def greedy(self) -> bool:
        """Whether it takes the likeliest token of the logits as they are, and has nothing to remember."""
        chosen = self.sampling
        changed = chosen.presence_penalty or chosen.frequency_penalty or chosen.logit_bias or chosen.grammar
        return chosen.temperature == 0 and not changed

    def __call__(self, logits: Tensor) -> int:
        """Return the next token of the reply for logits [vocab] float32.

        Raises:
            ModelError: they are not finite.
            PromptError: a bias is given to a token that the model does not have, or the grammar takes too much.
        """
        if self._shift is None and self._bias:
            self._shift = self._biases(logits)
        allowed = logits if self._shift is None else logits + self._shift
        if self._matcher is not None:
            allowed = allowed.masked_fill(self._matcher.banned(len(logits)).to(logits.device), -torch.inf)
        token = self._chosen(allowed, logits)
        if self._matcher is not None:
            self._matcher.take(token)
        self._count(token, logits)
        return token

    def _biases(self, logits: Tensor) -> Tensor:
        largest = max(self._bias)
        if largest >= len(logits):
            raise PromptError(f"logit_bias names token {largest}: the model has tokens 0 to {len(logits) - 1}")
        shift = torch.zeros(len(logits), dtype=logits.dtype)
        shift[list(self._bias)] = torch.tensor(list(self._bias.values()), dtype=logits.dtype)
        return shift.to(logits.device)

    def _count(self, token: int, logits: Tensor) -> None:
        presence, frequency = self.sampling.presence_penalty, self.sampling.frequency_penalty
        if not presence and not frequency:
            return
        self._counts[token] += 1
        if self._shift is None:
            self._shift = torch.zeros_like(logits)
        self._shift[token] = self._bias.get(token, 0.0) - presence - frequency * self._counts[token]

    def _chosen(self, logits: Tensor, told: Tensor) -> int:
        """Return a token for logits [vocab], which are those that the model told, or others made of them."""
        largest, likeliest = logits.max(dim=0)
        token = likeliest if self.sampling.temperature == 0 else self._drawn(logits, largest)
        # The largest is NaN where any is. Both come from the device at once; float32 holds any token.
        known = largest if logits is told else told.max()
        known, chosen = torch.stack((known, token.to(largest.dtype))).tolist()
        if not math.isfinite(known):
            raise ModelError(NOT_FINITE)
        return int(chosen)

    def _drawn(self, logits: Tensor, largest: Tensor) -> Tensor:
        """Return a token [] drawn on the logits' device: where the sum of weights passes a random share of all."""
        # A temperature that float32 takes for 0 would make NaN of the likeliest token.
        weights = ((logits - largest) / max(self.sampling.temperature, 1e-30)).exp()
        share = float(torch.rand((), generator=self.generator, dtype=torch.float64))
        if self.sampling.top_p == 1:
            return _passed(weights.cumsum(0), share)
        most, needed = TOP, weights.sum() * self.sampling.top_p
        while True:
            ordered, tokens = weights.topk(min(most, len(weights)))
            sums = ordered.cumsum(0)
            if most >= len(weights) or bool(sums[-1] >= needed):
                break
            most *= 16
        kept = ordered.masked_fill(sums - ordered >= needed, 0)
        # The likeliest token stays, however small the share is.
        kept[0] = ordered[0]
        return tokens[_passed(kept.cumsum(0), share)]


def _passed(sums: Tensor, share: float) -> Tensor:
    """Return the first place [] of rising sums that passes a share of the last; one that adds nothing never does."""
    point = torch.minimum(sums[-1] * share, sums[-1].nextafter(torch.zeros_like(sums[-1])))
    return torch.searchsorted(sums, point[None], right=True)[0].clamp_max(len(sums) - 1)


class RowRunner(Protocol):
    """What runs further rows after a table's: an adapter, or an adapter that reads a memory beside the table."""

    @property
    def device(self) -> torch.device: ...

    def embed(self, token_ids: Tensor) -> Tensor: ...

    def forward(self, batch: RowBatch, table: KVTable) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class DecodeStart:
    """Where decoding begins.

    Attributes:
        table: rows of the prompt; those of new tokens are appended to it.
        logits: of the last row, [vocab] float32.
        row: the first new token's row in the prompt.
        position: its position, the same on each axis.
        axes: how many axes positions have.
    """

    table: KVTable
    logits: Tensor
    row: int
    position: int
    axes: int

    @classmethod
    def after(cls, prompt: Prompt, linked: LinkedTable) -> Self:
        """Begin after a linked prompt."""
        return cls(linked.table, linked.logits, prompt.tokens, prompt.next_position, prompt.axes)


@torch.inference_mode()
def decode(
    runner: RowRunner, start: DecodeStart, sampler: Sampler, ends: Collection[int], most: int | None = None
) -> Iterator[int]:
    """Yield new tokens until an end token (yielded too) or `most` of them, by default what the sampling allows.

    A token's row is appended to the table when the next token is asked for.
    """
    most = sampler.sampling.max_new_tokens if most is None else most
    table, logits = start.table, start.logits
    for step in range(most):
        token = sampler(logits)
        yield token
        if token in ends or step + 1 == most:
            return
        # Filled in on the device: an upload of one number would be waited for.
        slots = table.allocate(torch.full((1,), start.row + step))
        batch = RowBatch(
            embeds=runner.embed(torch.tensor([token])),
            positions=torch.full((start.axes, 1), start.position + step, device=runner.device),
            slots=torch.full((1,), slots.start, device=runner.device),
            visual=torch.zeros(1, dtype=torch.bool, device=runner.device),
            deepstack=(),
            hidden_from=None,
            token_ids=torch.tensor([token]),
        )
        logits = runner.logits(runner.forward(batch, table))[0]
