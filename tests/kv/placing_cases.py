"""Placing passes with their result by definition: float64 and complex numbers, row by row."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.kv.layout import RotaryBand
from emblema.kv.patch import Factors
from emblema.kv.placing import PlacedSegment, Placer, RowPlacement, SlotRows
from emblema.kv.rotation import PhaseBook
from tests.kv.tables import BANDS, table, table_turns, turned_pairs

HEADS, WIDTH, PAGE = 2, 16, 8
UNWRITTEN = 77.0

Order = Callable[[int, torch.dtype], Tensor]
"""Pages and a dtype to memory [pages, PAGE, HEADS, WIDTH] of which nothing is written."""


def _filled(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, UNWRITTEN, dtype=dtype)


ORDERS: dict[str, Order] = {
    "dense": lambda n, d: _filled(1, HEADS, n * PAGE, WIDTH, dtype=d).transpose(1, 2),
    "pages, rows, heads": lambda n, d: _filled(n, PAGE, HEADS, WIDTH, dtype=d),
    "pages, heads, rows": lambda n, d: _filled(n, HEADS, PAGE, WIDTH, dtype=d).transpose(1, 2),
    "heads, pages, rows": lambda n, d: _filled(HEADS, n, PAGE, WIDTH, dtype=d).permute(1, 2, 0, 3),
    "values behind keys": lambda n, d: _filled(n, HEADS, PAGE, 2 * WIDTH, dtype=d)[..., WIDTH:].transpose(1, 2),
    "rows innermost": lambda n, d: _filled(n, HEADS, WIDTH, PAGE, dtype=d).permute(0, 3, 1, 2),
}
"""How attention backends order their pages, and a dense table."""


@dataclass(frozen=True)
class Case:
    """What is placed.

    Attributes:
        band: the turned band; None for a slot without one.
        rank: of the patch of the second segment; 0 for none.
        dtype: of rows, factors and memory.
        order: name of the memory's order.
        scattered: whether pages are in an order of chance.
        seed: of all chance.
    """

    band: RotaryBand | None
    rank: int = 0
    dtype: torch.dtype = torch.float32
    order: str = "dense"
    scattered: bool = False
    seed: int = 0


TOKENS = (11, 9, 5)
"""Of the chunks that segments are taken from: all of the first, and less of the others."""
SEGMENTS = (PlacedSegment(0, 0, 11), PlacedSegment(2, 11, 6), PlacedSegment(1, 17, 3))


def errors_of(placer: Placer, case: Case) -> NDArray[np.float64]:
    """Place a case's rows; return how far each number lies from its definition, in units of what is allowed.

    That is 1e-5 of the largest number in float32. In half precision it is one unit in the last place, or 2⁻²⁰ of the
    row's norm where a pair cancels.
    """
    chance = torch.Generator().manual_seed(case.seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=chance).to(case.dtype)

    sources = tuple(random(HEADS, tokens, WIDTH) for tokens in TOKENS)
    factors: list[Factors | None] = [None] * len(TOKENS)
    if case.rank:
        factors[1] = Factors(random(6, case.rank), random(case.rank, HEADS * WIDTH))
    rows = SEGMENTS[-1].stop
    source = torch.cat([torch.arange(at.source, at.source + at.rows) for at in SEGMENTS])
    source = torch.stack((source, source // 2, source % 3))
    target = source + torch.randint(0, 3000, (len(TOKENS),), generator=chance).repeat_interleave(
        torch.tensor([at.rows for at in SEGMENTS])
    )
    pages = 5
    slots: Tensor | slice = slice(3, 3 + rows)
    if case.scattered:
        logical = torch.arange(3, 3 + rows)
        slots = torch.randperm(pages, generator=chance)[logical // PAGE] * PAGE + logical % PAGE
    books = [PhaseBook({"": table}, each) for each in (source, target)]
    placement = RowPlacement(SEGMENTS, slots, books[0], books[1])
    memory = ORDERS[case.order](pages, case.dtype)
    whole = memory.as_strided((memory.untyped_storage().nbytes() // memory.itemsize,), (1,), 0)
    placer.place(placement, [SlotRows(sources, tuple(factors), case.band, memory)])
    assert int((whole != UNWRITTEN).sum()) == rows * HEADS * WIDTH
    found = _read(memory, slots).double().numpy()
    wanted, norm = _defined(case, sources, factors, source, target)
    if case.dtype == torch.float32:
        return np.abs(found - wanted) / (1e-5 * np.abs(wanted).max())
    bits = 8 if case.dtype == torch.bfloat16 else 11
    unit = np.ldexp(1.0, np.frexp(wanted)[1] - bits)
    return np.abs(found - wanted) / np.maximum(unit, 2.0**-20 * norm)


def _read(memory: Tensor, slots: Tensor | slice) -> Tensor:
    indices = torch.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
    size = memory.shape[1]
    return torch.stack([memory[int(slot) // size, int(slot) % size] for slot in indices], dim=1)


def _defined(
    case: Case, sources: tuple[Tensor, ...], factors: list[Factors | None], source: Tensor, target: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rows [heads, rows, width] by definition, and the norm of what each is added up from, [heads, rows, 1]."""
    made, norms = [], []
    for at, own, added in zip(SEGMENTS, sources, factors, strict=True):
        rows, span = own[:, at.source : at.source + at.rows].double(), slice(at.first, at.stop)
        shift = torch.zeros_like(rows)
        if added is not None:
            product = added.left.double() @ added.right.double()
            shift = torch.stack([product[:, head * WIDTH : (head + 1) * WIDTH] for head in range(HEADS)])
            # Each term of a product is rounded by itself.
            terms = (added.left.double().abs() @ added.right.double().abs()).norm(dim=-1)[None, :, None]
        else:
            terms = torch.zeros(1, 1, 1)
        norms.append((rows.norm(dim=-1, keepdim=True) + terms).numpy())
        if case.band is None:
            made.append((rows + shift).numpy())
            continue
        there = table_turns(case.band, target[:, span])
        back = table_turns(case.band, source[:, span]).conj()
        made.append(turned_pairs(rows, case.band, there * back) + turned_pairs(shift, case.band, there))
    return np.concatenate(made, axis=1), np.concatenate(norms, axis=1)


CASES = {
    "half": Case(BANDS["half"]),
    "half, patched": Case(BANDS["half"], rank=5),
    "pairs": Case(BANDS["pairs"]),
    "pairs, patched": Case(BANDS["pairs"], rank=16),
    "part of a row, patched": Case(BANDS["partial"], rank=3),
    "axes, patched": Case(BANDS["interleaved axes"], rank=40),
    "no band": Case(None),
    "no band, patched": Case(None, rank=5),
}
