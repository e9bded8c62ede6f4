"""Decoding from a linked table: one token at a time, greedy or sampled, in the same rows that the prefill left."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.errors import PromptError
from emblema.link.executor import Linked
from emblema.link.prompt import Prompt
from emblema.models.adapter import Adapter, RowBatch


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

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

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise PromptError(f"max_new_tokens is {self.max_new_tokens}: it must be 1 or more")
        if not 0 <= self.temperature <= 100:
            raise PromptError(f"temperature is {self.temperature}: it must lie between 0 and 100")
        if not 0 < self.top_p <= 1:
            raise PromptError(f"top_p is {self.top_p}: it must be above 0 and at most 1")
        if any(not text for text in self.stop):
            raise PromptError("a stop string is empty: leave it out")


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
        """The next token for logits [vocab] float32."""
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        weights = torch.softmax(logits.cpu().double() / self.sampling.temperature, dim=0)
        ordered, tokens = weights.sort(descending=True)
        before = ordered.cumsum(0) - ordered
        ordered[before >= self.sampling.top_p] = 0
        return int(tokens[torch.multinomial(ordered, 1, generator=self.generator)])


@torch.inference_mode()
def decode(adapter: Adapter, linked: Linked, prompt: Prompt, sampler: Sampler, ends: Collection[int]) -> Iterator[int]:
    """Yield new tokens until an end token (yielded too) or `max_new_tokens`; appends their rows to the linked table."""
    table, logits = linked.table, linked.logits
    for step in range(sampler.sampling.max_new_tokens):
        token = sampler(logits)
        yield token
        if token in ends or step + 1 == sampler.sampling.max_new_tokens:
            return
        row = torch.tensor([prompt.tokens + step], device=adapter.device)
        slots = table.allocate(row, torch.full_like(row, -1))
        batch = RowBatch(
            embeds=adapter.embed(torch.tensor([token], device=adapter.device)),
            positions=torch.full((prompt.axes, 1), prompt.next_position + step, device=adapter.device),
            slots=torch.arange(slots.start, slots.stop, device=adapter.device),
            visual=torch.zeros(1, dtype=torch.bool, device=adapter.device),
            deepstack=(),
            hidden_from=None,
        )
        logits = adapter.logits(adapter.forward(batch, table))[0]
