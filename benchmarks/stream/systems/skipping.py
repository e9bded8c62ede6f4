"""Frames that show nothing new left out: what it saves, and what it costs in right answers."""

from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console

from benchmarks.intervals import bootstrap, bootstrap_ratio
from benchmarks.stream.systems.running import SystemsOptions, feed, film_of, opened, timed, turned
from benchmarks.table import Cell, Table
from benchmarks.tasks.streams import questions_of
from emblema.engine.engine import Engine
from emblema.eval.metrics import Share
from emblema.eval.progress import steps

SKIPS = (None, 0.05, 0.1, 0.3)
LONGEST, TIMES = 512, 4
COLUMNS = ("kind", "skip", "kept", "encode CPU ms a frame", "CPU over none", "right", "right less none", "films")
NOTE = (
    "The same {films} films of {frames} frames of each kind to streams that leave out frames which differ from the "
    "last one kept by less than `skip`, in turns; all are asked the same questions, {times} times over the second "
    "half. CPU is that of comparing and encoding, drawing the frames not counted, by the film's frames, kept or not. "
    "Ratios and differences are paired, with 95 % intervals by film. The films are kind to it: a change of scene is a "
    "cut, and nothing but light and noise changes in between."
)


@dataclass(slots=True)
class SkipRun:
    """What one stream of each film took and answered; lists have an entry for each film.

    Attributes:
        kept: frames that were encoded.
        cpu: seconds of comparing and encoding.
        right: of each question whether it was answered right.
        films: the film of each question.
    """

    kept: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    films: list[str] = field(default_factory=list)

    def plus(self, other: "SkipRun") -> "SkipRun":
        """Return both together."""
        right, films = self.right + other.right, self.films + other.films
        return SkipRun(self.kept + other.kept, self.cpu + other.cpu, right, films)


def measure_skipping(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure frames kept, encoding time and right answers by what counts as new."""
    frames, films = min(options.frames, LONGEST), max(1, options.rounds // 4)
    rows = list[tuple[Cell, ...]]()
    every = {skip: SkipRun() for skip in SKIPS}
    with steps(console, "skipping", len(options.kinds) * films) as tick:
        for kind in options.kinds:
            own = {skip: SkipRun() for skip in SKIPS}
            for item in range(films):
                _run_film(engine, options, kind, item, frames, own)
                tick()
            rows += _rows(kind, own, frames)
            every = {skip: every[skip].plus(own[skip]) for skip in SKIPS}
    rows += _rows("all", every, frames)
    note = NOTE.format(films=films, frames=frames, times=TIMES)
    return Table("skipping", "Frames that show nothing new left out", note, COLUMNS, tuple(rows))


def _run_film(
    engine: Engine, options: SystemsOptions, kind: str, item: int, frames: int, runs: dict[float | None, SkipRun]
) -> None:
    """Show one film to a stream of each kind, and ask."""
    film, block = film_of(kind, frames, options, item), options.settings.block
    times = sorted({frames - (frames // 2) * step // TIMES for step in range(TIMES)})
    asked, cpu, seen = questions_of(film, tuple(times)), dict.fromkeys(runs, 0.0), 0
    with ExitStack() as stack:
        streams = {skip: opened(stack, engine, "mosaic", options.settings, skip=skip) for skip in runs}
        for at in times:
            spent = feed(streams, film, seen, at, block)
            seen = at
            for skip, stream in streams.items():
                cpu[skip] += sum(push.cpu for push in spent[skip]) + timed(stream.advance)[1].cpu
            for turn, question in enumerate(question for question in asked if question.at == at):
                for skip in turned(list(streams), turn):
                    reply = streams[skip].ask(question.text, max_new_tokens=8)
                    runs[skip].right.append(reply.text.strip() == question.answer)
                    runs[skip].films.append(film.id)
        for skip, stream in streams.items():
            runs[skip].kept.append(stream.frames)
            runs[skip].cpu.append(cpu[skip])


def _rows(kind: str, runs: dict[float | None, SkipRun], frames: int) -> list[tuple[Cell, ...]]:
    rows, base = list[tuple[Cell, ...]](), runs[None]
    for skip, run in runs.items():
        count = len(run.cpu)
        over = bootstrap_ratio(run.cpu, base.cpu, range(count))
        less = bootstrap([int(a) - int(b) for a, b in zip(run.right, base.right, strict=True)], run.films)
        kept = sum(run.kept) / (count * frames)
        cost = 1000 * sum(run.cpu) / (count * frames)
        right = Share(sum(run.right) / len(run.right), len(run.right))
        rows.append((kind, "none" if skip is None else skip, kept, cost, over, right, less, count))
    return rows
