"""Time to first token by where the chunks are, and how much of their loading is hidden behind the forward."""

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.cost.subject import CostSubject, link_seconds
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.store.material import cooled
from benchmarks.table import Cell, Table
from emblema.kv.device import wait_for
from emblema.store.settings import StoreSettings
from emblema.store.store import Store

RESIDENT, HOST, WARM, COLD = "on the device", "in (pinned) host memory", "on disk, warm", "on disk, cold"


class TieredPrompt:
    """A prompt whose chunks have left the device's memory each time that it is linked, pushed out by another one's.

    Args:
        subject: the model.
        folder: of a disk tier.
        tokens, chunks: of the prompt.
        strategy: that it is linked by.
        host: whether what leaves the device stays in host memory; it is read from disk otherwise.
        stack: what is to be closed at the end.
    """

    def __init__(
        self, subject: CostSubject, folder: Path, tokens: int, chunks: int, strategy: str, host: bool, stack: ExitStack
    ) -> None:
        size = tokens * (subject.row_bytes + subject.adapter.hidden_size * subject.dtype.itemsize) * 3 // 2
        settings = StoreSettings(device=subject.device, host_bytes=8 * size if host else 0)
        self.store = Store(folder, device_bytes=size, disk_bytes=2**40, settings=settings)
        stack.callback(self.store.close)
        self.engine, self.strategy, self.folder = subject.engine.on(self.store), strategy, folder
        view = self.engine.store
        self.first, self.second = (
            stack.enter_context(subject.prompt(tokens, chunks, patches=[strategy], store=view)) for _ in range(2)
        )
        self.store.flush()
        self.stayed = 0.0

    def link(self, cold: bool = False) -> float:
        """Link it; return the seconds to its logits."""
        self._push(cold)
        return link_seconds(self.engine, self.first.parts, self.strategy)

    def load(self, cold: bool = False) -> float:
        """Bring its chunks to the device without a forward; return the seconds."""
        self._push(cold)
        device = self.engine.adapter.device
        wait_for(device)
        began = time.perf_counter()
        with self.engine.store.lease([chunk.id for chunk in self.first.chunks]) as lease:
            for rows in lease.rows.values():
                list(rows)
            wait_for(device)
        return time.perf_counter() - began

    def _push(self, cold: bool) -> None:
        """Link another prompt, so that this one's chunks leave the device; empty the page cache of their files."""
        link_seconds(self.engine, self.second.parts, self.strategy)
        if cold:
            files = sorted((self.folder / "pieces").rglob("*.safetensors"))
            self.stayed = max(self.stayed, cooled(files))


def tiers_table(subject: CostSubject, folder: Path, tokens: int, chunks: int, strategy: str, pace: Pace) -> Table:
    """Return the time to first token by the tier that a prompt's chunks are in, and the hidden share of a load."""
    with ExitStack() as stack:
        resident = stack.enter_context(subject.prompt(tokens, chunks, patches=[strategy]))
        host, disk = (
            TieredPrompt(subject, folder / name, tokens, chunks, strategy, name == "host", stack)
            for name in ("host", "disk")
        )

        links: dict[str, Action] = {
            RESIDENT: partial(subject.link, resident, strategy),
            HOST: host.link,
            WARM: disk.link,
            COLD: partial(disk.link, True),
        }
        loads: dict[str, Action] = {HOST: host.load, WARM: disk.load, COLD: partial(disk.load, True)}
        actions = (
            links
            | {f"load {name}": action for name, action in loads.items()}
            | {"again": partial(subject.link, resident, "full")}
        )
        seconds = interleaved(actions, subject.device, pace)
    rows: list[tuple[Cell, ...]] = []
    for name in links:
        load = None if name == RESIDENT else seconds.median(f"load {name}")
        extra = seconds.median(name) - seconds.median(RESIDENT)
        hidden = None if load is None else 1 - extra / load
        rows.append(
            (
                name,
                1e3 * seconds.median(name),
                seconds.ratio(name, "again"),
                None if load is None else 1e3 * load,
                hidden,
            )
        )
    cold = (
        "" if disk.stayed < 0.01 else f" Up to {disk.stayed:.0%} of a file stayed in the page cache before a cold read."
    )
    return Table(
        "tiers",
        f"Time to first token of {tokens:,} rows in {chunks} chunks by where they are, {strategy}",
        "Another prompt has pushed the chunks off the device each time. load alone: bringing them back without a "
        "forward. hidden: the share of that which the linked prompt did not wait for, unclipped: 1 - (TTFT - TTFT on "
        f"the device) / load alone.{cold}",
        ("chunks are", "TTFT ms", "over re-prefill", "load alone ms", "hidden"),
        tuple(rows),
    )
