"""Chunks and prompts without a model, for tests of plans."""

import torch
from hypothesis import strategies as st

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.patch import Patch, form_patch
from emblema.link.prompt import ChunkPart, Part, Prompt, TextPart
from emblema.link.strategies.base import Knowledge, PrefixMatch

LAYERS = 4
LAYOUTS = tuple(LayerLayout((2, 8), (2, 8), None) for _ in range(LAYERS))


def chunk(name: int, tokens: int, groups: bool = False) -> Chunk:
    """A chunk of so many tokens whose rows are zeros."""
    line = torch.arange(tokens)
    encoded = Encoded(
        token_ids=torch.full((tokens,), 100 + name),
        embeds=torch.zeros(tokens, 4),
        positions=line[None],
        span=tokens,
        visual=torch.ones(tokens, dtype=torch.bool),
        deepstack=(),
        groups=torch.zeros(tokens, dtype=torch.int64) if groups else torch.full((tokens,), -1),
    )
    rows = tuple(LayerRows(torch.zeros(2, tokens, 8), torch.zeros(2, tokens, 8)) for _ in range(LAYERS))
    return Chunk(f"{name:064x}", "image", "model", encoded, rows)


def zero_patch(tokens: int, rank: int) -> Patch:
    """A patch of zeros of some rank, on every layer."""
    nothing = LayerRows(torch.zeros(2, tokens, 8), torch.zeros(2, tokens, 8))
    return form_patch([nothing] * LAYERS, rank, torch.float32)


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Text and chunks in any order, some of the chunks slid, some twice."""
    kinds = draw(st.lists(st.sampled_from(["text", "chunk", "slid"]), min_size=1, max_size=7))
    parts: list[Part] = []
    for kind in kinds:
        if kind == "text":
            parts.append(TextPart(tuple(draw(st.lists(st.integers(0, 50), min_size=1, max_size=5)))))
        else:
            name = draw(st.integers(0, 3))
            parts.append(ChunkPart(chunk(name, 3 + name), slid=kind == "slid"))
    if isinstance(parts[-1], ChunkPart) and parts[-1].slid:
        parts.append(TextPart((0,)))
    return Prompt.of(parts, 1)


@st.composite
def knowledges(draw: st.DrawFn) -> Knowledge:
    """A store that may have every patch, some rank of it or none, and may hold a prefix of any length."""
    rank = draw(st.integers(0, 16))
    prefix = draw(st.integers(0, 40))

    def find_prefix(prompt: Prompt) -> PrefixMatch | None:
        return PrefixMatch("kept", min(prefix, prompt.tokens)) if prefix else None

    return Knowledge("model", LAYOUTS, lambda key: zero_patch(6, rank) if rank else None, find_prefix)


def knowledge() -> Knowledge:
    """A store that has nothing."""
    return Knowledge("model", LAYOUTS, lambda key: None, lambda prompt: None)
