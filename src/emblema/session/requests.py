"""A request to link a prompt, and the prefill that answers it."""

import time
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from emblema.errors import PromptError
from emblema.kv.layout import KVRows
from emblema.link.executor import LinkedTable, LinkTrace
from emblema.link.misses import Miss
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Strategy
from emblema.models.tables import KVTable

SurvivorChoice = Literal["drop", "keep"]


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """A prompt to link.

    Attributes:
        prompt: the prompt as rows.
        strategy: a strategy, or its name.
        reserve: rows to keep room for after the prompt.
        table: a linked table to continue; None begins a new one.
        reused_rows: rows at the prompt's front that the table holds.
        inline_media: whether parts without rows are media that came with the prompt, to be made into chunks if they
            come again. A window's are its own.
        survivors: `keep` takes rows that an earlier request of the conversation had, and keeps its own for the next.
        compared: whether it is linked again to compare an answer: nothing is learnt of it but patches.
        began: `time.perf_counter` at the caller's call; time to first token counts from it.

    Raises:
        PromptError: there is no such choice of survivors.
    """

    prompt: Prompt
    strategy: str | Strategy = "auto"
    reserve: int = 0
    table: KVTable | None = None
    reused_rows: int = 0
    inline_media: bool = False
    survivors: SurvivorChoice = "drop"
    compared: bool = False
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        if self.survivors not in ("drop", "keep"):
            raise PromptError(f"survivors is {self.survivors!r}: choose drop or keep")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a reply cost.

    Attributes:
        lane: the strategy taken; `auto:` and its lanes for what `auto` chose.
        prompt_tokens: `cached_tokens + computed_tokens`.
        cached_tokens: rows taken in every layer.
        computed_tokens: rows computed.
        patched_tokens: those of the cached ones that have a patch.
        forming_tokens: rows run to form patches.
        recaptured_tokens: rows of chunks whose stored KV was lost, prefilled alone once more.
        captured_tokens: rows of new media that came with the prompt, prefilled alone before it was linked.
        linked_tokens: rows of chunks linked while decoding.
        repeated_tokens: rows computed a second time: the question's, and all of a first attempt that did not count.
        margin: by how much the two likeliest first tokens' probabilities differed over linked rows; None over exact
            ones. An answer that was not sure enough is full prefill's, and the margin is the first attempt's.
        ttft_seconds: from the call, forming included, to the first token; for a prefill alone, to its logits.
        completion_tokens: tokens made, the end token too.
        finite: whether the first attempt's logits were finite; where they were not, the answer is full prefill's.
        fallback: why the lane is not the strategy asked for, or what it could not do as asked; None if all is as asked.
        misses: media of which no row was taken, and why.
    """

    lane: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    patched_tokens: int
    forming_tokens: int
    ttft_seconds: float
    completion_tokens: int = 0
    recaptured_tokens: int = 0
    linked_tokens: int = 0
    captured_tokens: int = 0
    repeated_tokens: int = 0
    margin: float | None = None
    finite: bool = True
    fallback: str | None = None
    misses: tuple[Miss, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefill:
    """A linked prompt, ready to decode from.

    Attributes:
        prompt: the prompt as rows.
        plan: the plan that was carried out.
        usage: what it cost.
        linked: the executor's result; decoding appends to its table.
        remark: what the reply will say of its prompt; see `Reply`.
    """

    prompt: Prompt
    plan: LinkPlan
    usage: Usage
    linked: LinkedTable = field(repr=False)
    remark: str | None = None

    @property
    def logits(self) -> Tensor:
        """Logits of the last position, [vocab] float32."""
        return self.linked.logits

    @property
    def kv(self) -> KVRows:
        """Per layer, the rows of the linked prompt in the family's own layout (absent rows left out), as views."""
        return tuple(self.linked.table.read(layer, 0, self.linked.rows) for layer in range(self.plan.layers))

    @property
    def token_ids(self) -> Tensor:
        """The prompt's tokens, [tokens] int64."""
        return self.prompt.token_ids

    @property
    def trace(self) -> LinkTrace:
        """What really ran."""
        return self.linked.trace
