"""One set of canonical chunks shared by many contexts: what each further context costs, and what that buys.

A context is an ordered choice of pages out of a pool. Kept as a prefix cache would keep it, each has a whole KV table;
here the pages are kept once and a context adds the patches that it needs and that no context before it left behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.intervals import Interval, bootstrap
from benchmarks.tasks import Episode, generate
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.eval.metrics import divergence
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.kv.layout import kv_bytes
from emblema.link.policy.policy import Policy
from emblema.session.prompt_reader import PromptPart

TABLES, BLIND = "a KV table each", "blind"
PATCHED = ("patch-6%", "patch-25%")
PAGES = 3
GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class Sharing:
    """One way to keep the contexts.

    Attributes:
        name: whole tables, or the strategy whose patches are kept beside the shared chunks.
        canonical: bytes of the shared chunks, embeddings not counted; 0 for tables.
        growth: bytes kept after each context, canonical ones included.
        divergence: KL from re-prefill at the answer, nats; exactly 0 for tables.
    """

    name: str
    canonical: int
    growth: tuple[int, ...]
    divergence: Interval

    @property
    def per_context(self) -> float:
        """Bytes that a further context adds, over all measured."""
        return (self.growth[-1] - self.canonical) / len(self.growth)

    @property
    def per_gigabyte(self) -> float:
        """Contexts in a GB; infinite where they add nothing."""
        return (GIGABYTE - self.canonical) / self.per_context if self.per_context else float("inf")


@dataclass(frozen=True, slots=True)
class SharingResult:
    """All ways, on the same contexts: `pool` pages to choose from, `tokens` rows in a context's prompt on average."""

    pool: int
    contexts: int
    tokens: float
    ways: tuple[Sharing, ...]

    def way(self, name: str) -> Sharing:
        return next(one for one in self.ways if one.name == name)


def measure(model: Any, processor: Any, contexts: int, seed: int, screen: Console) -> SharingResult:
    """Ask one question in each of `contexts` contexts over the pages of an atlas, under every strategy."""
    random = np.random.default_rng([seed, 6])
    episode = next(generate("atlas", seed, 1))
    chosen = [context_of(episode, random) for _ in range(contexts)]
    ways, tokens = [], 0.0
    references: list[np.ndarray] = []
    with steps(screen, f"{contexts} contexts over one set of pages", contexts * (2 + len(PATCHED))) as advance:
        for name in (TABLES, BLIND, *PATCHED):
            engine = Engine(model, processor, policy=Policy.quiet())
            pages = [_add(engine, page.image()) for page in episode.pages if hasattr(page, "image")]
            canonical = 0 if name == TABLES else sum(page.bytes for page in pages)
            held = canonical
            growth: list[int] = []
            lengths: list[int] = []
            losses: list[float] = []
            for places, question in chosen:
                parts: list[PromptPart] = [*(pages[place] for place in places), question]
                prefill = engine.prefill(parts, _strategy(name))
                logits = prefill.logits.float().numpy()
                if name == TABLES:
                    references.append(logits)
                    held += kv_bytes(prefill.kv)
                else:
                    held = canonical + _patch_bytes(engine)
                growth.append(held)
                losses.append(divergence(references[len(losses)], logits))
                lengths.append(prefill.usage.prompt_tokens)
                advance()
            tokens = mean(lengths)
            # No episodes to draw from: contexts themselves are drawn.
            ways.append(Sharing(name, canonical, tuple(growth), bootstrap(losses, range(len(losses)))))
    return SharingResult(len(episode.pages), contexts, tokens, tuple(ways))


def context_of(episode: Episode, random: np.random.Generator) -> tuple[tuple[int, ...], str]:
    """A question, and the places of `PAGES` pages: those that it needs and random ones, shuffled."""
    questions = [one for one in episode.questions if len(one.pages) < PAGES]
    question = questions[int(random.integers(len(questions)))]
    others = [place for place in range(len(episode.pages)) if place not in question.pages]
    fill = random.choice(others, PAGES - len(question.pages), replace=False)
    places: Sequence[int] = [*question.pages, *(int(one) for one in fill)]
    return tuple(int(one) for one in random.permutation(places)), question.text


def _strategy(name: str) -> str:
    return "full" if name == TABLES else name


def _patch_bytes(engine: Engine) -> int:
    """Bytes of the patches alone: what the store holds beyond chunks and their embeddings."""
    found = engine.store.statistics
    chunks = [engine.store.get(id) for id in engine.store.ids()]
    return found.bytes - sum(chunk.bytes + chunk.encoded.bytes for chunk in chunks)


def _add(engine: Engine, picture: Any) -> Chunk:
    found = engine.add(picture)
    if not isinstance(found, Chunk):
        raise EmblemaError("a page became a clip: these tasks are made of pictures")
    return found
