"""The bundled models' bars: fresh episodes, legends visible or slid, answered by re-prefill and by reuse."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.fidelity.arms import BLIND, FULL
from benchmarks.fidelity.measure import FidelityOptions, FidelityRecord, FidelityRun, TaskSource
from benchmarks.fidelity.summary import FigureRow, rows_of
from benchmarks.recordfile import RecordFile
from benchmarks.table import Bar, show_bars
from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.prompts import SETTINGS, answer_token, forget, messages, pieces
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError

PATCH = "patch-25%"
STRATEGIES = (FULL, BLIND, PATCH, "patch-6%")
QUESTIONS = ("colour", "land")
HOPS = {"colour": "single-hop", "land": "multi-hop"}
SAMPLED = 20
"""Of so many episodes one is also checked for `prefix` against `full`, logits against logits."""
EXACT = 1e-3


@dataclass(frozen=True, slots=True)
class BarsResult:
    """Everything that was measured.

    Attributes:
        rows: figures of each setting, kind of question and strategy, as `fidelity.summary` makes them, with `kind`.
        exactness: the largest |logit(prefix) - logit(full)| of `exactness_items` questions.
    """

    model: str
    task: str
    seed: int
    episodes: int
    rows: tuple[FigureRow, ...]
    exactness: float
    exactness_items: int

    def row(self, setting: str, kind: str, strategy: str) -> FigureRow:
        """Return the figures of a strategy on the questions of a kind in a setting."""
        asked = (setting, kind, strategy)
        return next(row for row in self.rows if (row["setting"], row["kind"], row["strategy"]) == asked)


def measure(
    engine: Engine, task: str, seed: int, episodes: int, *, kinds: Sequence[str] = QUESTIONS,
    strategies: Sequence[str] = STRATEGIES, screen: Console | None = None,
) -> BarsResult:  # fmt: skip
    """Ask every question of some kinds about fresh episodes in both settings under every strategy.

    Raises:
        EmblemaError: the model's vocabulary does not hold an answer.
    """
    source = TaskSource(task, kinds=tuple(kinds))
    items = list(source.first(seed, episodes))
    answers = {question.answer for item in items for question in item.questions}
    unknown = sorted(answer for answer in answers if answer_token(engine, answer) is None)
    if unknown:
        raise EmblemaError(f"the model's vocabulary does not hold {unknown[0]!r}: give a bundled model")
    model = Path(str(engine.adapter.model.config.name_or_path or engine.adapter.family)).name
    with TemporaryDirectory() as folder, RecordFile(Path(folder) / "bars.jsonl", FidelityRecord) as records:
        options = FidelityOptions(tuple(strategies), SETTINGS, episodes, seed)
        FidelityRun(engine, model, options, records).run([source], screen or Console(quiet=True))
        held = list(records.held.values())
    asked = {item.id: [question.kind for question in item.questions] for item in items}
    rows = [{**row, "kind": HOPS.get(kind, kind)} for kind in kinds for row in rows_of(_of_kind(held, asked, kind))]
    rows.sort(key=lambda row: SETTINGS.index(row["setting"]))
    gaps = [gap for item in items[::SAMPLED] for gap in _prefix_gap(engine, item)]
    return BarsResult(model, task, seed, episodes, tuple(rows), max(gaps, default=0.0), len(gaps))


def _of_kind(records: Sequence[FidelityRecord], asked: dict[str, list[str]], kind: str) -> list[FidelityRecord]:
    """Return the records with the questions of one kind alone."""
    kept = []
    for record in records:
        places = [place for place, own in enumerate(asked[record.item]) if own == kind]
        if places:
            kept.append(record.only(places))
    return kept


def _prefix_gap(engine: Engine, item: TaskItem) -> list[float]:
    """Return the largest difference of a logit between `prefix` and `full` at an item's second question, if any."""
    if len(item.questions) < 2:
        return []
    made = pieces(engine, item)
    first, second = (messages(item, index, made, "visible") for index in (0, 1))
    engine.prefill(first, FULL)
    gap = engine.prefill(second, "prefix").logits - engine.prefill(second, FULL).logits
    forget(engine, made)
    return [float(gap.abs().max())]


def bars_of(result: BarsResult) -> tuple[Bar, ...]:
    """Return the bars of task `maps`; none for other tasks, or where what they speak of was left out."""
    measured = {(row["kind"], row["strategy"]) for row in result.rows}
    needed = {(kind, strategy) for kind in HOPS.values() for strategy in (FULL, BLIND, PATCH)}
    if result.task != "maps" or not needed <= measured:
        return ()
    bars = [
        Bar(f"re-prefill, {kind}, {setting}", result.row(setting, kind, FULL)["accuracy"], least)
        for setting in SETTINGS
        for kind, least in (("single-hop", 0.97), ("multi-hop", 0.95))
    ]
    for setting in SETTINGS:
        lost = abs(result.row(setting, "single-hop", BLIND)["accuracy_lost"])
        bars.append(Bar(f"blind against re-prefill, single-hop, {setting}", lost, 0.01, least=False))
    for setting in reversed(SETTINGS):
        aim = setting == "visible"
        floor = result.row(setting, "multi-hop", BLIND)["accuracy"]
        bars.append(Bar(f"blind, multi-hop, {setting}", floor, 0.5, least=False, aim=aim))
        for kind in ("multi-hop", "single-hop"):
            _, upper = result.row(setting, kind, PATCH)["intervals"]["accuracy_lost"]
            bars.append(Bar(f"{PATCH} loses, {kind}, {setting}, upper bound", upper, 0.01, least=False, aim=aim))
    bars.append(Bar("prefix against full, largest difference of a logit", result.exactness, EXACT, least=False))
    return tuple(bars)


def show(screen: Console, result: BarsResult) -> None:
    """Print the bars."""
    screen.print(f"{result.model}: {result.episodes} episodes of {result.task}, seed {result.seed}")
    show_bars(screen, bars_of(result))


def report(result: BarsResult) -> dict[str, Any]:
    """Return the result as plain data."""
    return {**asdict(result), "bars": [bar.data() for bar in bars_of(result)]}
