"""The tables of Kamera's appendix D: drift, excess context, and the cheapest refresh."""

import numpy as np
import torch

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.fidelity.measure import POOL_SEED
from benchmarks.table import Cell, Plot, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.item import SPARE, SUBJECT, Logits, WindowItem, added, difference
from benchmarks.window.probe import (
    COLUMNS,
    READING,
    answers_of,
    figure,
    method_cells,
    note_answers,
    patch_weight,
    quarter_rank,
    slot_widths,
)
from emblema.engine.engine import Engine
from emblema.eval.metrics import MEASURABLE
from emblema.kv.patch import form_patch
from emblema.link.forming import Directions, pooled_directions, project
from emblema.link.policy.fidelity import divergence
from emblema.link.strategies.reprefill import Reprefill

EVERY = 5
"""One item in so many is measured."""
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
"""Share of an item's gap that a stored patch has to close for its reuse to count as right."""


class Divergence:
    """Drift: a stored patch after antecedents that were changed, and what a cheap signal says of it."""

    def __init__(self) -> None:
        self._log = AnswerLog()
        self._judged: list[tuple[float, bool]] = []

    def take(self, item: WindowItem) -> None:
        """Measure one item under every change, if it is its turn."""
        if item.index % EVERY:
            return
        canonical, rank, dtype = item.canonical(SUBJECT), quarter_rank(item), item.adapter.dtype
        stored = added(canonical, form_patch(item.sequence(*BEFORE, SUBJECT).deficits(), rank, dtype))
        for change, pages in CHANGES.items():
            sequence = item.sequence(*pages, SUBJECT)
            exact = added(canonical, form_patch(sequence.deficits(), rank, dtype))
            answers = answers_of(sequence, {STORED: stored, EXACT: exact})
            note_answers(self._log, item, change, answers, known=False)
            apart = _cosine(item, pages)
            self._log.value(item.episode, {f"cosine/{change}": apart})
            self._judged += [(apart, safe) for safe in _safe(answers)]

    def table(self) -> Table:
        """Return what was measured."""
        rows = [
            (change, figure(self._log, f"cosine/{change}"), *cells[:-1])
            for change in CHANGES
            for _, _, cells in method_cells(self._log, change)
        ]
        return Table(
            "divergence",
            "Drift: a stored patch after changed antecedents",
            f"A map after {len(BEFORE)} pages, two of them legends, which are changed. Patches weigh a quarter of the "
            "map's KV: stored is of the pages as they were, exact of those that are there now. A legend that is "
            "replaced gives the same colours other lands. Cosine: distance of the mean embedding of the antecedents' "
            f"media from what it was. {self._gate()} " + READING,
            ("change", "cosine", *COLUMNS[:-1]),
            tuple(rows),
            (Plot("change", "eta", "method", bars=True), Plot("change", "KL", "method", bars=True)),
        )

    def _gate(self) -> str:
        """Return what the cosine distance would be worth as a gate."""
        kept, lost = ([apart for apart, safe in self._judged if safe is wanted] for wanted in (True, False))
        if not kept or not lost:
            return "As a gate it could not be judged: too few answers."
        nearest = sorted(self._judged, key=lambda judged: judged[0])[: len(self._judged) // 2]
        wrong = sum(not safe for _, safe in nearest)
        return (
            f"As a gate: where the stored patch closes {SAFE:g} of an answer's gap its median is "
            f"{np.median(kept):.3f}, where it does not {np.median(lost):.3f}, and of the nearer half of all "
            f"{len(self._judged)} answers {wrong / len(nearest):.0%} would be reused falsely."
        )


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


class Superset:
    """Excess context: a stored patch of two legends when there are distractors too."""

    def __init__(self) -> None:
        self._log = AnswerLog()

    def take(self, item: WindowItem) -> None:
        """Measure one item with 0 to 3 distractors, if it is its turn."""
        if item.index % EVERY:
            return
        canonical, rank, dtype = item.canonical(SUBJECT), quarter_rank(item), item.adapter.dtype
        for way in WAYS:
            stored = form_patch(item.sequence(*_distracted(way, 0), SUBJECT).deficits(), rank, dtype)
            for count in range(MOST + 1):
                sequence = item.sequence(*_distracted(way, count), SUBJECT)
                patches = {STORED: stored, REBUILT: form_patch(sequence.deficits(), rank, dtype)}
                answers = answers_of(sequence, {name: added(canonical, patch) for name, patch in patches.items()})
                note_answers(self._log, item, f"{way}, {count}", answers, known=False)

    def table(self) -> Table:
        """Return what was measured."""
        rows: list[tuple[Cell, ...]] = []
        for way in WAYS:
            for count in range(MOST + 1):
                for _, _, (setting, label, *figures) in method_cells(self._log, f"{way}, {count}"):
                    rows.append((count, setting, f"{label}, {way}", *figures[:-1]))
        return Table(
            "superset",
            "Excess context: distractors beside the antecedents that a patch knows",
            "A map after two legends, whose patch (a quarter of the map's KV) is stored, and d distractors. "
            f"Position-matched: {MOST} white pages are there too, and maps take their places; a true "
            "superset: maps are added, and all after them moves; a conflicting one: what is added are legends "
            "that give the same colours other lands. Rebuilt is the patch formed with the distractors there. "
            + READING,
            ("d", *COLUMNS[:-1]),
            tuple(rows),
            (Plot("d", "eta", "method"),),
        )


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
BASIS, UPDATE, UPDATE_QUARTER = "shared basis", "rank-32 update", "update, 25 %"
DEEP, SHALLOW = "re-prefill, deep three quarters", "re-prefill, shallow half"


class Refresh:
    """The cheapest right answer to changed antecedents: a rank-32 update, beside rebuilding and running layers again.

    Args:
        pooled: other items whose directions make the shared basis.
    """

    def __init__(self, pooled: int = POOLED) -> None:
        self._pooled = pooled
        self._log = AnswerLog()
        self._basis: list[Directions | None] | None = None
        self._weights: dict[str, float | None] = {}

    def take(self, item: WindowItem) -> None:
        """Measure one item with 0 to 3 antecedents swapped, if it is its turn."""
        if item.index % EVERY:
            return
        if self._basis is None:
            self._basis = self._shared(item.engine)
        self._weights = self._weights or _weights_of(item)
        canonical, rank, dtype = item.canonical(SUBJECT), quarter_rank(item), item.adapter.dtype
        stored = added(canonical, form_patch(item.sequence(*SWAPPED[0], SUBJECT).deficits(), RANK, dtype))
        for count, pages in enumerate(SWAPPED):
            sequence = item.sequence(*pages, SUBJECT)
            deficits = sequence.deficits()
            update = form_patch(difference(sequence.rows(), stored), RANK, dtype)
            ways = {
                STORED: stored,
                UPDATE: added(stored, update),
                UPDATE_QUARTER: added(stored, update.slice(rank)),
                REBUILT: added(canonical, form_patch(deficits, RANK, dtype)),
                DEEP: sequence.under(Reprefill(75, deep=True)),
                SHALLOW: sequence.under(Reprefill(50, deep=False)),
                BASIS: added(canonical, project(deficits, self._basis, dtype)),
            }
            note_answers(self._log, item, f"d = {count}", answers_of(sequence, ways), known=False)

    def _shared(self, engine: Engine) -> list[Directions | None]:
        """Return directions pooled over items that are not measured."""
        patches = []
        for index in range(self._pooled):
            deficits = WindowItem(engine, POOL_SEED, index).sequence(*SWAPPED[0], SUBJECT).deficits()
            patches.append(form_patch(deficits, 2 * RANK, engine.adapter.dtype))
        return pooled_directions(patches, RANK)

    def table(self) -> Table:
        """Return what was measured."""
        rows = [
            (count, self._weights.get(name), *cells[:-1])
            for count in range(len(SWAPPED))
            for _, name, cells in method_cells(self._log, f"d = {count}")
        ]
        return Table(
            "refresh",
            "Refresh: the cheapest right answer to changed antecedents",
            f"A map after two legends and a map, d of them swapped for others; a legend for one that gives the same "
            f"colours other lands. Stored: the patch of rank {RANK} from before. Update: the leading {RANK} directions "
            "of what it lacks, added to it. Rebuilt: a patch of the new deficit. Shared basis: the new deficit on "
            f"directions pooled over {self._pooled} other items. Bytes: what is newly made over the map's KV; "
            "re-prefill of layers keeps nothing. " + READING,
            ("d", "bytes", *COLUMNS[:-1]),
            tuple(rows),
            (Plot("d", "eta", "method"), Plot("d", "flips restored", "method")),
        )


def _weights_of(item: WindowItem) -> dict[str, float | None]:
    """Return the bytes that each way makes, over those of the map's KV."""
    adapter, tokens = item.adapter, item.chunk(SUBJECT).tokens
    slots = slot_widths(adapter)
    return {
        STORED: 0.0,
        UPDATE: patch_weight(adapter, tokens, RANK),
        UPDATE_QUARTER: patch_weight(adapter, tokens, quarter_rank(item)),
        REBUILT: patch_weight(adapter, tokens, RANK),
        # The directions are the model's; only an item's coefficients are its own.
        BASIS: sum(min(RANK, slot) for slot in slots) / sum(slots),
    }
