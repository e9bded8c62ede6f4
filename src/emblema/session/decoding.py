"""Decoding from a linked table: a token at a time, greedy or sampled, in the same rows that the prefill left."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypedDict

import torch
from torch import Tensor

from emblema.errors import ModelError, PromptError
from emblema.link.executor import LinkedTable
from emblema.link.prompt import Prompt
from emblema.models.batch import RowBatch
from emblema.models.table import KVTable

NOT_FINITE = "the model's logits are not finite: the reply cannot go on"


class SamplingKnobs(TypedDict, total=False):
    """`Sampling`'s attributes as callers write them: `stop` may be a string, several, or None."""

    max_new_tokens: int
    temperature: float
    top_p: float
    stop: str | Sequence[str] | None
    seed: int | None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Nothing is taken from the model's generation configuration but its end tokens.

    Attributes:
        max_new_tokens: at most so many tokens.
        temperature: 0 is greedy.
        top_p: the smallest set of tokens with this probability is sampled from.
        stop: strings that end the reply; not part of it.
        seed: of the sampler; None draws one.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None

    @classmethod
    def of(cls, *, stop: str | Sequence[str] | None = None, **knobs: Any) -> Self:
        """Return sampling as callers write it: a stop string, several, or None.

        Raises:
            PromptError: a knob is out of range, or there is no such knob.
        """
        if stop is not None and not isinstance(stop, str | list | tuple):
            raise PromptError(f"stop is a {type(stop).__name__}: give a string, a list of strings, or None")
        unknown = sorted(knobs.keys() - {"max_new_tokens", "temperature", "top_p", "seed"})
        if unknown:
            raise PromptError(f"there is no sampling knob {unknown[0]!r}")
        return cls(stop=(stop,) if isinstance(stop, str) else tuple(stop or ()), **knobs)

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


class Sampler:
    """Chooses tokens from logits; holds its own random state."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.generator = torch.Generator()
        if sampling.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(sampling.seed)

    def __call__(self, logits: Tensor) -> int:
        """Return the next token for logits [vocab] float32.

        Raises:
            ModelError: they are not finite.
        """
        # The largest is NaN where any is. Both come from the device at once.
        largest, token = torch.stack([each.double() for each in logits.max(dim=0)]).cpu().tolist()
        if not math.isfinite(largest):
            raise ModelError(NOT_FINITE)
        if self.sampling.temperature == 0:
            return int(token)
        scores = logits.cpu().double()
        weights = torch.softmax((scores - scores.max()) / self.sampling.temperature, dim=0)
        ordered, tokens = weights.sort(descending=True)
        before = ordered.cumsum(0) - ordered
        ordered[before >= self.sampling.top_p] = 0
        return int(tokens[torch.multinomial(ordered, 1, generator=self.generator)])


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
        row = torch.tensor([start.row + step], device=runner.device)
        slots = table.allocate(row, torch.full_like(row, -1))
        batch = RowBatch(
            embeds=runner.embed(torch.tensor([token])),
            positions=torch.full((start.axes, 1), start.position + step, device=runner.device),
            slots=torch.arange(slots.start, slots.stop, device=runner.device),
            visual=torch.zeros(1, dtype=torch.bool, device=runner.device),
            deepstack=(),
            hidden_from=None,
        )
        logits = runner.logits(runner.forward(batch, table))[0]
