"""What a prefill really did, and what a caller is told of it."""

from dataclasses import dataclass

from emblema.link.plan import LinkPlan


@dataclass(frozen=True, slots=True)
class LinkTrace:
    """Counts of one executed plan.

    Attributes:
        computed: rows computed in at least one layer.
        cached: rows taken in every layer.
        patched: cached rows with a patch.
        absent: rows that the prompt names and the table never held.
        row_layers: rows computed, summed over layers.
        bytes_read: bytes of KV read from chunks and kept prefixes, patches aside.
        patch_bytes: bytes of patches added.
        selected: per selector, the rows that it chose to go on computing.
        seconds: wall time of assembling and of the forwards.
        residual_bytes: bytes of kept residual streams that rows began from.
    """

    computed: int
    cached: int
    patched: int
    absent: int
    row_layers: int
    bytes_read: int
    patch_bytes: int
    selected: tuple[tuple[int, ...], ...]
    seconds: float
    residual_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a reply cost.

    Attributes:
        lane: the strategy taken; `auto:` stands before what `auto` chose.
        prompt_tokens: `cached_tokens + computed_tokens`.
        cached_tokens: rows taken in every layer.
        computed_tokens: rows computed.
        patched_tokens: those of the cached ones that have a patch.
        forming_tokens: rows run to form patches.
        recaptured_tokens: rows of chunks whose stored KV was lost, prefilled alone once more.
        linked_tokens: rows of chunks set in while decoding.
        ttft_seconds: from the call, forming included, to the first token; for a prefill alone, to its logits.
        completion_tokens: tokens made, the end token too.
        fallback: why the lane is not the strategy asked for, or what it could not do as asked; None if all is as asked.
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
    fallback: str | None = None

    @classmethod
    def of(
        cls, plan: LinkPlan, trace: LinkTrace, *, forming: int, recaptured: int, seconds: float, fallback: str | None
    ) -> "Usage":
        """The usage of one executed plan."""
        return cls(
            lane=plan.strategy,
            prompt_tokens=trace.cached + trace.computed,
            cached_tokens=trace.cached,
            computed_tokens=trace.computed,
            patched_tokens=trace.patched,
            forming_tokens=forming,
            ttft_seconds=seconds,
            recaptured_tokens=recaptured,
            fallback=fallback,
        )
