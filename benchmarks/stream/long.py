"""Streams of a day: what a frame and a question cost once there are many; what nearly equal frames make of clusters."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from PIL import Image
from rich.console import Console

from benchmarks.stream.costs import SHORT, memory_bytes
from benchmarks.stream.running import (
    SystemsOptions,
    ask_in_turns,
    cpu_ratio,
    feed,
    film_of,
    opened,
    questions,
    ttft_ratio,
)
from benchmarks.table import Bar, Cell, Table
from emblema.engine.engine import Engine
from emblema.errors import StreamError
from emblema.eval.progress import steps
from emblema.kv.layout import LayerRows
from emblema.kv.rotation import place, unplace
from emblema.models.frames import FrameCodes
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.stream import Stream

SOURCE, EARLY, NEAR = 256, 1000, 0.01
SPAN = 25
"""Pushes, the median of which is what a frame costs at a length."""
SLOWER_ENCODING, SLOWER_ASKING, HALF, FEW = 1.3, 1.5, 0.5, 64
LONG_COLUMNS = ("what", "frames", "value", "of", "their value", "ratio")


@contextmanager
def rows_drawn(stream: Stream, noise: float, sources: int, seed: int) -> Iterator[None]:
    """Give the frames pushed in this block rows and codes of frames that the memory holds, with noise added.

    Args:
        noise: as a share of the standard deviation of keys and values over the frames held.
        sources: of the first frames held, those that are drawn from.

    Raises:
        StreamError: the stream has no such rows.
    """
    memory = stream.memory
    if not isinstance(memory, Mosaic):
        raise StreamError(f"a stream with the method {stream.method!r} keeps no rows to draw from: use mosaic")
    made, positions, layouts = torch.Generator().manual_seed(seed), memory.positions, memory.adapter.layouts
    numbers = torch.arange(memory.frames.start, memory.frames.stop)
    book = memory.context.phases.book(positions.written(numbers))
    held = [
        unplace(store.rows(memory.lines_of(layer, numbers.numpy())), layout, book)
        for layer, (store, layout) in enumerate(zip(memory.stores, layouts, strict=True))
    ]
    known, tokens = stream.log.codes(numbers.tolist()), positions.tokens
    picks: list[torch.Tensor] = []

    def noised(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return part + noise * like.std() * torch.randn(part.shape, generator=made)

    def codes(adapter: Any, preparer: Any, pictures: list[Image.Image]) -> FrameCodes:
        picks.append(torch.randint(sources, (len(pictures),), generator=made))
        layers = tuple(layer[picks[-1]] for layer in known.deepstack)
        return FrameCodes(noised(known.embeds[picks[-1]], known.embeds), known.offsets, layers, known.token_id)

    def write(method: Any, recent: Any, block: Any, batched: bool) -> None:
        frames = torch.arange(recent.count, recent.count + block.frames)
        rows = torch.arange(recent.table.length, recent.table.length + block.frames * tokens)
        slots = recent.table.allocate(rows, torch.full_like(rows, -1))
        own = (picks[-1][:, None] * tokens + torch.arange(tokens)).flatten()
        target = memory.context.phases.book(positions.written(frames))
        for layer, (kv, layout) in enumerate(zip(held, layouts, strict=True)):
            parts = (noised(part[:, own], part) for part in (kv.keys, kv.values))
            placed = place(LayerRows(*parts), layout, target, memory.adapter.dtype)
            recent.table.write(layer, slice(slots.start, slots.stop), placed)

    module = "emblema.stream.stream"
    with patch(f"{module}.encode_frames", codes), patch(f"{module}.encode_block", write):
        yield


def draw_to(
    stream: Stream, picture: Image.Image, frames: int, noise: float, sources: int, tick: Callable[[], object]
) -> None:
    """Push a picture, whose rows are drawn instead, until there are so many frames."""
    with rows_drawn(stream, noise, sources, frames):
        while stream.frames < frames:
            stream.push([picture] * min(64, frames - stream.frames))
            tick()


def measure_long(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure encoding and device bytes at `long` frames."""
    settings = replace(options.settings, positions="packed")
    block, long, early = settings.block, options.long, min(EARLY, options.long // 2)
    film = film_of(options.kinds[0], long, options)
    with ExitStack() as stack, steps(console, "long: frames", -(-long // block)) as tick:
        streams = {name: opened(stack, engine, name, settings) for name in ("mosaic", "rekv")}
        spent = [push.cpu / block for push in feed(streams, film, 0, long, block, tick)["mosaic"]]
        device = [memory_bytes(stream.bytes) for stream in streams.values()]
    first, last = (1000 * median(own) for own in (spent[early // block :][:SPAN], spent[-SPAN:]))
    rows: tuple[tuple[Cell, ...], ...] = (
        ("encoding, CPU ms a frame", long, last, early, first, last / first),
    )
    encoding = f"encoding a frame at {long:,} over {early:,}, retrieving"
    held = f"device bytes over ReKV's, {long:,} frames"
    bars = (
        Bar(encoding, last / first, SLOWER_ENCODING, least=False, count=SPAN),
        Bar(held, device[0] / device[1], HALF, least=False, count=1),
    )
    return Table("long", "Streams of a day", "", LONG_COLUMNS, rows, (), bars)


def measure_drawn(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure questions at `drawn` frames, whose rows are drawn."""
    settings, drawn = replace(options.settings, positions="packed"), options.drawn
    film = film_of(options.kinds[0], SOURCE, options)
    with ExitStack() as stack, steps(console, "drawn: frames", -(-drawn // 64)) as tick:
        asked = {frames: opened(stack, engine, "mosaic", settings) for frames in (SHORT, drawn)}
        feed(asked, film, 0, SOURCE, settings.block)
        draw_to(asked[drawn], next(iter(film.frames(0, 1))), drawn, 0.1, SOURCE // 2, tick)
        texts = [question.text for question in questions(film, SOURCE)]
        costs = ask_in_turns(asked, texts, options.rounds, lambda: None)
    slow, quick = costs[drawn], costs[SHORT]
    above, below = (1000 * median(ask.cpu for ask in own) for own in (slow, quick))
    bars = tuple(
        Bar(
            f"{words} at {drawn:,} drawn frames over that at {SHORT}",
            ratio.value,
            SLOWER_ASKING,
            least=False,
            count=len(slow),
        )
        for words, ratio in (("TTFT", ttft_ratio(slow, quick)), ("CPU time", cpu_ratio(slow, quick)))
    )
    row = ("question, CPU ms", drawn, above, SHORT, below, cpu_ratio(slow, quick))
    return Table("drawn", "Questions after a day", "", LONG_COLUMNS, (row,), (), bars)


def measure_still(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure the clusters of `long` nearly equal frames."""
    settings, long = replace(options.settings, positions="packed"), options.long
    before = 4 * settings.block + settings.window
    film = film_of(options.kinds[0], SOURCE, options)
    with ExitStack() as stack, steps(console, "still: frames", -(-long // 64)) as tick:
        still = opened(stack, engine, "mosaic", settings, representatives=True, retrieve_while_encoding=False)
        feed({0: still}, film, 0, before, settings.block)
        draw_to(still, next(iter(film.frames(0, 1))), long, NEAR, 1, tick)
        memory = still.memory
        assert isinstance(memory, Mosaic)
        most = max(len(level.clusters) for level in memory.layers)
    row = ("clusters of nearly equal frames, the most of a layer", long, most, None, None, None)
    bar = Bar(f"clusters a layer of {long:,} nearly equal frames", most, FEW, least=False, count=len(memory.layers))
    return Table("still", "A day of one scene", "", LONG_COLUMNS, (row,), (), (bar,))
