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


TOP = 256
"""Likeliest tokens that are put in order at first to find the smallest set of a probability."""


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
        largest, likeliest = logits.max(dim=0)
        token = likeliest if self.sampling.temperature == 0 else self._drawn(logits, largest)
        # The largest is NaN where any is. Both come from the device at once; float32 holds any token.
        known, chosen = torch.stack((largest, token.to(largest.dtype))).tolist()
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
        )
        logits = runner.logits(runner.forward(batch, table))[0]
