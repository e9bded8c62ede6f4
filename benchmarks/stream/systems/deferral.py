"""Cuts that are put off against cuts done at once (Mosaic, figure 8)."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console

from benchmarks.intervals import Interval
from benchmarks.stream.systems.clock import ratio
from benchmarks.stream.systems.running import ask_one, feed, film_of, opened, questions
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.table import Bar, Cell, Plot, Table
from emblema.engine.engine import Engine
from emblema.eval.metrics import Share
from emblema.eval.progress import steps

DEFERRED, EAGER = "deferred", "eager"
BETWEEN, ASKED = 64, 5
COLUMNS = (
    "kind",
    "splitting",
    "cuts",
    "semantic cuts",
    "visual cuts",
    "divided",
    "put off",
    "of them settled",
    "fetches for upkeep",
    "stores",
    "regrouped bytes",
    "clusters",
    "encode CPU ms a frame",
    "cuts over eager",
    "encode CPU over eager",
    "right",
)
NOTE = (
    "Mosaic's figure 8. The same film to two streams in turns, one that puts cuts off until a cluster is fetched and "
    f"one that cuts at once; both are asked {ASKED} questions every {BETWEEN} frames, so that clusters are fetched. "
    "Frames retrieve nothing while they are encoded, so that what is fetched then is for upkeep. "
    "Cuts are those of all layers and of the visual level; 'divided' are semantic clusters that straddled a visual "
    "cut. Fetches for upkeep are blocks brought to the device while frames are encoded; stores are writes of new rows "
    "to the host; regrouped bytes move on the host alone. CPU over eager is the median of ratios push by push, with "
    "its 95 % interval: cuts that a question sets off fall outside pushes. 'right' is the share of questions answered "
    "right. The last rows are sums over kinds."
)


@dataclass(slots=True)
class Upheld:
    """What one stream counted.

    Attributes:
        totals: its counts at the end.
        encoding: what was counted while frames were pushed.
        cpu: seconds of each push.
        right: whether each question was answered right.
    """

    frames: int
    totals: Counter[str] = field(default_factory=Counter)
    encoding: Counter[str] = field(default_factory=Counter)
    cpu: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)

    @property
    def cuts(self) -> float:
        return self.totals["semantic_cuts"] + self.totals["visual_cuts"]

    def plus(self, other: "Upheld") -> "Upheld":
        """Both together."""
        return Upheld(
            self.frames + other.frames,
            self.totals + other.totals,
            self.encoding + other.encoding,
            self.cpu + other.cpu,
            self.right + other.right,
        )


def measure_deferral(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """Cuts, transfers for upkeep and encoding time of both ways, by kind of film."""
    began, rows = time.perf_counter(), list[tuple[Cell, ...]]()
    both = {DEFERRED: Upheld(0), EAGER: Upheld(0)}
    blocks = -(-wanted.frames // wanted.settings.block)
    with steps(console, "deferral", len(wanted.kinds) * blocks) as tick:
        for kind in wanted.kinds:
            own = _upheld(engine, wanted, kind, tick)
            rows += _rows(kind, own)
            both = {name: both[name].plus(own[name]) for name in both}
    rows += _rows("all", both)
    cuts = both[DEFERRED].cuts / both[EAGER].cuts if both[EAGER].cuts else None
    bars = (Bar("cuts put off over cuts at once", cuts, 1.0, least=False, count=int(both[EAGER].cuts)),)
    plots = tuple(Plot("kind", y, "splitting", bars=True) for y in ("cuts", "encode CPU ms a frame"))
    spent = time.perf_counter() - began
    return Table("deferral", "Cuts put off against cuts at once", NOTE, COLUMNS, tuple(rows), plots, bars, spent)


def _upheld(engine: Engine, wanted: SystemsWanted, kind: str, tick: Callable[[], None]) -> dict[str, Upheld]:
    film = film_of(kind, wanted.frames, wanted)
    found = {name: Upheld(wanted.frames) for name in (DEFERRED, EAGER)}
    with ExitStack() as stack:
        own = {"retrieve_while_encoding": False}
        streams = {name: opened(stack, engine, "mosaic", wanted.settings, splitting=name, **own) for name in found}
        for start in range(0, wanted.frames, BETWEEN):
            stop = min(start + BETWEEN, wanted.frames)
            before = {name: Counter(stream.counts) for name, stream in streams.items()}
            spent = feed(streams, film, start, stop, wanted.settings.block, tick)
            for name, stream in streams.items():
                found[name].cpu += [one.cpu for one in spent[name]]
                found[name].encoding += Counter(stream.counts) - before[name]
            for one in questions(film, stop)[:ASKED]:
                for name, stream in streams.items():
                    found[name].right.append(ask_one(stream, one.text).text.strip() == one.answer)
        for name, stream in streams.items():
            found[name].totals = Counter(stream.counts)
    return found


def _rows(kind: str, found: dict[str, Upheld]) -> list[tuple[Cell, ...]]:
    eager = found[EAGER]
    return [_row(kind, name, own, eager) for name, own in found.items()]


def _row(kind: str, name: str, own: Upheld, eager: Upheld) -> tuple[Cell, ...]:
    totals = own.totals
    cpu: Interval = ratio(own.cpu, eager.cpu)
    return (
        kind,
        name,
        int(own.cuts),
        int(totals["semantic_cuts"]),
        int(totals["visual_cuts"]),
        int(totals["divided"]),
        int(totals["semantic_put_off"] + totals["visual_put_off"]),
        int(totals["semantic_settled"] + totals["visual_settled"]),
        int(own.encoding["fetches"]),
        int(totals["stores"]),
        int(totals["moved_bytes"]),
        int(totals["clusters"] + totals["visual_clusters"]),
        1000 * sum(own.cpu) / own.frames,
        own.cuts / eager.cuts if eager.cuts else None,
        cpu,
        Share(sum(own.right) / len(own.right), len(own.right)),
    )
