"""Excess context: a stored patch of two legends when distractors stand in front as well."""

from collections.abc import Callable

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.table import Cell, Plot, SampleSize, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.bed import SPARE, SUBJECT, Bed, added
from benchmarks.window.probe import COLUMNS, READING, cells, measured, note, quarter
from emblema.engine.engine import Engine
from emblema.kv.patch import form_patch

EVERY = 5
"""One item in so many is measured."""
MOST = 3
PAIR = ("legend0", "legend1")
STORED, REBUILT = "stored patch", "rebuilt patch"
MAPS, LEGENDS = ("map0", "map1", "map2"), ("other0", "map0", "other1")
WAYS = ("position-matched", "true superset", "conflicting superset")


class Superset:
    """See `measure`."""

    def __init__(self, every: int = EVERY) -> None:
        self._every = every
        self._log = AnswerLog()

    def take(self, bed: Bed) -> None:
        """Measure one item with 0 to 3 distractors, if it is its turn."""
        if bed.index % self._every:
            return
        canonical, dtype = bed.canonical(SUBJECT), bed.adapter.dtype
        rank = quarter(bed.adapter, bed.chunk(SUBJECT).tokens)
        for way in WAYS:
            stored = form_patch(bed.front(*_pages(way, 0), SUBJECT).deficits(), rank, dtype)
            for count in range(MOST + 1):
                front = bed.front(*_pages(way, count), SUBJECT)
                rebuilt = form_patch(front.deficits(), rank, dtype)
                answers = {
                    FULL: front.ask(),
                    BLIND: front.ask({-1: canonical}),
                    STORED: front.ask({-1: added(canonical, stored)}),
                    REBUILT: front.ask({-1: added(canonical, rebuilt)}),
                }
                note(self._log, bed, _group(way, count), answers, known=False)

    def table(self) -> Table:
        """What was measured."""
        rows: list[tuple[Cell, ...]] = []
        for way in WAYS:
            for count in range(MOST + 1):
                for setting in SETTINGS:
                    for name in self._log.names(setting, _group(way, count)):
                        place, label, *figures = cells(self._log, name, setting, _group(way, count))[:-1]
                        rows.append((count, place, f"{label}, {way}", *figures))
        return Table(
            "superset",
            "Excess context: distractors beside the antecedents that a patch knows",
            "A map behind two legends, whose patch (a quarter of the map's KV) is stored, and d distractors. "
            f"Position-matched: {MOST} white pages stand there too, and maps take their places; a true "
            "superset: maps come on top, and all behind them moves; a conflicting one: what comes on top are legends "
            "that give the same colours other lands. Rebuilt is the patch formed with the distractors there. "
            + READING,
            ("d", *COLUMNS[:-1]),
            tuple(rows),
            (Plot("d", "eta", "method"),),
        )


def measure(engine: Engine, wanted: SampleSize, advance: Callable[[], object] = lambda: None) -> Table:
    """Kamera, appendix D: excess context at d = 0 to 3."""
    return measured(engine, wanted, (Superset(),), advance)[0]


def _pages(way: str, count: int) -> tuple[str, ...]:
    if way == "position-matched":
        return (*PAIR, *MAPS[:count], *(SPARE,) * (MOST - count))
    return (*PAIR, *(MAPS if way == "true superset" else LEGENDS)[:count])


def _group(way: str, count: int) -> str:
    return f"{way}, {count}"
