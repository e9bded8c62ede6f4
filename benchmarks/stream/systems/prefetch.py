"""Copying what the next layer is likely to ask for, while this one runs (Mosaic, figure 9b)."""

import time
from contextlib import ExitStack
from statistics import median

from rich.console import Console

from benchmarks.stream.systems.clock import middle, ratio
from benchmarks.stream.systems.running import Ask, ask_in_turns, feed, film_of, opened, questions
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.table import Bar, Cell, Plot, Table
from emblema.engine.engine import Engine
from emblema.eval.progress import steps

OFF = "off"
ARMS: dict[str, dict[str, object]] = {
    OFF: {"prefetch": False},
    "by queries": {"prefetch": True, "guess": "queries"},
    "by frames": {"prefetch": True, "guess": "frames"},
}
COLUMNS = (
    "kind",
    "prefetch",
    "hit ratio",
    "used of what came",
    "transfers ms",
    "waited ms",
    "hidden",
    "TTFT ms",
    "CPU ms",
    "TTFT over off",
    "CPU over off",
)
NOTE = (
    "Mosaic's figure 9b. Streams of one film, without and with prefetching by either guess, asked the same questions "
    "in turns, {rounds} times; one stream of each kind. The hit ratio is the share of blocks that layers asked for "
    "and that were guessed for them, the first layer's aside, which nobody can guess; then the share of guessed "
    "blocks that were asked for. 'hidden' is the share of transfer time that no layer waited for (1 - waited / "
    "transfers; below 0 where waiting took longer than copying would have). Times and 'hidden' are medians over "
    "answers, ratios medians question by question, with 95 % bootstrap intervals. On {device}: {memory}."
)
SHARED = "there a transfer is a copy inside one memory, and a thread that copies takes its time from the model"
APART = "transfers go from the host's memory to the device's own"


def measure_prefetch(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """Hits, hidden transfer time and time to the first token, by guess and kind of film."""
    began, rows, differing, asked = time.perf_counter(), list[tuple[Cell, ...]](), 0, 0
    for kind in wanted.kinds:
        asks = _asks(engine, wanted, kind, console)
        rows += [_row(kind, name, own, asks[OFF]) for name, own in asks.items()]
        texts = [tuple(one.text for one in turn) for turn in zip(*asks.values(), strict=True)]
        differing += sum(len(set(turn)) > 1 for turn in texts)
        asked += len(texts)
    device = engine.adapter.device.type
    note = NOTE.format(rounds=wanted.rounds, device=device, memory=SHARED if device == "cpu" else APART)
    plots = tuple(Plot("kind", y, "prefetch", bars=True) for y in ("hit ratio", "hidden", "TTFT over off"))
    bars = (Bar("answers that prefetching changed", float(differing), 0.0, least=False, count=asked),)
    spent = time.perf_counter() - began
    return Table("prefetch", "Prefetching across layers", note, COLUMNS, tuple(rows), plots, bars, spent)


def _asks(engine: Engine, wanted: SystemsWanted, kind: str, console: Console) -> dict[str, list[Ask]]:
    frames, together = wanted.frames, wanted.settings.block
    film = film_of(kind, frames, wanted)
    total = -(-frames // together) + wanted.rounds + 1
    with ExitStack() as stack, steps(console, f"prefetch, {kind}", total) as tick:
        streams = {name: opened(stack, engine, "mosaic", wanted.settings, **changes) for name, changes in ARMS.items()}
        feed(streams, film, 0, frames, together, tick)
        return ask_in_turns(streams, [one.text for one in questions(film, frames)], wanted.rounds, tick)


def _row(kind: str, name: str, asks: list[Ask], off: list[Ask]) -> tuple[Cell, ...]:
    def total(count: str) -> float:
        return sum(one.counts[count] for one in asks)

    hits, guessing = total("hits"), name != OFF
    moved, waited = ([one.counts[count] for one in asks] for count in ("fetch_seconds", "waited_seconds"))
    hidden = [1 - wait / move for wait, move in zip(waited, moved, strict=True) if move]
    return (
        kind,
        name,
        hits / total("asked") if guessing and total("asked") else None,
        hits / total("predicted") if guessing and total("predicted") else None,
        middle(moved),
        middle(waited),
        median(hidden) if guessing and hidden else None,
        middle([one.ttft for one in asks]),
        middle([one.cpu for one in asks]),
        ratio([one.ttft for one in asks], [one.ttft for one in off]),
        ratio([one.cpu for one in asks], [one.cpu for one in off]),
    )
