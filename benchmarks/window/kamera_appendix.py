"""The experiments of Kamera's appendix D: drift, excess context, and the cheapest refresh."""

from collections.abc import Mapping

import numpy as np
import torch

from benchmarks.fidelity.measure import POOL_SEED
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.answerlog import BLIND, FULL
from benchmarks.window.experiment import (
    EVERY,
    Experiment,
    answers_of,
    note_answers,
    patch_weight,
    quarter_rank,
    slot_widths,
)
from benchmarks.window.item import SPARE, SUBJECT, Logits, WindowItem, added, difference
from emblema.engine.engine import Engine
from emblema.eval.metrics import MEASURABLE
from emblema.kv.patch import form_patch
from emblema.link.forming import Directions, pooled_directions, project
from emblema.link.policy.fidelity import divergence
from emblema.link.strategies.reprefill import Reprefill

STORED, REBUILT, EXACT = "stored patch", "rebuilt patch", "exact patch"
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


class ChangedAntecedents(Experiment):
    """A stored patch after antecedents that were changed, and what a cheap signal says of it."""

    name = "drift"

    def __init__(self) -> None:
        super().__init__()
        self._judged: list[tuple[float, bool]] = []

    def take(self, item: WindowItem) -> None:
        if item.index % EVERY:
            return
        canonical, rank, dtype = item.canonical(SUBJECT), quarter_rank(item), item.adapter.dtype
        stored = added(canonical, form_patch(item.sequence(*BEFORE, SUBJECT).deficits(), rank, dtype))
        for change, pages in CHANGES.items():
            sequence = item.sequence(*pages, SUBJECT)
            exact = added(canonical, form_patch(sequence.deficits(), rank, dtype))
            answers = answers_of(sequence, {STORED: stored, EXACT: exact})
            note_answers(self.log, item, change, answers)
            apart = _cosine(item, pages)
            self.log.value(item.episode, {f"cosine distance, {change}": apart})
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


def _cosine(item: WindowItem, pages: tuple[str, ...]) -> float:
    """Return the cosine distance of the mean media embedding of some pages from that of `BEFORE`."""

    def mean(names: tuple[str, ...]) -> torch.Tensor:
        encoded = [item.chunk(name).encoded for name in names]
        return torch.cat([page.embeds[page.visual] for page in encoded]).float().mean(dim=0)

    return max(0.0, 1.0 - float(torch.nn.functional.cosine_similarity(mean(BEFORE), mean(pages), dim=0)))


def _safe(answers: dict[str, Logits]) -> list[bool]:
    """Return, for every answer that blind reuse moves, whether the stored patch closes enough of its gap."""
    found = []
    for setting in SETTINGS:
        for full, blind, stored in zip(*(answers[name][setting] for name in (FULL, BLIND, STORED)), strict=True):
            floor = divergence(full, blind)
            if floor >= MEASURABLE:
                found.append(divergence(full, stored) <= (1 - SAFE) * floor)
    return found


MOST = 3
PAIR = ("legend0", "legend1")
MAPS, LEGENDS = ("map0", "map1", "map2"), ("other0", "map0", "other1")
WAYS = ("position-matched", "true superset", "conflicting superset")


class Superset(Experiment):
    """A stored patch of two legends when there are 0 to 3 distractors too."""

    name = "superset"

    def take(self, item: WindowItem) -> None:
        if item.index % EVERY:
            return
        canonical, rank, dtype = item.canonical(SUBJECT), quarter_rank(item), item.adapter.dtype
        for way in WAYS:
            stored = form_patch(item.sequence(*_distracted(way, 0), SUBJECT).deficits(), rank, dtype)
            for count in range(MOST + 1):
                sequence = item.sequence(*_distracted(way, count), SUBJECT)
                patches = {STORED: stored, REBUILT: form_patch(sequence.deficits(), rank, dtype)}
                answers = answers_of(sequence, {name: added(canonical, patch) for name, patch in patches.items()})
                note_answers(self.log, item, f"{way}, d = {count}", answers)


def _distracted(way: str, count: int) -> tuple[str, ...]:
    """Return the antecedents with so many distractors."""
    if way == "position-matched":
        return (*PAIR, *MAPS[:count], *(SPARE,) * (MOST - count))
    return (*PAIR, *(MAPS if way == "true superset" else LEGENDS)[:count])


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
        self._basis: list[Directions | None] | None = None
        self._weights: dict[str, float] = {}

    def take(self, item: WindowItem) -> None:
        if item.index % EVERY:
            return
        if self._basis is None:
            self._basis = self._shared(item.engine)
            self._weights = _weights_of(item)
        canonical, dtype = item.canonical(SUBJECT), item.adapter.dtype
        stored = added(canonical, form_patch(item.sequence(*SWAPPED[0], SUBJECT).deficits(), RANK, dtype))
        for count, pages in enumerate(SWAPPED):
            sequence = item.sequence(*pages, SUBJECT)
            deficits = sequence.deficits()
            update = form_patch(difference(sequence.rows(), stored), RANK, dtype)
            ways = {
                STORED: stored,
                UPDATE: added(stored, update),
                REBUILT: added(canonical, form_patch(deficits, RANK, dtype)),
                DEEP: sequence.under(Reprefill(75, deep=True)),
                SHALLOW: sequence.under(Reprefill(50, deep=False)),
                BASIS: added(canonical, project(deficits, self._basis, dtype)),
            }
            note_answers(self.log, item, f"d = {count}", answers_of(sequence, ways))

    def _shared(self, engine: Engine) -> list[Directions | None]:
        """Return directions pooled over items that are not measured."""
        patches = []
        for index in range(self._pooled):
            deficits = WindowItem(engine, POOL_SEED, index).sequence(*SWAPPED[0], SUBJECT).deficits()
            patches.append(form_patch(deficits, 2 * RANK, engine.adapter.dtype))
        return pooled_directions(patches, RANK)

    def figures(self) -> Mapping[str, float]:
        return {f"bytes of {name} over the map's KV": weight for name, weight in self._weights.items()}


def _weights_of(item: WindowItem) -> dict[str, float]:
    """Return the bytes that each way makes, over those of the map's KV."""
    adapter, tokens = item.adapter, item.chunk(SUBJECT).tokens
    slots = slot_widths(adapter)
    return {
        UPDATE: patch_weight(adapter, tokens, RANK),
        # The directions are the model's; only an item's coefficients are its own.
        BASIS: sum(min(RANK, slot) for slot in slots) / sum(slots),
    }
