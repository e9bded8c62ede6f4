"""Conversations that arrive at a rate: every method on a server process of its own, asked by streams over HTTP."""

import http.client
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.vllm.client import Client, content_of
from benchmarks.vllm.load import Conversations, of_pages
from benchmarks.vllm.server import free_port, running
from emblema.errors import EmblemaError

FULL = "full"
METHODS = {
    "prefix": "prefix", "full-reuse": "blind", "cacheblend-15": "cacheblend-15", "mpic-32": "mpic-32",
    "patch-25%": "patch-25%", "auto": "auto",
}  # fmt: skip
"""Names on the page, and what requests say in `strategy`."""
TOKENS = 8
"""Tokens of an answer at the most."""


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """One request as its client saw it.

    Attributes:
        text: of the answer.
        ttft: seconds from its arrival to the first event with text, or to its end where there is none.
        ended: seconds from the run's beginning until it ended.
        tokens: made; `cached` and `prompt`: rows taken, and all rows.
    """

    text: str
    ttft: float
    ended: float
    tokens: int
    cached: int
    prompt: int


def ask_streamed(address: str, body: Mapping[str, Any], arrival: float, began: float) -> StreamedAnswer:
    """Send a request and read its stream.

    Raises:
        EmblemaError: the server refused, or broke off.
    """
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=600)
    more = {"stream": True, "stream_options": {"include_usage": True}}
    text, first, usage = "", None, dict[str, Any]()
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps({**body, **more}), {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        if reply.status != 200:
            raise EmblemaError(f"{address} answered {reply.status}: {reply.read(400)!r}")
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise EmblemaError(f"{address} ended a stream: {event['error']['message']}")
            usage = event.get("usage") or usage
            fresh = event["choices"][0]["delta"].get("content") if event["choices"] else ""
            if fresh and first is None:
                first = time.perf_counter()
            text += fresh or ""
    except (OSError, http.client.HTTPException) as error:
        raise EmblemaError(f"{address} broke off: {error}") from error
    finally:
        connection.close()
    now = time.perf_counter()
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    ttft = (first or now) - arrival
    return StreamedAnswer(text, ttft, now - began, usage["completion_tokens"], cached, usage["prompt_tokens"])


def send_at_rate(
    address: str, bodies: Sequence[Mapping[str, Any]], rate: float, seed: int
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
            answers[number] = ask_streamed(address, bodies[number], began + moments[number], began)
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


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A method at one rate.

    Attributes:
        traffic: `talks`, or `novelty` where no page was seen before.
        method: its name on the page.
        rate: requests a second that arrived.
        ttfts: seconds to the first token, one for each request.
        seconds: from the first arrival to the last end.
        tokens: made in all; cached, prompt: rows taken, and all rows of prompts.
        agreeing: answers that are those of `full`, of as many requests.
        right: answers that are the right ones.
    """

    traffic: str
    method: str
    rate: float
    ttfts: tuple[float, ...]
    seconds: float
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
        talks: conversations of four turns at each rate.
        seed: of pages, orders and moments.
    """

    model: str
    rates: tuple[float, ...]
    talks: int
    seed: int

    def of(self, traffic: str, rate: int) -> Conversations:
        """Return the conversations of a rate by its place; each rate has orders of its own."""
        if traffic == "talks":
            return of_pages(self.talks, self.seed, 1 + rate)
        turns = [turn for talk in range(self.talks) for turn in of_pages(1, self.seed + 1_000 + talk).turns]
        return Conversations(tuple(turns), ())

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Traffic and the place of its rate: conversations at all of them, novelty at the one in the middle."""
        talks = [("talks", place) for place in range(len(self.rates))]
        return (*talks, ("novelty", len(self.rates) // 2))


def measure_load(plan: LoadPlan, folder: Path, notify: Callable[[LoadRun], None]) -> list[LoadRun]:
    """Send everything to every method; `full` answers first, one request after another, to be compared with.

    Args:
        notify: called with each as it comes.

    Raises:
        EmblemaError: a server did not start, or did not answer.
    """
    plain: dict[tuple[str, int], list[str]] = {}
    found: list[LoadRun] = []
    for method, strategy in {FULL: FULL, **METHODS}.items():
        port = free_port()
        store, log = folder / f"store-{port}", folder / f"{port}.log"
        line = [sys.executable, "-m", "emblema.cli", "serve", plan.model, "--store", str(store)]
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        with running(line, log, port, environment) as address:
            name = Path(plan.model).name
            for traffic, place in plan.parts:
                talks = plan.of(traffic, place)
                bodies = [
                    {"model": name, "max_tokens": TOKENS, "temperature": 0, "strategy": strategy,
                     "messages": [{"role": "user", "content": content_of(turn.parts)}]}
                    for turn in talks.turns
                ]  # fmt: skip
                if method == FULL:
                    client = Client(address, name)
                    replies = [client.post(body)[0] for body in bodies]
                    plain[traffic, place] = [reply["choices"][0]["message"]["content"] for reply in replies]
                    continue
                if talks.pool:
                    # Every page has been seen, as a file of the tenant's is.
                    shown = content_of([*talks.pool, "which land ?"])
                    Client(address, name).post(
                        {**bodies[0], "messages": [{"role": "user", "content": shown}], "max_tokens": 1}
                    )
                answers, seconds = send_at_rate(address, bodies, plan.rates[place], plan.seed + place)
                texts = [answer.text for answer in answers]
                found.append(
                    LoadRun(
                        traffic=traffic,
                        method=method,
                        rate=plan.rates[place],
                        ttfts=tuple(answer.ttft for answer in answers),
                        seconds=seconds,
                        tokens=sum(answer.tokens for answer in answers),
                        cached=sum(answer.cached for answer in answers),
                        prompt=sum(answer.prompt for answer in answers),
                        agreeing=sum(map(str.__eq__, texts, plain[traffic, place])),
                        right=sum(map(str.__eq__, (text.strip() for text in texts), (t.answer for t in talks.turns))),
                    )
                )
                notify(found[-1])
    return found
