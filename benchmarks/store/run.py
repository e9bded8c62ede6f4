"""All measurements of the store, one after the other, in a folder that is left as it was found."""

import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.store import compression, hits, index, novelty, overlap, sharing, throughput
from benchmarks.store.larger import larger_model
from benchmarks.store.settings import Settings
from emblema.errors import EmblemaError
from emblema.models.load import load_model

PARTS = ("throughput", "overlap", "index", "hits", "novelty", "sharing", "compression")


@dataclass(frozen=True, slots=True)
class StoreBench:
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
    throughput: tuple[throughput.Throughput, ...]
    overlap: tuple[overlap.Overlap, ...]
    index: tuple[index.Lookups, ...]
    hits: tuple[hits.HitRatio, ...]
    novelty: tuple[novelty.Gain, ...]
    sharing: sharing.SharingResult | None
    compression: compression.CompressionResult | None


def run(
    settings: Settings,
    seed: int,
    screen: Console,
    *,
    model: str = "reference",
    parts: Collection[str] = PARTS,
    folder: Path | None = None,
) -> StoreBench:
    """Measure, with one thread of torch; the store's own threads read and write as they always do.

    Args:
        settings: how much.
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
    before = _load()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="emblema-bench-", dir=folder) as place:
            return _run(settings, seed, screen, model, parts, Path(place), before)
    except OSError as error:
        raise EmblemaError(f"{error.filename or folder}: the store could not be measured there ({error})") from error
    finally:
        torch.set_num_threads(threads)


def _run(
    settings: Settings, seed: int, screen: Console, model: str, parts: Collection[str], place: Path, before: float
) -> StoreBench:
    found: dict[str, Any] = {"throughput": (), "overlap": (), "index": (), "hits": (), "novelty": ()}
    loaded, processor = load_model(model) if {"overlap", "novelty", "sharing", "compression"} & set(parts) else (0, 0)
    if "throughput" in parts:
        found["throughput"] = throughput.measure(place, settings.sizes, settings.rounds, seed, screen)
    if "index" in parts:
        found["index"] = index.measure(place, settings.entries, settings.lookups, seed, screen)
    if "overlap" in parts:
        found["overlap"] = tuple(_overlaps(place, settings, model, loaded, processor, seed, screen))
    if "hits" in parts:
        found["hits"] = hits.measure(place, settings.catalogue, settings.requests, seed, screen)
    if "novelty" in parts:
        found["novelty"] = novelty.measure(place, loaded, processor, settings.marks, seed, screen)
    wanted = "sharing" in parts
    shared = sharing.measure(loaded, processor, settings.contexts, seed, screen) if wanted else None
    wanted = "compression" in parts
    smaller = compression.measure(loaded, processor, settings.episodes, seed, screen) if wanted else None
    return StoreBench(
        seed, Path(model).name, file_system(place), (before, _load()), **found, sharing=shared, compression=smaller
    )


def _overlaps(
    place: Path, settings: Settings, name: str, model: Any, processor: Any, seed: int, screen: Console
) -> list[overlap.Overlap]:
    count, side = settings.pictures
    found = [overlap.measure(place, Path(name).name, model, processor, [side] * count, settings.rounds, seed, screen)]
    count, side = settings.larger
    if count:
        larger, processor = larger_model(seed)
        sides, rounds = [side] * count, settings.larger_rounds
        found.append(overlap.measure(place, "larger random model", larger, processor, sides, rounds, seed, screen))
    return found


def file_system(folder: Path) -> str:
    """The type of the file system that a folder is on; `unknown` where there is no /proc/mounts."""
    mounts = Path("/proc/mounts")
    if not mounts.is_file():
        return "unknown"
    fields = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    above = {str(one) for one in (folder.resolve(), *folder.resolve().parents)}
    held = [(len(field[1]), field[2]) for field in fields if field[1] in above]
    return max(held, default=(0, "unknown"))[1]


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
