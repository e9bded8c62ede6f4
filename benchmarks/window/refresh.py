"""The cheapest right answer to changed antecedents: a rank-32 update, beside rebuilding and running layers again."""

from collections.abc import Callable

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.fidelity.measure import POOL_SEED
from benchmarks.table import Cell, Plot, SampleSize, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.bed import SUBJECT, Bed, added, difference
from benchmarks.window.probe import COLUMNS, READING, cells, measured, note, quarter, weight
from emblema.engine.engine import Engine
from emblema.kv.patch import form_patch
from emblema.link.forming import Directions, pooled_directions, project
from emblema.link.strategies.reprefill import Reprefill

RANK = 32
EVERY = 5
"""One item in so many is measured."""
POOLED = 8
"""Other items whose directions make the shared basis."""
SWAPPED: tuple[tuple[str, ...], ...] = (
    ("legend0", "map0", "legend1"),
    ("other0", "map0", "legend1"),
    ("other0", "map0", "other1"),
    ("other0", "map1", "other1"),
)
"""The antecedents with 0 to 3 of them swapped."""
STALE, REBUILT, BASIS = "stored patch", "rebuilt patch", "shared basis"
UPDATE, QUARTER = "rank-32 update", "update, 25 %"
DEEP, SHALLOW = "re-prefill, deep three quarters", "re-prefill, shallow half"


class Refresh:
    """See `measure`."""

    def __init__(self, every: int = EVERY, pooled: int = POOLED) -> None:
        self._every, self._pooled = every, pooled
        self._log = AnswerLog()
        self._basis: list[Directions | None] | None = None
        self._weights: dict[str, float | None] = {}

    def take(self, bed: Bed) -> None:
        """Measure one item with 0 to 3 antecedents swapped, if it is its turn."""
        if bed.index % self._every:
            return
        if self._basis is None:
            self._basis = self._shared(bed.engine)
        canonical, dtype, tokens = bed.canonical(SUBJECT), bed.adapter.dtype, bed.chunk(SUBJECT).tokens
        share = weight(bed.adapter, tokens, RANK)
        slots = [heads * width for one in bed.adapter.layouts for heads, width in (one.keys, one.values)]
        # The directions are the model's; only an item's coefficients are its own.
        coefficients = sum(min(RANK, slot) for slot in slots) / sum(slots)
        small = quarter(bed.adapter, tokens)
        quarters = weight(bed.adapter, tokens, small)
        self._weights = {STALE: 0.0, UPDATE: share, QUARTER: quarters, REBUILT: share, BASIS: coefficients}
        stored = form_patch(bed.front(*SWAPPED[0], SUBJECT).deficits(), RANK, dtype)
        for count, pages in enumerate(SWAPPED):
            front = bed.front(*pages, SUBJECT)
            deficits, held = front.deficits(), added(canonical, stored)
            update = form_patch(difference(front.rows(), held), RANK, dtype)
            answers = {
                FULL: front.ask(),
                BLIND: front.ask({-1: canonical}),
                STALE: front.ask({-1: held}),
                UPDATE: front.ask({-1: added(held, update)}),
                QUARTER: front.ask({-1: added(held, update.slice(small))}),
                REBUILT: front.ask({-1: added(canonical, form_patch(deficits, RANK, dtype))}),
                DEEP: front.ask({-1: front.under(Reprefill(75, deep=True))}),
                SHALLOW: front.ask({-1: front.under(Reprefill(50, deep=False))}),
                BASIS: front.ask({-1: added(canonical, project(deficits, self._basis, dtype))}),
            }
            note(self._log, bed, f"d = {count}", answers, known=False)

    def _shared(self, engine: Engine) -> list[Directions | None]:
        """Directions pooled over items that are not measured."""
        patches = []
        for index in range(self._pooled):
            other = Bed(engine, POOL_SEED, index)
            deficits = other.front(*SWAPPED[0], SUBJECT).deficits()
            patches.append(form_patch(deficits, 2 * RANK, engine.adapter.dtype))
        return pooled_directions(patches, RANK)

    def table(self) -> Table:
        """What was measured."""
        rows: list[tuple[Cell, ...]] = []
        for count in range(len(SWAPPED)):
            for setting in SETTINGS:
                for name in self._log.names(setting, f"d = {count}"):
                    found = cells(self._log, name, setting, f"d = {count}")[:-1]
                    rows.append((count, self._weights.get(name), *found))
        return Table(
            "refresh",
            "Refresh: the cheapest right answer to changed antecedents",
            f"A map behind two legends and a map, d of them swapped for others; a legend for one that gives the same "
            f"colours other lands. Stored: the patch of rank {RANK} from before. Update: the leading {RANK} directions "
            "of what it lacks, added to it. Rebuilt: a patch of the new deficit. Shared basis: the new deficit on "
            f"directions pooled over {self._pooled} other items. Bytes: what is made anew over the map's KV; "
            "re-prefill of layers keeps nothing. " + READING,
            ("d", "bytes", *COLUMNS[:-1]),
            tuple(rows),
            (Plot("d", "eta", "method"), Plot("d", "flips restored", "method")),
        )


def measure(engine: Engine, wanted: SampleSize, advance: Callable[[], object] = lambda: None) -> Table:
    """Kamera, appendix D: the cheapest correct refresh at d = 0 to 3."""
    return measured(engine, wanted, (Refresh(),), advance)[0]
