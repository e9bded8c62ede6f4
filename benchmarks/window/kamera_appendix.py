"""The experiments of Kamera's appendix D: drift, excess context, and the cheapest refresh."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from benchmarks.fidelity.ablations import (
    DeepReprefill,
    Directions,
    ShallowReprefill,
    plus,
    pooled_directions,
    projected,
    slot_widths,
)
from benchmarks.fidelity.measure import POOL_SEED
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.experiment import (
    BLIND,
    EVERY,
    FULL,
    Experiment,
    StoredPatch,
    answers_of,
    patch_weight,
    patched,
)
from benchmarks.window.item import SPARE, SUBJECT, Logits, WindowItem, added, difference
from emblema.engine.engine import Engine
from emblema.kv.patch import form_patch
from emblema.link.policy.samples import divergence

STORED, REBUILT = StoredPatch.stored, StoredPatch.rebuilt
MEASURABLE = 1e-3
"""Nats of divergence under blind reuse from which an item counts as having a deficit."""
BEFORE = ("legend0", "map0", "legend1", "map1")
CHANGES: dict[str, tuple[str, ...]] = {
    "none": BEFORE,
    "reordered": ("map1", "legend1", "map0", "legend0"),
    "a map dropped": ("legend0", "legend1", "map1"),
    "a map duplicated": ("legend0", "map0", "map0", "legend1", "map1"),
    "a legend dropped": ("map0", "legend1", "map1"),
    "a legend duplicated": ("legend0", "map0", "legend1", "map1", "legend0"),
    "a map replaced": ("legend0", "map2", "legend1", "map1"),
    "a legend replaced": ("other0", "map0", "legend1", "map1"),
    "all replaced": ("other0", "map2", "other1", "map3"),
}
SAFE = 0.5
"""Share of an answer's gap that a stored patch has to close for its reuse to count as right."""


class ChangedAntecedents(StoredPatch):
    """A stored patch after antecedents that were changed, and what a cheap signal says of it."""

    name = "drift"
    rebuilt = "exact patch"

    def __init__(self) -> None:
        super().__init__()
        self._judged: list[tuple[float, bool]] = []

    def cases(self, index: int) -> Iterable[tuple[str, Sequence[str], Sequence[str]]]:
        return ((change, BEFORE, pages) for change, pages in CHANGES.items())

    def note(self, item: WindowItem, group: str, pages: Sequence[str], answers: Mapping[str, Logits]) -> None:
        super().note(item, group, pages, answers)
        apart = _cosine(item, pages)
        self.log.value({f"cosine distance, {group}": apart})
        self._judged += [(apart, safe) for safe in _safe(answers)]

    def figures(self) -> Mapping[str, float]:
        """Return how far the changes move the antecedents' embeddings, and what that is worth as a gate."""
        kept, lost = ([apart for apart, safe in self._judged if safe is wanted] for wanted in (True, False))
        nearest = sorted(self._judged, key=lambda judged: judged[0])[: len(self._judged) // 2]
        gate = {
            "median distance where the stored patch serves": float(np.median(kept)) if kept else float("nan"),
            "median distance where it does not": float(np.median(lost)) if lost else float("nan"),
            "reused falsely, of the nearer half": sum(not safe for _, safe in nearest) / max(1, len(nearest)),
        }
        return {"cosine distance, all replaced": self.log.mean("cosine distance, all replaced"), **gate}


def _cosine(item: WindowItem, pages: Sequence[str]) -> float:
    """Return the cosine distance of the mean media embedding of some pages from that of `BEFORE`."""

    def mean(names: Sequence[str]) -> torch.Tensor:
        encoded = [item.chunk(name).encoded for name in names]
        return torch.cat([page.embeds[page.visual] for page in encoded]).float().mean(dim=0)

    return max(0.0, 1.0 - float(torch.nn.functional.cosine_similarity(mean(BEFORE), mean(pages), dim=0)))


def _safe(answers: Mapping[str, Logits]) -> list[bool]:
    """Return, for every answer that blind reuse moves, whether the stored patch closes enough of its gap."""
    found = []
    for setting in SETTINGS:
        for full, blind, stored in zip(*(answers[name][setting] for name in (FULL, BLIND, STORED)), strict=True):
            floor = divergence(full, blind)
            if floor >= MEASURABLE:
                found.append(divergence(full, stored) <= (1 - SAFE) * floor)
    return found


PAIR = ("legend0", "legend1")
MAPS, LEGENDS, SPARES = ("map0", "map1", "map2"), ("other0", "map0", "other1"), (SPARE,) * 3


class Superset(StoredPatch):
    """A stored patch of two legends when there are 0 to 3 distractors too."""

    name = "superset"

    def cases(self, index: int) -> Iterable[tuple[str, Sequence[str], Sequence[str]]]:
        for count in range(len(MAPS) + 1):
            yield f"position-matched, d = {count}", PAIR + SPARES, PAIR + MAPS[:count] + SPARES[count:]
        for way, distractors in (("true superset", MAPS), ("conflicting superset", LEGENDS)):
            for count in range(len(distractors) + 1):
                yield f"{way}, d = {count}", PAIR, PAIR + distractors[:count]


RANK = 32
POOLED = 8
"""Other items whose directions make the shared basis."""
SWAPPED: tuple[tuple[str, ...], ...] = (
    ("legend0", "map0", "legend1"),
    ("other0", "map0", "legend1"),
    ("other0", "map0", "other1"),
    ("other0", "map1", "other1"),
)
"""The antecedents with 0 to 3 of them swapped."""
BASIS, UPDATE = "shared basis", "rank-32 update"
DEEP, SHALLOW = "re-prefill, deep three quarters", "re-prefill, shallow half"


class Refresh(Experiment):
    """The cheapest right answer to changed antecedents: a rank-32 update, beside rebuilding and running layers again.

    Args:
        pooled: other items whose directions make the shared basis.
    """

    name = "refresh"
    floor = True

    def __init__(self, pooled: int = POOLED) -> None:
        super().__init__()
        self._pooled = pooled
        self._basis: Directions | None = None

    def take(self, item: WindowItem) -> None:
        if item.index % EVERY:
            return
        if self._basis is None:
            self._basis = self._shared(item.engine)
            tokens, slots = item.chunk(SUBJECT).tokens, slot_widths(item.adapter.layouts)
            # The directions are the model's; only an item's coefficients are its own.
            weights = {
                UPDATE: patch_weight(item.adapter, tokens, RANK),
                BASIS: sum(min(RANK, slot) for slot in slots) / sum(slots),
            }
            self.log.value({f"bytes of {way} over the map's KV": own for way, own in weights.items()})
        canonical, dtype, stored = item.canonical(SUBJECT), item.adapter.dtype, patched(item, SWAPPED[0], RANK)
        for count, pages in enumerate(SWAPPED):
            sequence = item.sequence(*pages, SUBJECT)
            update = form_patch(difference(sequence.rows(), stored), RANK, dtype)
            ways = {
                STORED: stored,
                UPDATE: added(stored, update),
                REBUILT: patched(item, pages, RANK),
                DEEP: sequence.made(DeepReprefill(75)),
                SHALLOW: sequence.under(ShallowReprefill(50)),
                BASIS: tuple(map(plus, canonical, projected(sequence.deficits(), self._basis, RANK))),
            }
            self.log.answers(item, f"d = {count}", answers_of(sequence, ways))

    def _shared(self, engine: Engine) -> Directions:
        """Return directions pooled over items that are not measured."""
        patches = []
        for index in range(self._pooled):
            deficits = WindowItem(engine, POOL_SEED, index).sequence(*SWAPPED[0], SUBJECT).deficits()
            patches.append(form_patch(deficits, 2 * RANK, engine.adapter.dtype))
        return pooled_directions(patches)
