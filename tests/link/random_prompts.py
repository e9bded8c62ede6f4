"""Random prompts, and what `auto` knows of each: plain data from a seed, without a model or a store."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.patch import Patch
from emblema.link.lanes import Lane, Trial
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState, TextPart
from tests.link.pieces import chunk, zero_patch

ANCHOR = (1, 2)
SIZES = (1, 3, 6, 6, 12, 40, 80, 120, 160, 200, 300, 400)
KINDS = ("image", "page", "text")
Lanes = frozenset[tuple[str, Lane]]


@dataclass(frozen=True)
class Case:
    """A prompt, and all that a decision about it may depend on.

    Attributes:
        prompt: the prompt.
        policy: the engine's bounds.
        own: the request's; None for the engine's.
        trial: a lane to be measured.
        ranks: of the stored patches, by key.
        prefix: rows at the front that a kept table has; 0 for none.
        closed: kinds and lanes that are not trusted.
        plateau: rank from which on patches do not gain.
        recurs: whether the list of chunks was met lately.
        unsure, continued: shares, see `RowCosts`.
        least_margin: of all lanes.
        forward, taken: costs in computed rows.
        second_pass: whether a second pass can be carried out.
        seen: new chunks that came before.
    """

    prompt: Prompt
    policy: Policy
    own: Policy | None
    trial: Trial | None
    ranks: dict[ArtifactKey, int]
    prefix: int
    closed: Lanes
    plateau: int | None
    recurs: bool
    unsure: float
    continued: float
    least_margin: float
    forward: float
    taken: float
    second_pass: bool
    seen: frozenset[str]

    def find(self, key: ArtifactKey) -> Patch | None:
        """The stored patch of a key."""
        return patch_of(self.ranks[key]) if key in self.ranks else None


def cases(seed: int, count: int) -> Iterator[Case]:
    """Yield so many cases of a seed."""
    draws = random.Random(seed)
    chunks = [replace(chunk(index, size), kind=KINDS[index % len(KINDS)], rows=()) for index, size in enumerate(SIZES)]
    for _ in range(count):
        yield _case(draws, chunks)


def _case(draws: random.Random, chunks: list[Chunk]) -> Case:
    prompt = _prompt(draws, chunks)
    policy, own = _policy(draws), _policy(draws) if draws.random() < 0.2 else None
    stored = draws.choice((0.0, 0.0, 0.3, 0.9))
    ranks = {
        ArtifactKey("model", held.id, prompt.antecedents(segment)): draws.choice((1, 4, 16))
        for segment, held in prompt.chunk_segments
        if draws.random() < stored
    }
    closable = [(kind, lane) for kind in KINDS for lane in (Lane.PATCH, Lane.QUERY, Lane.SURVIVOR)]
    closing = draws.choice((0.0, 0.0, 0.4))
    lane = draws.choice((Lane.PATCH, Lane.QUERY, Lane.SURVIVOR))
    new = [part.chunk.id for part in prompt.chunk_parts if part.state is RowState.MISSING]
    return Case(
        prompt,
        policy,
        own,
        Trial(draws.choice(KINDS), lane) if draws.random() < 0.1 else None,
        ranks,
        draws.randrange(prompt.tokens + 1) if draws.random() < 0.3 else 0,
        frozenset(pair for pair in closable if draws.random() < closing),
        draws.choice((None, None, 3)),
        draws.random() < 0.2,
        draws.choice((0.0, 0.1, 0.5)),
        draws.choice((0.0, 0.0, 0.8)),
        draws.choice((0.0, 0.5, 0.35)),
        draws.choices((64.0, 0.0, 300.0), (6, 3, 1))[0],
        draws.choices((0.1, 0.02, 1.0), (6, 2, 1))[0],
        draws.random() < 0.9,
        frozenset(id for id in new if draws.random() < 0.5),
    )


def _prompt(draws: random.Random, chunks: list[Chunk]) -> Prompt:
    """Text and chunks in any order: stored, new, written in a window, slid, the same twice."""
    opened = draws.random() < 0.5
    parts: list[Part] = [TextPart(ANCHOR)] if opened else []
    kind = draws.choice(("window", "mixed", "known", "known", "known"))
    for _ in range(draws.randint(1, 7)):
        if draws.random() < (0.1 if kind == "known" else 0.3):
            parts.append(TextPart(tuple(range(3, 3 + draws.choice((1, 2, 5, 60))))))
            continue
        held = draws.choice(chunks[5:] if kind == "known" else chunks)
        if kind == "window":
            parts.append(_window_part(draws, held))
        elif kind == "known":
            parts.append(ChunkPart(held, state=RowState.MISSING if draws.random() < 0.15 else RowState.CANONICAL))
        else:
            parts.append(ChunkPart(held, state=draws.choices(list(RowState), (8, 1, 2))[0]))
    if draws.random() < 0.8 or (isinstance(parts[-1], ChunkPart) and parts[-1].slid):
        parts.append(TextPart(tuple(range(70, 70 + draws.choice((1, 8, 30))))))
    return Prompt.of(parts, 1)


def _window_part(draws: random.Random, held: Chunk) -> ChunkPart:
    state = draws.choice(list(RowState))
    written = state is RowState.WRITTEN
    return ChunkPart(
        held,
        slid=draws.random() < 0.2,
        state=state,
        source=draws.choice((None, None, "")) if held.kind == "text" else None,
        kept_after_slide=written and draws.random() < 0.5,
        distrusted=held if state is RowState.MISSING and draws.random() < 0.5 else None,
        repair=patch_of(1) if written and draws.random() < 0.2 else None,
    )


def _policy(draws: random.Random) -> Policy:
    return Policy(
        max_kl=draws.choices((0.05, 0, None), (8, 1, 1))[0],
        rank=draws.choice((None, None, 3)),
        share=draws.choice((0.25, 0.03, 1.0)),
        query_share=draws.choices((0.25, 0.1, 0.6, 0), (6, 2, 1, 1))[0],
        margin=draws.choice((None, None, 0.3)),
        forming=draws.random() < 0.9,
    )


@cache
def patch_of(rank: int) -> Patch:
    """A patch of zeros of a rank, made once."""
    return zero_patch(16, rank)
