"""What computing and placing rows costs, measured once at a server's start on the loaded model."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from emblema.kv.layout import LayerRows
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.registry import parse
from emblema.served.chunk_stubs import ChunkStubs
from emblema.served.model_spec import ModelSpec
from emblema.served.requests import MediaItem
from emblema.served.staging import StagedRows, StagingOrder
from emblema.vllm.pages import Pages

SURE = 0.9
"""Linking has to cost less than this share of what it saves."""
NEVER = 2**31
"""So many rows no prompt has: linking never pays."""
ROWS = (16, 64, 256, 1024, 4096)
"""Rows of the forwards that are timed, until one takes `LEAST_SECONDS` and twice as long as a row alone."""
PLACED = (16, 256)
LEAST_SECONDS = 0.06
FEW, TIMED_FEW, TIMED = 256, 6, 2
"""Runs that are timed, of so many rows at most and of more, after one that is not; the shortest counts. The former are
short, and decide most: other work on the machine must not be taken for theirs."""


@dataclass(frozen=True, slots=True)
class StartCosts:
    """Seconds on the loaded model.

    Attributes:
        forward: of a forward of one row.
        row: of each further row.
        load: of placing a few rows.
        taken: of placing each further row.
    """

    forward: float
    row: float
    load: float
    taken: float

    def __str__(self) -> str:
        forward, load = (f"{1e3 * seconds:.1f} ms" for seconds in (self.forward, self.load))
        row, taken = (f"{1e6 * seconds:.1f} us" for seconds in (self.row, self.taken))
        return f"a forward takes {forward} and {row} a row, placing rows {load} and {taken} a row"

    @property
    def least_rows(self) -> int:
        """Rows that linking has to save to cost less than one forward more, and one load, do."""
        gain = SURE * self.row - self.taken
        return NEVER if gain <= 0 else min(NEVER, math.ceil((self.forward + self.load) / gain))


def measure_costs(
    forward: Callable[[int], object],
    place: Callable[[int], object],
    most_rows: int,
    agree: Callable[[list[bool]], list[bool]],
    device: torch.device,
) -> StartCosts:
    """Time forwards and placing.

    Args:
        forward: runs a forward of so many rows; all workers of a model run it together.
        place: places so many rows.
        most_rows: of a forward.
        agree: returns which of some facts are so on all workers.
        device: that both run on.
    """
    one = _seconds(forward, 1, device)
    rows, most = 1, one
    for count in ROWS:
        (more,) = agree([count <= most_rows and most < max(2 * one, LEAST_SECONDS)])
        if not more:
            break
        rows, most = count, _seconds(forward, count, device)
    few, many = (_seconds(place, count, device) for count in PLACED)
    return StartCosts(one, max(0.0, most - one) / max(1, rows - 1), few, max(0.0, many - few) / (PLACED[1] - PLACED[0]))


def _seconds(work: Callable[[int], object], rows: int, device: torch.device) -> float:
    times = []
    for _ in range(1 + (TIMED_FEW if rows <= FEW else TIMED)):
        began = time.perf_counter()
        work(rows)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def placing(spec: ModelSpec, pages: Pages, block_size: int) -> Callable[[int], None]:
    """Return a function that places so many rows of zeros in the first pages, as a linked prompt's are placed.

    No request has pages yet, and all rows of a page are written before they are read.
    """

    def place(rows: int) -> None:
        prompt, staged = made[rows]
        slots = pages.slots(range(1, 2 + prompt.tokens // block_size), prompt.tokens)
        staged.write(spec, pages, slots, ((1, 1 + rows),))

    made = {rows: _staged_zeros(spec, rows) for rows in PLACED}
    return place


def _staged_zeros(spec: ModelSpec, rows: int) -> tuple[Prompt, StagedRows]:
    """Return a prompt with a chunk of so many rows after a token, and the chunk's rows in host memory."""
    chunk = ChunkStubs(spec).make(MediaItem(0, "image", "", 1, rows, digest="zeros"), [0] * rows, 0, b"")
    prompt = Prompt.of([TextPart((0,)), ChunkPart(chunk), TextPart((0,))], spec.axes)
    knowledge = Knowledge(spec.fingerprint, spec.layouts, lambda key: None, lambda prompt: None)
    order = StagingOrder(0, "", b"", prompt, parse("blind").plan(prompt, knowledge))
    zeros = tuple(
        LayerRows(*(torch.zeros(heads, rows, width, dtype=spec.dtype) for heads, width in (each.keys, each.values)))
        for each in spec.layouts
    )
    return prompt, StagedRows(order, {chunk.id: zeros}, {}, {}, ExitStack())
