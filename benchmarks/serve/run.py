"""What `python -m benchmarks serve` does, from options to files; a killed run goes on with the part it was in."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.recordfile import RecordFile, digest
from benchmarks.serve.decoding import measure_decoding
from benchmarks.serve.generator import GeneratorPlan, measure_generator
from benchmarks.serve.load import LoadPlan, LoadRun, measure_load
from benchmarks.serve.report import load_tables, write_serve
from benchmarks.serve.requests import EMBEDDED_ALONE
from benchmarks.serve.servers import EMBEDDED
from benchmarks.serve.single import SinglePlan, measure_knobs, measure_pictures
from benchmarks.table import Table
from benchmarks.traffic.run import source_of
from emblema.engine.engine import Engine

DECODING, LOAD, SINGLE, GENERATOR = "decoding", "load", "single", "generator"
PARTS = (DECODING, LOAD, SINGLE, GENERATOR)
MODEL = "reference"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to measure.

    Attributes:
        command: how the run is asked for, without the places that it writes to.
        parts: of `PARTS`.
        engines: of `ENGINES`.
        traffic: of `TRAFFIC`.
        plan: of the load.
        rounds: of decoding.
        single: of requests one at a time.
    """

    command: str
    parts: tuple[str, ...]
    engines: tuple[str, ...]
    traffic: tuple[str, ...]
    plan: LoadPlan
    rounds: int
    single: SinglePlan


@dataclass(frozen=True, slots=True)
class ServePart:
    """A part that was measured.

    Attributes:
        key: of all that its figures depend on.
        tables: that are made already.
        runs: under load.
        load: load average of the machine before and after.
    """

    key: str
    tables: tuple[Table, ...] = ()
    runs: tuple[LoadRun, ...] = ()
    load: tuple[float, float] = (0.0, 0.0)


Measured = tuple[tuple[Table, ...], tuple[LoadRun, ...]]


class ServeBench:
    """Measures the parts that are not on record, and writes the page after each.

    Args:
        options: what to measure.
        load: loads the model.
        folder: of page, figures and records.
        screen: is told what happens.
    """

    def __init__(self, options: ServeOptions, load: Callable[[], Engine], folder: Path, screen: Console) -> None:
        self.options, self.load, self.folder, self.screen = options, load, folder, screen
        self._source = source_of()
        self._found: list[ServePart] = []

    def run(self) -> Path:
        """Measure, and return the page's path.

        Raises:
            EmblemaError: a server did not start or did not answer, or a file is not right.
        """
        page = self.folder / "serve.md"
        with RecordFile(self.folder / "serve.records.jsonl", ServePart) as records:
            for name, measure in self._parts():
                key = digest(self._source["digest"], MODEL, name)
                if key not in records.held:
                    self.say(f"measuring {name}")
                    before = os.getloadavg()[0]
                    tables, runs = measure()
                    records.add([ServePart(key, tables, runs, (before, os.getloadavg()[0]))])
                self._found.append(records.held[key])
                page = self._write()
        return page

    def _parts(self) -> list[tuple[str, Callable[[], Measured]]]:
        """Return the parts, each with a name that tells all that it depends on, and what measures it."""
        options, plan = self.options, self.options.plan
        found: list[tuple[str, Callable[[], Measured]]] = []
        if DECODING in options.parts:
            found.append((f"decoding, {options.rounds} rounds, seed {plan.seed}", self._decoding))
        if LOAD in options.parts:
            for engine in options.engines:
                for traffic in options.traffic:
                    if engine == EMBEDDED or traffic not in EMBEDDED_ALONE:
                        found.append((f"{traffic} on {engine}: {plan}", self._loaded(engine, traffic)))
        if SINGLE in options.parts:
            found.append((f"knobs one at a time: {options.single}", self._knobs))
            found.append((f"pictures one at a time: {options.single}", self._pictures))
        if GENERATOR in options.parts and find_spec("vllm"):
            sent = GeneratorPlan(MODEL, plan.requests, plan.seed)
            found.append((f"generator on {', '.join(options.engines)}: {sent}", lambda: self._generated(sent)))
        elif GENERATOR in options.parts:
            self.say("vLLM is not installed here: `vllm bench serve` sends nothing")
        return found

    def _generated(self, sent: GeneratorPlan) -> Measured:
        with TemporaryDirectory(prefix="emblema-serve-") as place:
            return (measure_generator(self.options.engines, sent, Path(place)),), ()

    def _knobs(self) -> Measured:
        with self.load() as engine:
            return (measure_knobs(engine, self.options.single, self.screen),), ()

    def _pictures(self) -> Measured:
        with self.load() as engine:
            return measure_pictures(engine, self.options.single, self.screen), ()

    def _decoding(self) -> Measured:
        with self.load() as engine:
            return (measure_decoding(engine, self.options.plan.seed, self.options.rounds, self.say),), ()

    def _loaded(self, engine: str, traffic: str) -> Callable[[], Measured]:
        def tell(run: LoadRun) -> None:
            self.say(
                f"{engine}, {traffic}, {run.method} at {run.rate:g}: {run.tokens / run.seconds:.1f} tokens a second"
            )

        def measure() -> Measured:
            with TemporaryDirectory(prefix="emblema-serve-") as place:
                return (), measure_load(self.options.plan, engine, traffic, Path(place), tell)

        return measure

    def say(self, line: str) -> None:
        """Print a line."""
        self.screen.print(line, soft_wrap=True, markup=False)

    def _write(self) -> Path:
        runs = [run for part in self._found for run in part.runs]
        tables = [*load_tables(runs), *(table for part in self._found for table in part.tables)]
        loads = [value for part in self._found for value in part.load]
        plan = self.options.plan
        options = {
            "rates": ",".join(f"{rate:g}" for rate in plan.rates), "requests": plan.requests, "seed": plan.seed,
            "files of the package": self._source["digest"], "load average": f"{min(loads):.1f} to {max(loads):.1f}",
        }  # fmt: skip
        return write_serve(tables, runs, self.options.command, options, MODEL, self.folder)
