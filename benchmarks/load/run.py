"""The one runner: a server starts, arms take turns, and what clients see of them is measured.

In a stage one request comes after another: each goes to every arm, another one first each time, so that a busy machine
slows all of them alike. At rates, requests arrive by a Poisson process, and the arms take turns at each rate.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.cost.timing import turned
from benchmarks.load.bars import rate_bars, stage_bars
from benchmarks.load.engine_arm import EngineArm
from benchmarks.load.figures import Figures, rate_figures, stage_figures
from benchmarks.load.requests import LoadRequest, Traffic, TrafficShape, traffic_of
from benchmarks.load.server_arm import ServerArm
from benchmarks.load.servers import random_model, serving, without_cache
from benchmarks.load.stages import AUTO, ENGINE, FIRST, FULL, TALKS, LoadAnswer, methods_of
from benchmarks.table import Bar
from benchmarks.window.arms import counted_rows
from benchmarks.window.experiment import Row
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.eval.figures import environment
from emblema.eval.progress import steps

WARM_UP = 2
"""Requests that are answered before, by arms of the embedded engine that are thrown away."""
RISE = 1.1
"""An arm is sent no higher rate once its answers a second are fewer than so many times the most before."""
TOKENS = 8
"""Tokens of an answer at rates, at the most."""


@dataclass(slots=True)
class LoadBench:
    """Measures stages, one after another and at rates.

    Attributes:
        load: loads the model for the embedded engine.
        command: how the figures are asked for.
        shape, dtype: of a model of random weights, on which the stage `first` is measured.
        random: whether the other stages of servers are, too.
    """

    model: str
    load: Callable[[], Engine]
    command: str
    seed: int
    screen: Console
    shape: str = "137m"
    dtype: str = "float32"
    random: bool = False

    def measure(
        self, engine: str, name: str, shape: TrafficShape, methods: Sequence[str], rates: Sequence[float] = ()
    ) -> Figures:
        """Measure a stage on an engine, with what is to be said of the run.

        Args:
            methods: strategies; the engine's own if there are none.
            rates: requests a second, 0 for one after another, infinity for all at once; none for a stage in turns.

        Raises:
            EmblemaError: a server did not start, or did not answer.
        """
        if rates and engine == ENGINE:
            raise PromptError("rates are of servers: name one of them with --engines")
        if name in TALKS and not rates:
            raise PromptError(f"{name} is measured at rates: give --rates")
        methods, before = methods or methods_of(engine, name), os.getloadavg()[0]
        traffic = traffic_of(shape, self.seed)
        if rates:
            found, bars = self.rates(engine, name, traffic, rates, methods)
        else:
            found, bars = self.stage(engine, name, shape, traffic, methods)
        where, load = environment(), f"{before:.1f} to {os.getloadavg()[0]:.1f}"
        device = f"{where['device']}, {where['cores']} cores, {where['threads']} thread, torch {where['torch']}"
        model = f"random, {self.shape}, {self.dtype}" if self._has_random_weights(name) else self.model
        part = {"part": "rates" if rates else "stages"}
        told = {"model": model, "command": self.command, "device": device, "date": where["date"], "load": load}
        found |= {"runs": [{**part, **told}], "bars": [part | bar.data() for bar in bars]}
        about = {"engine": engine, "stage": name}
        return {listing: [{**about, **row} for row in rows] for listing, rows in found.items()}

    def stage(
        self, engine: str, name: str, shape: TrafficShape, traffic: Traffic, methods: Sequence[str]
    ) -> tuple[Figures, list[Bar]]:
        """Measure one stage; times are compared with the first strategy's."""
        bars: list[Bar] = []
        if engine == ENGINE:
            answers = self._embedded(name, traffic, methods)
        else:
            with self.arms(engine, name, traffic, methods) as arms:
                if name == FIRST:
                    # What is known is stored after the first prompt that shows it.
                    self.in_turns(arms, traffic.requests[:2], "first")
                answers = self.in_turns(arms, traffic.requests, name)
        whole, parts = stage_figures(traffic.requests, answers)
        if engine == ENGINE and AUTO in answers and FULL in answers:
            auto = next(row for row in whole if row["method"] == AUTO)
            bars += stage_bars(shape, auto, parts, traffic.requests, answers)
        return {"stages": whole, "stretches": parts}, bars

    def rates(
        self, engine: str, name: str, traffic: Traffic, rates: Sequence[float], methods: Sequence[str]
    ) -> tuple[Figures, list[Bar]]:
        """Measure every arm of a server at rates that rise until its answers a second do not.

        Every rate has requests of its own. What the answers are compared with comes from one more tenant, by the first
        strategy, one request after another: no arm has seen a request before it is timed.
        """
        share = len(traffic.requests) // len(rates)
        rows: list[Row] = []
        with self.arms(engine, name, traffic, [methods[0], *methods]) as (compared, *arms):
            most, left = dict.fromkeys([arm.name for arm in arms], 0.0), list(arms)
            for place, rate in enumerate(sorted(rates)):
                requests = traffic.requests[place * share : (place + 1) * share]
                plain = [answer.text for answer in send_at_rate(compared, requests, 0, self.seed)[0]]
                for arm in turned(left, place):
                    arm.settle()
                    spent = arm.processor()
                    answers, seconds = send_at_rate(arm, requests, rate, self.seed + place)
                    row = rate_figures(arm.name, rate, answers, (seconds, arm.processor() - spent), plain)
                    rows.append(row)
                    self.screen.print(f"{engine}, {name}, {arm.name} at {rate:g}: {row['answers_s']:.1f} a second")
                    if rate and row["answers_s"] < RISE * most[arm.name]:
                        left.remove(arm)
                    most[arm.name] = max(most[arm.name], row["answers_s"] if rate else 0.0)
        return {"rates": rows}, list(rate_bars(rows))

    def in_turns(
        self, arms: Sequence[EngineArm | ServerArm], requests: Sequence[LoadRequest], title: str
    ) -> dict[str, list[LoadAnswer]]:
        """Return what every arm answers to every request with one token, another arm first each time."""
        found: dict[str, list[LoadAnswer]] = {arm.name: [] for arm in arms}
        with steps(self.screen, f"{title}: {len(requests)} requests", len(requests)) as advance:
            for index, request in enumerate(requests):
                for arm in turned(arms, index):
                    found[arm.name].append(arm.ask(request, 1))
                    arm.settle()
                advance()
        return found

    @contextmanager
    def arms(self, engine: str, stage: str, traffic: Traffic, names: Sequence[str]) -> Iterator[list[ServerArm]]:
        """Run an engine's server; yield the arms, a tenant each."""
        model, more = self.model, list[str]()
        with TemporaryDirectory(prefix="emblema-load-") as place:
            folder = Path(place)
            if self._has_random_weights(stage):
                model = str(random_model(folder / self.shape, self.shape))
                more = ["--dtype", self.dtype, "--load-format", "dummy"]
            if stage == FIRST:
                more += without_cache(engine)
            with serving(engine, model, folder, more) as server:
                any_margin = self._has_random_weights(stage)
                yield [
                    ServerArm(name, server, traffic, f"{number} {name}", any_margin)
                    for number, name in enumerate(names)
                ]

    def _has_random_weights(self, stage: str) -> bool:
        """Return whether a stage is measured on a model of random weights."""
        return stage == FIRST or self.random

    def _embedded(self, stage: str, traffic: Traffic, names: Sequence[str]) -> dict[str, list[LoadAnswer]]:
        engine = self.load()
        with counted_rows(engine.adapter) as counter, ExitStack() as stack:
            for name in names:
                with EngineArm(name, engine, traffic, counter) as thrown:
                    for request in traffic.requests[:WARM_UP]:
                        thrown.ask(request, 1)
            arms = [stack.enter_context(EngineArm(name, engine, traffic, counter)) for name in names]
            return self.in_turns(arms, traffic.requests, stage)


def send_at_rate(
    arm: ServerArm, requests: Sequence[LoadRequest], rate: float, seed: int
) -> tuple[list[LoadAnswer], float]:
    """Send requests at the moments of a Poisson process, or one after another; return the answers, and all seconds.

    One that follows another is sent when that is answered.
    """
    bodies = [arm.body(request, TOKENS) for request in requests]
    began = time.perf_counter()
    if not rate:
        return [arm.send(body, time.perf_counter()) for body in bodies], time.perf_counter() - began
    starts = [number for number, request in enumerate(requests) if number == 0 or not request.follows]
    chains = list(map(range, starts, [*starts[1:], len(requests)]))
    gaps, moments, now = random.Random(seed), list[float](), began
    for _ in chains:
        moments.append(now)
        now += gaps.expovariate(rate)

    def send(chain: range, moment: float) -> list[LoadAnswer]:
        time.sleep(max(0.0, moment - time.perf_counter()))
        first = arm.send(bodies[chain[0]], moment)
        return [first, *(arm.send(bodies[number], time.perf_counter()) for number in chain[1:])]

    with ThreadPoolExecutor(len(chains)) as pool:
        answers = [answer for sent in pool.map(send, chains, moments) for answer in sent]
    return answers, time.perf_counter() - began
