"""Time to first token with KV on disk, in memory, and not at all; and how much of a load is hidden by computing.

What is timed runs from the chunks' ids to the logits of the answer. Before everything that is called cold the files are
out of the page cache and the store has just been opened.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.store.material import QUESTION, cooled, random_picture
from emblema.engine.engine import Engine
from emblema.errors import StoreError
from emblema.kv.chunk import Chunk
from emblema.link.policy.policy import Policy
from emblema.session.linker import Linker
from emblema.session.prompt_reader import PromptPart
from emblema.session.requests import LinkRequest, Prefill
from emblema.store.store import Store, TenantStore

RECOMPUTE, MEMORY, DISK, LOAD = "recompute", "memory", "disk, cold", "load alone, cold"
LANES = (RECOMPUTE, MEMORY, DISK, LOAD)


@dataclass(frozen=True, slots=True)
class Overlap:
    """One way to a first token on one model: the median of rounds, and over that with the KV in memory.

    `hidden` is the share of a load from disk that the linked prefill did not wait for, with quartiles; below 0 more was
    lost than the load takes by itself.
    """

    model: str
    parameters: int
    rows: int
    bytes: int
    rounds: int
    kv: str
    ms: float
    ratio: float
    hidden: float | None
    low: float | None
    high: float | None


class OverlapBench:
    """One model, and its pictures' chunks in a folder."""

    def __init__(self, folder: Path, model: Any, processor: Any, sides: Sequence[int], seed: int) -> None:
        self.engine, self.folder = Engine(model, processor, policy=Policy.quiet()), folder
        random = np.random.default_rng([seed, 3])
        pictures = [random_picture(side, random) for side in sides]
        self.chunks = [chunk for chunk in map(self.engine.add, pictures) if isinstance(chunk, Chunk)]
        with Store(folder) as store:
            for chunk in self.chunks:
                store.tenant().put(Chunk(chunk.id, chunk.kind, chunk.model, chunk.encoded, tuple(chunk.rows)))
        self.files = sorted((folder / "pieces").rglob("*.safetensors"))
        self.gap = 0.0
        self.seconds: dict[str, list[float]] = {lane: [] for lane in LANES}
        # What runs for the first time is slower in whichever lane it comes.
        self.link(self.engine.store, "blind")

    def time(self, lane: str, action: Callable[[], Any]) -> Any:
        """Do something as a lane of this round."""
        began = time.perf_counter()
        found = action()
        self.seconds[lane].append(time.perf_counter() - began)
        return found

    def link(self, view: TenantStore, strategy: str) -> Prefill:
        """Link from ids to logits."""
        parts: list[PromptPart] = [*(view.get(chunk.id) for chunk in self.chunks), QUESTION]
        return Linker(self.engine.adapter, view).link(LinkRequest(self.engine.prompt(parts), strategy))

    def bring(self, view: TenantStore) -> None:
        """Bring everything into memory."""
        ids = [chunk.id for chunk in self.chunks]
        for id in ids:
            view.get(id)
        with view.lease(ids) as lease:
            if lease.missing:
                raise StoreError(f"{len(lease.missing)} chunks are not on disk: nothing to measure")
            for rows in lease.rows.values():
                list(rows)

    def round(self) -> None:
        """Time every lane once."""
        cooled(self.files)
        with Store(self.folder) as store:
            view = store.tenant()
            self.time(LOAD, lambda: self.bring(view))
            memory = self.time(MEMORY, lambda: self.link(view, "blind"))
            self.time(RECOMPUTE, lambda: self.link(view, "full"))
        cooled(self.files)
        with Store(self.folder) as store:
            disk = self.time(DISK, lambda: self.link(store.tenant(), "blind"))
        self.gap = max(self.gap, float((disk.linked.logits - memory.linked.logits).abs().max()))


def measure(
    folder: Path, name: str, model: Any, processor: Any, sides: Sequence[int], rounds: int, seed: int
) -> list[Overlap]:
    """Link a prompt of one picture for each of `sides` (pixels) and a question, in every way, `rounds` times."""
    bench = OverlapBench(folder / name, model, processor, sides, seed)
    for _ in range(rounds):
        bench.round()
    if bench.gap:
        raise StoreError(f"logits differ by {bench.gap:g} between KV from disk and from memory")
    parts: list[PromptPart] = [*bench.chunks, QUESTION]
    about = (
        name, sum(weights.numel() for weights in model.parameters()), bench.engine.prompt(parts).tokens,
        sum(path.stat().st_size for path in bench.files), rounds,
    )  # fmt: skip
    waited = np.subtract(bench.seconds[DISK], bench.seconds[MEMORY]) / np.array(bench.seconds[LOAD])
    low, middle, high = map(float, np.quantile(1 - waited, (0.25, 0.5, 0.75)))
    memory = median(bench.seconds[MEMORY])
    return [
        Overlap(*about, lane, 1e3 * median(taken), median(taken) / memory,
                *((middle, low, high) if lane == DISK else (None, None, None)))
        for lane, taken in bench.seconds.items()
    ]  # fmt: skip
