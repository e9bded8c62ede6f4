"""What moves between host and device: cuts put off or done at once, and prefetching (Mosaic, figures 8 and 9b)."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console

from benchmarks.stream.systems.running import (
    AskCost,
    SystemsOptions,
    ask_in_turns,
    ask_word,
    cpu_ratio,
    feed,
    film_of,
    median_ms,
    opened,
    questions,
    ratio,
    ttft_ratio,
)
from benchmarks.table import Bar, Cell, Plot, Table
from emblema.engine.engine import Engine
from emblema.eval.metrics import Share
from emblema.eval.progress import steps

DEFERRED, EAGER = "deferred", "eager"
BETWEEN, ASKED = 64, 5
DEFERRAL_COLUMNS = (
    "kind", "splitting", "cuts", "semantic cuts", "visual cuts", "divided", "put off", "of them settled",
    "fetches for upkeep", "stores", "clusters", "encode CPU ms a frame", "cuts over eager",
    "encode CPU over eager", "right",
)  # fmt: skip
DEFERRAL_NOTE = (
    "Mosaic's figure 8. The same film to two streams in turns, one that puts cuts off until a cluster is fetched and "
    f"one that cuts at once; both are asked {ASKED} questions every {BETWEEN} frames, so that clusters are fetched. "
    "Frames retrieve nothing while they are encoded, so that what is fetched then is for upkeep. "
    "Cuts are those of all layers and of the visual level; 'divided' are semantic clusters that straddled a visual "
    "cut. Fetches for upkeep are runs of frames brought to the device while frames are encoded; stores are writes of "
    "new rows to the host. CPU over eager is the median of ratios push by push, with "
    "its 95 % interval: cuts that a question sets off fall outside pushes. 'right' is the share of questions answered "
    "right. The last rows are sums over kinds."
)


@dataclass(slots=True)
class UpkeepCounts:
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
        """Cuts of both levels."""
        return self.totals["semantic_cuts"] + self.totals["visual_cuts"]

    def plus(self, other: "UpkeepCounts") -> "UpkeepCounts":
        """Return both together."""
        return UpkeepCounts(
            self.frames + other.frames,
            self.totals + other.totals,
            self.encoding + other.encoding,
            self.cpu + other.cpu,
            self.right + other.right,
        )


def measure_deferral(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure cuts, transfers for upkeep and encoding time of both ways, by kind of film."""
    rows = list[tuple[Cell, ...]]()
    both = {DEFERRED: UpkeepCounts(0), EAGER: UpkeepCounts(0)}
    blocks = -(-options.frames // options.settings.block)
    with steps(console, "deferral", len(options.kinds) * blocks) as tick:
        for kind in options.kinds:
            own = _upkeep(engine, options, kind, tick)
            rows += _deferral_rows(kind, own)
            both = {name: both[name].plus(own[name]) for name in both}
    rows += _deferral_rows("all", both)
    cuts = both[DEFERRED].cuts / both[EAGER].cuts if both[EAGER].cuts else None
    bars = (Bar("cuts put off over cuts at once", cuts, 1.0, least=False, count=int(both[EAGER].cuts)),)
    plots = tuple(Plot("kind", y, "splitting", bars=True) for y in ("cuts", "encode CPU ms a frame"))
    title = "Cuts put off against cuts at once"
    return Table("deferral", title, DEFERRAL_NOTE, DEFERRAL_COLUMNS, tuple(rows), plots, bars)


def _upkeep(engine: Engine, options: SystemsOptions, kind: str, tick: Callable[[], object]) -> dict[str, UpkeepCounts]:
    film = film_of(kind, options.frames, options)
    found = {name: UpkeepCounts(options.frames) for name in (DEFERRED, EAGER)}
    with ExitStack() as stack:
        own = {"retrieve_while_encoding": False, "retrieval": "clusters"}
        streams = {name: opened(stack, engine, "mosaic", options.settings, splitting=name, **own) for name in found}
        for start in range(0, options.frames, BETWEEN):
            stop = min(start + BETWEEN, options.frames)
            before = {name: Counter(stream.counts) for name, stream in streams.items()}
            spent = feed(streams, film, start, stop, options.settings.block, tick)
            for name, stream in streams.items():
                found[name].cpu += [push.cpu for push in spent[name]]
                found[name].encoding += Counter(stream.counts) - before[name]
            for question in questions(film, stop)[:ASKED]:
                for name, stream in streams.items():
                    found[name].right.append(ask_word(stream, question.text).text.strip() == question.answer)
        for name, stream in streams.items():
            found[name].totals = Counter(stream.counts)
    return found


def _deferral_rows(kind: str, found: dict[str, UpkeepCounts]) -> list[tuple[Cell, ...]]:
    rows = []
    for name, own in found.items():
        totals, eager = own.totals, found[EAGER]
        counts = (
            own.cuts,
            totals["semantic_cuts"],
            totals["visual_cuts"],
            totals["divided"],
            totals["semantic_put_off"] + totals["visual_put_off"],
            totals["semantic_settled"] + totals["visual_settled"],
            own.encoding["fetches"],
            totals["stores"],
            totals["clusters"] + totals["visual_clusters"],
        )
        rows.append(
            (
                kind,
                name,
                *map(int, counts),
                1000 * sum(own.cpu) / own.frames,
                own.cuts / eager.cuts if eager.cuts else None,
                ratio(own.cpu, eager.cpu),
                Share(sum(own.right) / len(own.right), len(own.right)),
            )
        )
    return rows


OFF = "off"
GUESSES: dict[str, dict[str, object]] = {
    OFF: {"prefetch": False},
    "by queries": {"prefetch": True, "guess": "queries"},
    "by frames": {"prefetch": True, "guess": "frames"},
}
PREFETCH_COLUMNS = (
    "kind", "prefetch", "hit ratio", "used of what came", "transfers ms", "waited ms", "hidden", "TTFT ms", "CPU ms",
    "TTFT over off", "CPU over off",
)  # fmt: skip
PREFETCH_NOTE = (
    "Mosaic's figure 9b. Streams of one film, without and with prefetching by either guess, asked the same questions "
    "in turns, {rounds} times; one stream of each kind. The hit ratio is the share of frames that layers asked for "
    "and that were guessed for them, the first layer's aside, which cannot be guessed; then the share of guessed "
    "frames that were asked for. 'hidden' is the share of transfer time that no layer waited for (1 - waited / "
    "transfers; below 0 where waiting took longer than copying would have). Times and 'hidden' are medians over "
    "answers, ratios medians question by question, with 95 % bootstrap intervals. On {device}: {memory}."
)
SHARED = "there a transfer is a copy inside one memory, and a thread that copies takes its time from the model"
APART = "transfers go from the host's memory to the device's own"


def measure_prefetch(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure hits, hidden transfer time and time to the first token, by guess and kind of film."""
    rows, differing, asked = list[tuple[Cell, ...]](), 0, 0
    for kind in options.kinds:
        asks = _asks(engine, options, kind, console)
        rows += [_prefetch_row(kind, name, own, asks[OFF]) for name, own in asks.items()]
        texts = [tuple(ask.text for ask in turn) for turn in zip(*asks.values(), strict=True)]
        differing += sum(len(set(turn)) > 1 for turn in texts)
        asked += len(texts)
    device = engine.adapter.device.type
    note = PREFETCH_NOTE.format(rounds=options.rounds, device=device, memory=SHARED if device == "cpu" else APART)
    plots = tuple(Plot("kind", y, "prefetch", bars=True) for y in ("hit ratio", "hidden", "TTFT over off"))
    bars = (Bar("answers that prefetching changed", float(differing), 0.0, least=False, count=asked),)
    return Table("prefetch", "Prefetching across layers", note, PREFETCH_COLUMNS, tuple(rows), plots, bars)


def _asks(engine: Engine, options: SystemsOptions, kind: str, console: Console) -> dict[str, list[AskCost]]:
    frames, together = options.frames, options.settings.block
    film = film_of(kind, frames, options)
    total = -(-frames // together) + options.rounds + 1
    with ExitStack() as stack, steps(console, f"prefetch, {kind}", total) as tick:
        streams = {
            name: opened(stack, engine, "mosaic", options.settings, **changes) for name, changes in GUESSES.items()
        }
        feed(streams, film, 0, frames, together, tick)
        return ask_in_turns(streams, [question.text for question in questions(film, frames)], options.rounds, tick)


def _prefetch_row(kind: str, name: str, asks: list[AskCost], off: list[AskCost]) -> tuple[Cell, ...]:
    def total(count: str) -> float:
        return sum(ask.counts[count] for ask in asks)

    hits, guessing = total("hits"), name != OFF
    moved, waited = ([ask.counts[count] for ask in asks] for count in ("fetch_seconds", "waited_seconds"))
    hidden = [1 - wait / move for wait, move in zip(waited, moved, strict=True) if move]
    return (
        kind,
        name,
        hits / total("asked") if guessing and total("asked") else None,
        hits / total("predicted") if guessing and total("predicted") else None,
        median_ms(moved),
        median_ms(waited),
        median(hidden) if guessing and hidden else None,
        median_ms([ask.ttft for ask in asks]),
        median_ms([ask.cpu for ask in asks]),
        ttft_ratio(asks, off),
        cpu_ratio(asks, off),
    )
