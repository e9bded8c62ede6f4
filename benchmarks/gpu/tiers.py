"""Time to first token by where the chunks are, and how much of their loading is hidden behind the forward."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.cost.subject import CostSubject
from benchmarks.cost.tiered import TieredPrompt
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.table import Cell, Table

RESIDENT, HOST, WARM, COLD = "on the device", "in (pinned) host memory", "on disk, warm", "on disk, cold"


def tiers_table(subject: CostSubject, folder: Path, tokens: int, chunks: int, strategy: str, pace: Pace) -> Table:
    """Return the time to first token by the tier that a prompt's chunks are in, and the hidden share of a load."""
    with ExitStack() as stack:
        resident = stack.enter_context(subject.prompt(tokens, chunks, patches=[strategy]))
        host = TieredPrompt(subject, folder / "host", tokens, chunks, strategy, True, stack)
        disk = TieredPrompt(subject, folder / "disk", tokens, chunks, strategy, False, stack)
        actions: dict[str, Action] = {
            RESIDENT: partial(subject.link, resident, strategy),
            "again": partial(subject.link, resident, "full"),
        }
        for name, prompt in ((HOST, host), (WARM, disk), (COLD, disk)):
            actions[name] = partial(prompt.link, name == COLD)
            actions[f"load {name}"] = partial(prompt.load, name == COLD)
        seconds = interleaved(actions, subject.device, pace)
    here = seconds.median(RESIDENT)
    rows: list[tuple[Cell, ...]] = [(RESIDENT, 1e3 * here, seconds.ratio(RESIDENT, "again"), None, None)]
    for name in (HOST, WARM, COLD):
        whole, load = seconds.median(name), seconds.median(f"load {name}")
        rows.append((name, 1e3 * whole, seconds.ratio(name, "again"), 1e3 * load, 1 - (whole - here) / load))
    return Table(
        "tiers",
        f"Time to first token of {tokens:,} rows in {chunks} chunks by where they are, {strategy}",
        "load alone: bringing chunks back without a forward. hidden: the share of that which the linked prompt did not "
        f"wait for, unclipped. Before a cold read at most {disk.stayed:.0%} of a file was in the page cache.",
        ("chunks are", "TTFT ms", "over re-prefill", "load alone ms", "hidden"),
        tuple(rows),
    )
