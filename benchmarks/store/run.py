"""All measurements of the store, one after the other, in a folder that is left as it was found."""

import os
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.store import compression, hits, index, novelty, overlap, sharing, throughput
from benchmarks.store.compression import CompressionResult
from benchmarks.store.hits import HitRatio
from benchmarks.store.index import IndexTimes
from benchmarks.store.material import larger_model
from benchmarks.store.novelty import NoveltyGain
from benchmarks.store.overlap import Overlap
from benchmarks.store.sharing import SharingResult
from benchmarks.store.throughput import Throughput
from emblema.errors import EmblemaError
from emblema.models.load import load_model

PARTS = ("throughput", "overlap", "index", "hits", "novelty", "sharing", "compression")
MODEL_PARTS = {"overlap", "novelty", "sharing", "compression"}
MIB = 2**20


@dataclass(frozen=True, slots=True)
class StoreExtent:
    """How much is measured.

    Attributes:
        sizes: bytes of KV in the files that are written and read.
        rounds: interleaved rounds of reading and writing, and of linked prompts.
        pictures: pictures of a linked prompt, and pixels along their sides.
        larger: the same of the larger random model; no pictures leave it out.
        larger_rounds: rounds of its linked prompts.
        entries: sizes of the index.
        lookups: look-ups timed at each size.
        catalogue: distinct chunks of the Zipf trace.
        requests: requests of the Zipf trace.
        marks: after how many new queries the gain is measured.
        contexts: contexts that share one set of chunks.
        episodes: fresh episodes of the comparison of compressions.
    """

    sizes: tuple[int, ...] = (16 * MIB, 64 * MIB, 256 * MIB)
    rounds: int = 9
    pictures: tuple[int, int] = (6, 224)
    larger: tuple[int, int] = (4, 448)
    larger_rounds: int = 7
    entries: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    lookups: int = 20_000
    catalogue: int = 400
    requests: int = 2000
    marks: tuple[int, ...] = (1, 100, 1000)
    contexts: int = 40
    episodes: int = 30


FULL = StoreExtent()
QUICK = StoreExtent(
    sizes=(MIB, 4 * MIB),
    rounds=3,
    pictures=(3, 112),
    larger=(0, 0),
    larger_rounds=0,
    entries=(1000, 4000),
    lookups=1000,
    catalogue=60,
    requests=120,
    marks=(1, 5, 45),
    contexts=4,
    episodes=2,
)
"""A little of everything."""


@dataclass(frozen=True, slots=True)
class StoreResult:
    """What was measured; None or nothing for what was left out.

    Attributes:
        seed: of everything random.
        model: name of the model that the prompts ran on.
        file_system: type of the file system that files were written to, where the system says it.
        load: the machine's load average over a minute, before and after: what else it was doing, this run included.
    """

    seed: int
    model: str
    file_system: str
    load: tuple[float, float]
    throughput: tuple[Throughput, ...] = ()
    overlap: tuple[Overlap, ...] = ()
    index: tuple[IndexTimes, ...] = ()
    hits: tuple[HitRatio, ...] = ()
    novelty: tuple[NoveltyGain, ...] = ()
    sharing: SharingResult | None = None
    compression: CompressionResult | None = None


def run(
    extent: StoreExtent,
    seed: int,
    screen: Console,
    *,
    model: str = "reference",
    parts: Collection[str] = PARTS,
    folder: Path | None = None,
) -> StoreResult:
    """Measure, with one thread of torch; the store's own threads read and write as they always do.

    Args:
        extent: how much.
        seed: of everything random.
        screen: where progress is shown.
        model: of the linked prompts; one with the bundled model's vocabulary.
        parts: what to measure, of `PARTS`.
        folder: where files are written, on the disk in question; the system's folder for temporary files by default.

    Raises:
        EmblemaError: a part is unknown, the model cannot be loaded, or the folder cannot be written.
    """
    if unknown := set(parts) - set(PARTS):
        raise EmblemaError(f"unknown part {sorted(unknown)[0]!r}: choose of {', '.join(PARTS)}")
    before, threads = _load(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="emblema-bench-", dir=folder) as place:
            found = _run(extent, seed, screen, model, parts, Path(place))
            return StoreResult(seed, Path(model).name, file_system(Path(place)), (before, _load()), **found)
    except OSError as error:
        raise EmblemaError(f"{error.filename or folder}: the store could not be measured there ({error})") from error
    finally:
        torch.set_num_threads(threads)


def _run(
    extent: StoreExtent, seed: int, screen: Console, name: str, parts: Collection[str], place: Path
) -> dict[str, Any]:
    model, processor = load_model(name) if MODEL_PARTS & set(parts) else (None, None)

    def overlaps() -> tuple[Overlap, ...]:
        count, side = extent.pictures
        own = overlap.measure(place, Path(name).name, model, processor, [side] * count, extent.rounds, seed, screen)
        count, side = extent.larger
        if not count:
            return (own,)
        label, rounds = "larger random model", extent.larger_rounds
        return (own, overlap.measure(place, label, *larger_model(seed), [side] * count, rounds, seed, screen))

    measures: dict[str, Callable[[], Any]] = {
        "throughput": lambda: throughput.measure(place, extent.sizes, extent.rounds, seed, screen),
        "index": lambda: index.measure(place, extent.entries, extent.lookups, seed, screen),
        "overlap": overlaps,
        "hits": lambda: hits.measure(place, extent.catalogue, extent.requests, seed, screen),
        "novelty": lambda: novelty.measure(place, model, processor, extent.marks, seed, screen),
        "sharing": lambda: sharing.measure(model, processor, extent.contexts, seed, screen),
        "compression": lambda: compression.measure(model, processor, extent.episodes, seed, screen),
    }
    return {part: measure() for part, measure in measures.items() if part in parts}


def file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on; `unknown` where there is no /proc/mounts."""
    mounts = Path("/proc/mounts")
    if not mounts.is_file():
        return "unknown"
    fields = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    above = {str(parent) for parent in (folder.resolve(), *folder.resolve().parents)}
    held = [(len(field[1]), field[2]) for field in fields if field[1] in above]
    return max(held, default=(0, "unknown"))[1]


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
