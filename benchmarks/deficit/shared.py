"""Directions pooled over other items, of this task and carried from another (Kamera, sections 4 and C.2)."""

from collections.abc import Sequence

from benchmarks.deficit.subject import Case, CaseAnswer, Subject
from emblema.kv.patch import form_patch
from emblema.link.forming import Directions, pooled_directions, project

RANKS = (4, 16, 32)
KEPT = 64
"""Directions that each item leaves to the pool."""
POOLED = 16
"""Items that a pool is made of, at most."""

Pool = list[Directions | None]


def pool(subjects: Sequence[Subject]) -> Pool:
    """The leading directions of several subjects' deficits, per layer."""
    kept = [form_patch(one.deficits, min(KEPT, one.full_rank), one.adapter.dtype) for one in subjects[:POOLED]]
    return pooled_directions(kept, max(RANKS))


def of_case(case: Case, own: Pool, carried: Pool | None) -> dict[str, CaseAnswer]:
    """The deficit as coefficients on pooled directions; `rank/M` is what the item's own directions give."""
    found = {}
    for rank in RANKS:
        if rank > case.subject.full_rank:
            continue
        found[f"pooled basis/{rank}"] = _on(case, own, rank)
        if carried is not None:
            found[f"carried basis/{rank}"] = _on(case, carried, rank)
    return found


def _on(case: Case, directions: Pool, rank: int) -> CaseAnswer:
    cut = [None if one is None else (one[0][:rank], one[1][:rank]) for one in directions]
    patch = project(case.subject.deficits, cut, case.subject.adapter.dtype)
    return case.patched(patch, rank)
