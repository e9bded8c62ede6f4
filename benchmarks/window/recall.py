"""Recall: an evicted page comes back behind a window that has moved on: its stored patch, a fresh one, re-prefill."""

from collections.abc import Callable

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.table import Bar, Cell, Plot, SampleSize, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.bed import SUBJECT, Bed, added
from benchmarks.window.probe import COLUMNS, READING, cells, measured, note, quarter, weight
from emblema.engine.engine import Engine
from emblema.kv.patch import form_patch

RANK = 32
AT_EVICTION = ("legend0", "map0", "map1", "legend1", "map2")
COMING = ("other0", "map3", "map4", "other1", "map5")
"""What comes in turn by turn as the oldest leave; the new legends give the same colours other lands."""
ASKED = 3
"""Turnovers of an item: none, and others in turn."""
STALE, FRESH, QUARTER = "stale patch", "fresh patch", "fresh patch, 25 %"
RECOVERED = 0.95
ALL = "all"


class Recall:
    """See `measure`."""

    def __init__(self) -> None:
        self._log = AnswerLog()
        self._share = 0.0

    def take(self, bed: Bed) -> None:
        """Measure one item at three turnovers."""
        canonical, dtype, tokens = bed.canonical(SUBJECT), bed.adapter.dtype, bed.chunk(SUBJECT).tokens
        self._share = weight(bed.adapter, tokens, RANK)
        stale = form_patch(bed.front(*AT_EVICTION, SUBJECT).deficits(), RANK, dtype)
        for left in _turnovers(bed.index):
            front = bed.front(*AT_EVICTION[left:], *COMING[:left], SUBJECT)
            fresh = form_patch(front.deficits(), RANK, dtype)
            answers = {
                FULL: front.ask(),
                BLIND: front.ask({-1: canonical}),
                STALE: front.ask({-1: added(canonical, stale)}),
                FRESH: front.ask({-1: added(canonical, fresh)}),
                QUARTER: front.ask({-1: added(canonical, fresh.slice(quarter(bed.adapter, tokens)))}),
            }
            for group in (_turnover(left), ALL):
                note(self._log, bed, group, answers, known=False)

    def table(self) -> Table:
        """What was measured."""
        rows: list[tuple[Cell, ...]] = []
        for left in range(len(AT_EVICTION) + 1):
            for setting in SETTINGS:
                for name in self._log.names(setting, _turnover(left)):
                    found = cells(self._log, name, setting, _turnover(left))
                    rows.append((left / len(AT_EVICTION), *found[:-1]))
        bars = []
        for setting in SETTINGS:
            row = self._log.row(FRESH, setting, ALL)
            if row is not None and row.flips.count:
                name = f"flips restored by a fresh patch at all turnovers, {setting}"
                bars.append(Bar(name, row.flips.value, RECOVERED, True, row.flips.count))
        return Table(
            "recall",
            "Recall: a page comes back behind a window that has moved on",
            f"A map behind {len(AT_EVICTION)} pages is evicted with its patch, and comes back when a share of them has "
            "left and others have come (the turnover), the first of these a legend that gives the same colours other "
            f"lands. Patches of rank {RANK} ({self._share:.0%} of the map's KV): stale is the one from before, fresh "
            "is formed on what stands there now. Re-prefill is the reference. " + READING,
            ("turnover", *COLUMNS[:-1]),
            tuple(rows),
            (Plot("turnover", "eta", "method"), Plot("turnover", "flips restored", "method")),
            tuple(bars),
        )


def measure(engine: Engine, wanted: SampleSize, advance: Callable[[], object] = lambda: None) -> Table:
    """Kamera, section 5 and table 1: recall at turnover 0 to 1."""
    return measured(engine, wanted, (Recall(),), advance)[0]


def _turnovers(index: int) -> list[int]:
    """How many pages have left: none, and two more that items take in turns."""
    count = len(AT_EVICTION)
    return [0, *(1 + (index * (ASKED - 1) + step) % count for step in range(ASKED - 1))]


def _turnover(left: int) -> str:
    return f"turnover {left}"
