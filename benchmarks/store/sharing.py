"""One set of canonical chunks shared by many contexts: what each further context costs, and what that buys.

A context is an ordered choice of pages out of a pool. Kept as a prefix cache would keep it, each has a whole KV table;
here the pages are kept once and a context adds the patches that it needs and that no context before it left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.intervals import Interval, bootstrap
from benchmarks.plots import COLOURS, draw_legend, make_panels, save_figure, style_panel
from benchmarks.table import Plot, Table
from benchmarks.tasks import Episode, generate
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.kv.layout import kv_bytes
from emblema.link.policy.fidelity import divergence
from emblema.link.policy.policy import Policy
from emblema.session.prompt_reader import PromptPart

TABLES, BLIND = "a KV table each", "blind"
PATCHED = ("patch-6%", "patch-25%")
PAGES = 3
GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class SharingWay:
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
    ways: tuple[SharingWay, ...]

    def way(self, name: str) -> SharingWay:
        """Return a way by its name."""
        return next(way for way in self.ways if way.name == name)


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
                prefill = engine.prefill(parts, "full" if name == TABLES else name)
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
            ways.append(SharingWay(name, canonical, tuple(growth), bootstrap(losses, range(len(losses)))))
    return SharingResult(len(episode.pages), contexts, tokens, tuple(ways))


def context_of(episode: Episode, random: np.random.Generator) -> tuple[tuple[int, ...], str]:
    """Return a question, and the places of `PAGES` pages: those that it needs and random ones, shuffled."""
    questions = [question for question in episode.questions if len(question.pages) < PAGES]
    question = questions[int(random.integers(len(questions)))]
    others = [place for place in range(len(episode.pages)) if place not in question.pages]
    fill = random.choice(others, PAGES - len(question.pages), replace=False)
    places: Sequence[int] = [*question.pages, *(int(place) for place in fill)]
    return tuple(int(place) for place in random.permutation(places)), question.text


def _patch_bytes(engine: Engine) -> int:
    """Return bytes of the patches alone: what the store holds beyond chunks and their embeddings."""
    found = engine.store.statistics
    chunks = [engine.store.get(id) for id in engine.store.ids()]
    return found.bytes - sum(chunk.bytes + chunk.encoded.bytes for chunk in chunks)


def _add(engine: Engine, picture: Any) -> Chunk:
    found = engine.add(picture)
    if not isinstance(found, Chunk):
        raise EmblemaError("a page became a clip: these tasks are made of pictures")
    return found


def sharing_table(found: SharingResult) -> Table:
    """Return what each way keeps for a context, and what that costs in fidelity."""
    tables = found.way(TABLES)
    return Table(
        "sharing",
        "Contexts over shared chunks",
        f"{found.contexts} contexts, each {PAGES} of {found.pool} pages in an order of its own, {found.tokens:.0f} "
        "rows on average. KL from re-prefill at the answer, nats, with its 95 % interval over contexts. Contexts in a "
        "GB (1e9 bytes) if further ones cost what these did, and over those of whole tables; nothing where there is no "
        "bound.",
        ("kept", "MB shared", "kB a context", "contexts a GB", "over tables", "KL"),
        tuple(
            (
                way.name,
                way.canonical / 1e6,
                way.per_context / 1e3,
                way.per_gigabyte if way.per_context else None,
                way.per_gigabyte / tables.per_gigabyte if way.per_context else None,
                way.divergence,
            )
            for way in found.ways
        ),
        (Plot("kept", "contexts a GB", bars=True),),
    )


def draw_growth(found: SharingResult, folder: Path) -> Path:
    """Draw the bytes kept context by context; return the picture's path."""
    figure, (axes,) = make_panels(1, "Kept after each context", width=6.4)
    for way, colour in zip(found.ways, COLOURS, strict=False):
        kept = np.array([way.canonical, *way.growth]) / 1e6
        axes.plot(range(len(kept)), kept, color=colour, label=way.name, linewidth=2)
    axes.set_xlim(0)
    axes.set_ylim(bottom=0)
    style_panel(axes, "", "contexts", "MB kept")
    draw_legend(axes, loc="upper left")
    return save_figure(figure, folder, "store-growth")
