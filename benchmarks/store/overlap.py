"""Time to first token with KV on disk, in memory, and not at all; and how much of a load is hidden by computing.

What is timed runs from the chunks' ids to the logits of the answer: look-ups, the prompt, the linked prefill. Before
everything that is called cold the files are out of the page cache and the store has just been opened: nothing of a
chunk, its embeddings included, is in memory.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.intervals import Interval
from benchmarks.store.material import QUESTION, cooled, random_picture
from benchmarks.table import Plot, Table
from emblema.engine.engine import Engine
from emblema.errors import StoreError
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.link.policy.policy import Policy
from emblema.session.linker import Linker
from emblema.session.prompt_reader import PromptPart
from emblema.session.requests import LinkRequest, Prefill
from emblema.store.settings import StoreSettings
from emblema.store.store import Store, TenantStore

RECOMPUTE, MEMORY, DISK, LOAD = "recompute", "memory", "disk, cold", "load alone, cold"
MIXED_MEMORY, MIXED_DISK, MIXED_LOAD = "half missing, rest in memory", "half missing, rest on disk", "load of the rest"
LANES = (RECOMPUTE, MEMORY, DISK, LOAD, MIXED_MEMORY, MIXED_DISK, MIXED_LOAD)


@dataclass(frozen=True, slots=True)
class Overlap:
    """One model.

    Attributes:
        model: its name.
        parameters: of the model.
        chunks, tokens, bytes: of the prompt: chunks, tokens, and bytes of the files with the chunks' KV.
        seconds: of every round, by lane.
        residency: the largest share of a file in the page cache before a cold lane; NaN where unknown.
        gap: the largest difference of a logit between KV from disk and KV from memory.
    """

    model: str
    parameters: int
    chunks: int
    tokens: int
    bytes: int
    seconds: dict[str, tuple[float, ...]]
    residency: float
    gap: float

    def median(self, lane: str) -> float:
        """Return seconds."""
        return median(self.seconds[lane])

    @property
    def hidden(self) -> Interval:
        """The share of loading everything that the linked prefill did not wait for; median and quartiles of rounds.

        It is not clipped: below 0 more was lost than the load takes by itself.
        """
        return _hidden(self.seconds, DISK, MEMORY, LOAD)

    @property
    def hidden_by_misses(self) -> Interval:
        """The same where half of the chunks are prefilled again while the other half loads."""
        return _hidden(self.seconds, MIXED_DISK, MIXED_MEMORY, MIXED_LOAD)


def _hidden(seconds: dict[str, tuple[float, ...]], disk: str, memory: str, load: str) -> Interval:
    """Return the share of a load that was not waited for, by round."""
    shares = 1 - np.subtract(seconds[disk], seconds[memory]) / np.array(seconds[load])
    low, high = np.quantile(shares, (0.25, 0.75))
    return Interval(float(np.median(shares)), float(low), float(high))


class OverlapBench:
    """One model, its pictures' chunks in two folders: all of them in one, half of them in the other."""

    def __init__(self, folder: Path, name: str, model: Any, processor: Any, sides: Sequence[int], seed: int) -> None:
        self.name, self.model = name, model
        self.engine = Engine(model, processor, policy=Policy.quiet())
        random = np.random.default_rng([seed, 3])
        pictures = [random_picture(side, random) for side in sides]
        self.chunks = [chunk for chunk in map(self.engine.add, pictures) if isinstance(chunk, Chunk)]
        half = len(self.chunks) // 2
        self.all, self.rest = folder / f"{name}-all", folder / f"{name}-rest"
        for place, kept in ((self.all, self.chunks), (self.rest, self.chunks[:half])):
            with Store(place) as store:
                for chunk in kept:
                    store.tenant().put(Chunk(chunk.id, chunk.kind, chunk.model, chunk.encoded, tuple(chunk.rows)))
        self.lost = self.chunks[half:]
        self.residency = self.gap = 0.0
        self.seconds: dict[str, list[float]] = {lane: [] for lane in LANES}
        # What runs for the first time is slower in whichever lane it comes.
        self.link(self.engine.store, "blind")

    def files(self, folder: Path) -> list[Path]:
        """Return the files of the chunks in a folder."""
        return sorted((folder / "pieces").rglob("*.safetensors"))

    def cool(self, folder: Path) -> None:
        """Empty the page cache of a folder's files."""
        self.residency = max(self.residency, cooled(self.files(folder)))

    def time(self, lane: str, action: Callable[[], Any]) -> Any:
        """Do something as a lane of this round."""
        began = time.perf_counter()
        found = action()
        self.seconds[lane].append(time.perf_counter() - began)
        return found

    def link(self, view: TenantStore, strategy: str, lost: Sequence[Chunk] = ()) -> Prefill:
        """Link from ids to logits; the chunks that are lost come after the others."""
        wanted = [chunk.id for chunk in self.chunks if chunk not in lost]
        parts: list[PromptPart] = [*map(view.get, wanted), *lost, QUESTION]
        prompt = self.engine.prompt(parts)
        return Linker(self.engine.adapter, view).link(LinkRequest(prompt, strategy))

    def bring(self, view: TenantStore, ids: Sequence[str]) -> None:
        """Bring everything of some chunks into memory."""
        for id in ids:
            view.get(id)
        with view.lease(ids) as lease:
            if lease.missing:
                raise StoreError(f"{len(lease.missing)} chunks are not on disk: nothing to measure")
            for rows in lease.rows.values():
                list(rows)

    def round(self) -> None:
        """Time every lane once."""
        kept = [chunk.id for chunk in self.chunks]
        self.cool(self.all)
        with Store(self.all) as store:
            view = store.tenant()
            self.time(LOAD, lambda: self.bring(view, kept))
            memory = self.time(MEMORY, lambda: self.link(view, "blind"))
            self.time(RECOMPUTE, lambda: self.link(view, "full"))
        self.cool(self.all)
        with Store(self.all) as store:
            disk = self.time(DISK, lambda: self.link(store.tenant(), "blind"))
        self.gap = max(self.gap, float((disk.linked.logits - memory.linked.logits).abs().max()))
        kept = kept[: len(kept) - len(self.lost)]
        self.cool(self.rest)
        # Under write-back nothing is written while the answer is computed, in neither lane.
        with Store(self.rest, settings=StoreSettings(write="back")) as store:
            view = store.tenant()
            self.mixed(MIXED_DISK, view)
            self.bring(view, kept)
            self.mixed(MIXED_MEMORY, view)
        self.cool(self.rest)
        with Store(self.rest) as store:
            self.time(MIXED_LOAD, lambda: self.bring(store.tenant(), kept))

    def mixed(self, lane: str, view: TenantStore) -> None:
        """Link while half of the chunks are lost and prefilled again."""
        outcome = self.time(lane, lambda: self.link(view, "blind", self.lost))
        if outcome.usage.recaptured_tokens != sum(chunk.tokens for chunk in self.lost):
            raise StoreError(
                f"{outcome.usage.recaptured_tokens} rows were prefilled again, not those of the missing half"
            )
        for chunk in self.lost:
            view.delete(chunk.id)


def measure(
    folder: Path,
    name: str,
    model: Any,
    processor: Any,
    sides: Sequence[int],
    rounds: int,
    seed: int,
    screen: Console,
) -> Overlap:
    """Link a prompt of one picture for each of `sides` (pixels) and a question, in every lane, `rounds` times."""
    with steps(screen, f"linked prompts on {name}", rounds + 1) as advance:
        bench = OverlapBench(folder, name, model, processor, sides, seed)
        advance()
        for _ in range(rounds):
            bench.round()
            advance()
    files = bench.files(bench.all)
    parts: list[PromptPart] = [*bench.chunks, QUESTION]
    return Overlap(
        model=name,
        parameters=sum(weights.numel() for weights in model.parameters()),
        chunks=len(bench.chunks),
        tokens=bench.engine.prompt(parts).tokens,
        bytes=sum(path.stat().st_size for path in files),
        seconds={lane: tuple(found) for lane, found in bench.seconds.items()},
        residency=bench.residency,
        gap=bench.gap,
    )


def overlap_table(found: Overlap, number: int) -> Table:
    """Return the time to first token by where the KV is; `number` of the model among those that were measured."""
    memory = found.median(MEMORY)
    return Table(
        f"overlap-{number}" if number else "overlap",
        f"Time to first token by where the KV is: {found.model}, {found.parameters / 1e6:.1f} M parameters",
        f"{found.chunks} chunks, {found.tokens:,} rows, {found.bytes / 1e6:.1f} MB of files; medians of "
        f"{len(found.seconds[DISK])} rounds, each with its own opening of the store. From ids to the answer's "
        "logits, look-ups and embeddings included; `recompute` has the embeddings. Hidden share of a load, 1 - (disk - "
        f"memory) / load alone, unclipped, median and quartiles of rounds: {_percent(found.hidden)} by the linked "
        f"prefill alone, {_percent(found.hidden_by_misses)} with half of the chunks computed meanwhile (negative: more "
        f"was lost than the load takes by itself). Largest difference of a logit, disk against memory: {found.gap:g}.",
        ("KV", "TTFT ms", "against memory"),
        tuple((lane, 1e3 * found.median(lane), found.median(lane) / memory) for lane in LANES),
        (Plot("KV", "TTFT ms", bars=True),),
    )


def _percent(share: Interval) -> str:
    return f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}]"
