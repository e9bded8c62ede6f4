"""Requests that arrive at rising rates: every method a tenant of one server, asked by streams over HTTP."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.serve.requests import LoadRequest, LoadTraffic, load_traffic
from benchmarks.serve.servers import EMBEDDED, LoadTenant, StreamedAnswer, serving, stream_body
from benchmarks.vllm.saturation import processor_seconds, settle
from emblema.errors import EmblemaError

FULL, PREFIX, AUTO = "full", "prefix", "auto"
METHODS = {
    EMBEDDED: (PREFIX, "full-reuse", "cacheblend-15", "mpic-32", "patch-25%", AUTO),
    "vllm": (PREFIX, "blind", "mpic-32", "patch-25%", AUTO),
}
"""By engine, in the order of the page."""
STRATEGIES = {("vllm", PREFIX): FULL}
"""What a request says in `strategy` where that is not the method's name: vLLM has a prefix cache of its own."""
TOKENS = 8
"""Tokens of an answer at the most."""
RISE = 1.1
"""A method is sent no higher rate once its answers a second are fewer than so many times the most before."""


def send_at_rate(
    tenant: LoadTenant, bodies: Sequence[bytes], rate: float, seed: int
) -> tuple[list[StreamedAnswer], float]:
    """Send requests at the moments of a Poisson process, whether or not those before are answered.

    Returns:
        The answers in order, and seconds from the first arrival to the last end.

    Raises:
        EmblemaError: a request was not answered.
    """
    gaps, moments, now = random.Random(seed), list[float](), 0.0
    for _ in bodies:
        moments.append(now)
        now += gaps.expovariate(rate)
    answers: dict[int, StreamedAnswer] = {}
    failures: list[EmblemaError] = []
    began = time.perf_counter()

    def ask(number: int) -> None:
        try:
            answers[number] = tenant.ask(bodies[number], began + moments[number], began)
        except EmblemaError as error:
            failures.append(error)

    threads = []
    for number, moment in enumerate(moments):
        time.sleep(max(0.0, began + moment - time.perf_counter()))
        threads.append(threading.Thread(target=ask, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [answers[number] for number in range(len(bodies))], max(answer.ended for answer in answers.values())


def send_in_turn(tenant: LoadTenant, bodies: Sequence[bytes]) -> tuple[list[StreamedAnswer], float]:
    """Send requests one after another, each when the one before is answered; returns as `send_at_rate`."""
    began = time.perf_counter()
    answers = [tenant.ask(body, time.perf_counter(), began) for body in bodies]
    return answers, answers[-1].ended


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A method at one rate.

    Attributes:
        engine: of `ENGINES`.
        traffic: of `TRAFFIC`.
        method: its name on the page.
        rate: requests a second that arrived; 0 for one after another, each sent when the one before is answered.
        ttfts: seconds to the first token, one for each request.
        seconds: from the first arrival to the last end.
        processor: seconds of the server's processors until the last end.
        tokens: made in all; cached, prompt: rows taken, and all rows of prompts.
        agreeing: answers that are those of `full`, of as many requests.
        right: answers that are the right ones.
    """

    engine: str
    traffic: str
    method: str
    rate: float
    ttfts: tuple[float, ...]
    seconds: float
    processor: float
    tokens: int
    cached: int
    prompt: int
    agreeing: int
    right: int


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is sent.

    Attributes:
        model: what is served.
        rates: requests a second.
        requests: at each rate.
        seed: of pages, orders and moments.
    """

    model: str
    rates: tuple[float, ...]
    requests: int
    seed: int

    def of(self, traffic: str) -> LoadTraffic:
        """Return traffic of a kind."""
        return load_traffic(traffic, self.rates, self.requests, self.seed)


class LoadedMethod:
    """A method under load: a tenant of its own, and how fast it answered at most.

    Args:
        name: of the method.
        tenant: new on the server.
        traffic: whose pages the tenant uploads.
    """

    def __init__(self, name: str, tenant: LoadTenant, traffic: LoadTraffic) -> None:
        self.name, self.tenant, self.traffic = name, tenant, traffic
        self.strategy = STRATEGIES.get((tenant.server.engine, name), name)
        self.most, self.saturated = 0.0, False
        self._files = tenant.upload(traffic.pages) if traffic.files else {}

    def bodies(self, requests: Sequence[LoadRequest], tokens: int = TOKENS) -> list[bytes]:
        """Return what is sent for requests."""
        model = self.tenant.server.model
        return [stream_body(model, request.parts, self.strategy, tokens, self._files) for request in requests]

    def show(self) -> None:
        """Show all pages once, as many in a prompt as a request shows."""
        pages = self.traffic.pages
        size = max(len(pages) // 3, 10)
        shown = [
            LoadRequest((*pages[start : start + size], "which land ?"), "") for start in range(0, len(pages), size)
        ]
        self.one_by_one(shown, 1)

    def one_by_one(self, requests: Sequence[LoadRequest], tokens: int = TOKENS) -> list[str]:
        """Ask one request after another, and return the answers."""
        now = time.perf_counter()
        return [self.tenant.ask(body, now, now).text for body in self.bodies(requests, tokens)]

    def run(self, place: int, seed: int, plain: Sequence[str]) -> LoadRun:
        """Send the requests of a rate.

        Args:
            place: of the rate.
            seed: of the moments.
            plain: the answers of `full`.
        """
        rate, requests = self.traffic.rates[place], self.traffic.portions[place]
        bodies, port = self.bodies(requests), urlsplit(self.tenant.server.address).port
        before = processor_seconds(port)
        answers, seconds = send_at_rate(self.tenant, bodies, rate, seed) if rate else send_in_turn(self.tenant, bodies)
        spent = processor_seconds(port) - before
        texts = [answer.text for answer in answers]
        if rate:
            reached = len(answers) / seconds
            self.saturated = reached < RISE * self.most
            self.most = max(self.most, reached)
        return LoadRun(
            engine=self.tenant.server.engine,
            traffic=self.traffic.name,
            method=self.name,
            rate=rate,
            ttfts=tuple(answer.ttft for answer in answers),
            seconds=seconds,
            processor=spent,
            tokens=sum(answer.tokens for answer in answers),
            cached=sum(answer.cached for answer in answers),
            prompt=sum(answer.prompt for answer in answers),
            agreeing=sum(map(str.__eq__, texts, plain)),
            right=sum(map(str.__eq__, (text.strip() for text in texts), (request.answer for request in requests))),
        )


def measure_load(
    plan: LoadPlan, engine: str, name: str, folder: Path, notify: Callable[[LoadRun], None]
) -> tuple[LoadRun, ...]:
    """Measure every method of an engine on one kind of traffic, at rates that rise until its answers a second do not.

    At each rate the methods take turns, another one first each time, and begin when the server is quiet.

    Args:
        engine: of `ENGINES`.
        name: of the traffic.
        folder: for the server's store and log.
        notify: called with each run as it comes.

    Raises:
        EmblemaError: the server did not start, or did not answer.
    """
    traffic = plan.of(name)
    found: list[LoadRun] = []
    with serving(engine, plan.model, folder) as server:
        reference = LoadedMethod(FULL, server.tenant(FULL), traffic)
        methods = [LoadedMethod(method, server.tenant(method), traffic) for method in METHODS[engine]]
        for method in methods:
            # The embedded engine prefills what was uploaded; else pages are made ready when they were shown.
            if traffic.pages and not (traffic.files and engine == EMBEDDED):
                method.show()
            settle(server.address)
        for place in range(len(traffic.rates)):
            left = [method for method in methods if not method.saturated]
            if not left:
                break
            plain = reference.one_by_one(traffic.portions[place])
            first = place % len(left)
            for method in (*left[first:], *left[:first]):
                settle(server.address)
                found.append(method.run(place, plan.seed + place, plain))
                notify(found[-1])
    return tuple(found)
