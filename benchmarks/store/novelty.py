"""What a library still gains after a run of queries about nothing but new pieces.

A few pages are asked about, then new queries follow, each with a chunk never seen before, and then the pages again:
time to first token of adding them (encoder and prefill, where the store no longer has them) and linking a question,
against the same from nothing. The store is small: the pages fill half of its memory, and its disk holds some
hundred pieces. New pieces have random rows of a page's size. Two ways to keep the pages are compared: on the same terms
as everything else, and with a higher priority.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from benchmarks.store.hits import opened, size_of
from benchmarks.store.material import QUESTION, random_picture
from benchmarks.table import Plot, Table
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.policy.policy import Policy
from emblema.session.prompt_reader import PromptPart
from emblema.store.record import Terms
from emblema.store.store import Store

PAGES, SIDE = 4, 224
MEMORY, DISK = 2 * PAGES, 50 * PAGES
"""Pieces that memory and disk have room for."""
REPEATS = 3
SAVED_TOGETHER = 4
POLICIES = {"same terms": Terms(), "library at priority 1": Terms(priority=1)}


@dataclass(frozen=True, slots=True)
class NoveltyGain:
    """The pages asked about after so many new queries.

    Attributes:
        policy: how the pages are kept.
        queries: new ones since the pages were last used.
        found: share of the pages that the store still had, in memory or on disk.
        in_memory: share that it had in memory.
        seconds, scratch: time to first token with the store and from nothing, medians.
    """

    policy: str
    queries: int
    found: float
    in_memory: float
    seconds: float
    scratch: float

    @property
    def gain(self) -> float:
        """How many times faster than from nothing."""
        return self.scratch / self.seconds


def measure(
    folder: Path, model: Any, processor: Any, marks: Sequence[int], seed: int, screen: Console
) -> tuple[NoveltyGain, ...]:
    """Measure after each number of new queries in `marks`, under each policy."""
    random = np.random.default_rng([seed, 5])
    pictures = [random_picture(SIDE, random) for _ in range(PAGES)]
    found: list[NoveltyGain] = []
    total = len(POLICIES) * len(marks) * REPEATS
    with steps(screen, f"gain after {max(marks):,} new queries", total) as advance:
        nothing = Engine(model, processor, policy=Policy.quiet())
        _, pages = _answer(nothing, pictures, Terms())
        page = Chunk(pages[0].id, "image", pages[0].model, pages[0].encoded, tuple(pages[0].rows))
        for name, terms in POLICIES.items():
            memory, disk = _room(page)
            with Store(folder / f"novelty-{len(found)}", device_bytes=memory, disk_bytes=disk) as store:
                engine = Engine(model, processor, store=store, policy=Policy.quiet())
                _answer(engine, pictures, terms)
                for mark in marks:
                    rounds = []
                    for _ in range(REPEATS):
                        _empty(nothing)
                        scratch, _ = _answer(nothing, pictures, Terms())
                        rounds.append((*_after(engine, page, pictures, terms, mark, random), scratch))
                        advance()
                    held, warm, seconds, scratch = (median(column) for column in zip(*rounds, strict=True))
                    found.append(NoveltyGain(name, mark, held, warm, seconds, scratch))
    return tuple(found)


def _room(page: Chunk) -> tuple[int, int]:
    """Return bytes for memory and disk; half a piece more on disk, where a file has a header too."""
    size = size_of(page)
    return MEMORY * size, DISK * size + size // 2


def _after(
    engine: Engine,
    page: Chunk,
    pictures: Sequence[Image.Image],
    terms: Terms,
    queries: int,
    random: np.random.Generator,
) -> tuple[float, float, float]:
    """Return shares of the pages found, and found in memory, after new queries, and the seconds of asking then."""
    for index in range(queries):
        engine.store.put(new_chunk(page, random))
        if index % SAVED_TOGETHER == 0:
            engine.store.flush()
    engine.store.flush()
    hits, files = engine.store.statistics.hits, opened(engine.store)
    seconds, _ = _answer(engine, pictures, terms)
    hits, files = engine.store.statistics.hits - hits, opened(engine.store) - files
    engine.store.flush()
    # A page that comes from disk is opened twice.
    return hits / PAGES, (hits - files / 2) / PAGES, seconds


def _empty(engine: Engine) -> None:
    engine.forget_prompts()
    for id in engine.store.ids():
        engine.store.delete(id)


def _answer(engine: Engine, pictures: Sequence[Image.Image], terms: Terms) -> tuple[float, list[Chunk]]:
    """Return seconds from the pictures to the logits of the answer, and the chunks used."""
    began = time.perf_counter()
    pages = [page for page in (engine.add(picture, terms=terms) for picture in pictures) if isinstance(page, Chunk)]
    parts: list[PromptPart] = [*pages, QUESTION]
    engine.prefill(parts, "blind")
    return time.perf_counter() - began, pages


def new_chunk(page: Chunk, random: np.random.Generator) -> Chunk:
    """Return a piece of a page's size that was never asked about before."""
    generator = torch.Generator().manual_seed(int(random.integers(2**62)))
    rows = tuple(
        LayerRows(*(torch.randn(own.shape, generator=generator, dtype=own.dtype) for own in (layer.keys, layer.values)))
        for layer in page.rows
    )
    return Chunk(random.bytes(32).hex(), page.kind, page.model, page.encoded, rows)


def novelty_table(found: Sequence[NoveltyGain]) -> Table:
    """Return what the store had, and what that gained, by policy and number of new queries."""
    return Table(
        "novelty",
        "What a library gains after new queries about other things",
        f"{PAGES} pages are asked about, then so many new queries come with a chunk each that was never seen before, "
        f"then the pages again; memory has room for {MEMORY} pieces, the disk for {DISK}. Time to first token from the "
        "pictures: encoding and prefill where the store no longer has them; gain: how many times faster than from "
        "nothing.",
        ("kept", "new queries", "in memory", "in the store", "TTFT ms", "from nothing ms", "gain"),
        tuple(
            (case.policy, case.queries, case.in_memory, case.found, 1e3 * case.seconds, 1e3 * case.scratch, case.gain)
            for case in found
        ),
        (Plot("new queries", "gain", "kept", doubling=True),),
    )
