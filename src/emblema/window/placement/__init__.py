"""Placement: which chunks to admit to a window, and in which order, so that what is stored stays valid.

Kamera (appendix E) leaves it open: over a set of chunks the order is free, and a chunk behind antecedents that it was
conditioned on before costs nothing to compute. Pure data: ids, sizes and prices; no model.
"""

from collections.abc import Sequence

from emblema.window.placement.data import Candidate, Held, Lane, Limits, Placement, Price, Task, rows_to_compute
from emblema.window.placement.exact import exactly
from emblema.window.placement.search import searched

__all__ = ["EXACT", "Candidate", "Held", "Lane", "Limits", "Placement", "Price", "place", "rows_to_compute"]

EXACT = 11
"""Up to this many chunks that are free to move, `place` finds the optimum; beyond, it searches."""


def place(
    candidates: Sequence[Candidate],
    held: Held,
    limits: Limits | None = None,
    price: Price = rows_to_compute,
    front: Sequence[Candidate] = (),
) -> Placement:
    """Choose who stands in a window and in which order, so that prices and the worth of what is left out are least.

    Exact up to `EXACT` candidates (dynamic programming over subsets, with the order remembered only as long as a
    stored patch may still ask for it); beyond, the better of a beam and a local search, which `exact` tells where it
    met a bound. Among equals the order given is kept.

    Args:
        candidates: who may stand there; those of endless worth must.
        held: stored patches and rows that stand already.
        limits: what the window may hold, `front` included.
        price: what a chunk costs in a lane.
        front: chunks that stand at the front in this order and stay.

    Raises:
        CapacityError: those that have to stand there do not fit.
        PlanError: a chunk is given twice, or a price or limit is none.
    """
    task = Task(tuple(candidates), held, limits or Limits(), price, tuple(front))
    return exactly(task) if len(task.candidates) <= EXACT else searched(task)
