"""Mixed requests to a server with the plugin, in several ways of running vLLM: `python -m tests.vllm.mixed [WAY ...]`.

Strategies, pictures in any order after any text, two tenants, streams, clients that leave: eight at once. A plain
answer has to be stock vLLM's, a linked one the embedded engine's. In the end nothing runs, no page is held, and no
tenant finds what only the other one showed.
"""

import argparse
import json
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
from PIL import Image

from benchmarks.load.server_arm import content_of
from benchmarks.load.servers import free_port, running, server_options
from benchmarks.load.stages import VLLM
from benchmarks.tasks.building import ItemDraw
from benchmarks.tasks.page_tasks import two_page
from emblema import Engine
from emblema.vllm.serving import ENCODINGS, WORKER, command, transfer_config
from tests.attached import attached
from tests.vllm.cells import PATIENT_SECONDS, STARTUP, Cell
from tests.vllm.mixed_answers import LIKELIEST, TOLERANCE, Difference, EmbeddedAnswers, Told, difference
from tests.vllm.startup.cpu_runners import PATIENCE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "mixed"
"""For stores and logs."""
CLIENTS = 8
TOKENS = 8
"""Of an answer at most."""
STRATEGIES = ("full", "blind", "mpic-32", "query-25%", "auto")
TENANTS: Mapping[str, range] = {"one": range(6), "two": range(3, 9)}
"""Pictures that each shows: some are both's, some one's alone."""
FRESH = 100
"""Number of the first picture that is shown in one request alone."""
LEAVING = 0.04
"""Share of requests whose clients leave."""
SETTLING_SECONDS = 60.0
ATTEMPTS = 5
DRIFT = "cache drift"
"""What vLLM says where a picture has left one of its two caches; it asks clients to send the request again."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way of running vLLM: its cell, more options, another connector beside ours, and the error of linked answers.

    Attributes:
        stock_errors: how many times stock vLLM's own error linked answers may have on average, as pages of 8 bits are
            rounded, and other tokens follow; 0 holds each answer to the tolerance.
    """

    cell: Cell = Cell()
    options: tuple[str, ...] = ()
    beside: bool = False
    stock_errors: float = 0.0


WAYS: Mapping[str, Way] = {
    "v1-sync": Way(),
    "v1-async-96": Way(Cell("v1", "async", 96)),
    "v2-sync": Way(Cell("v2", "sync")),
    "v2-async-96": Way(Cell("v2", "async", 96)),
    "no-prefix-cache": Way(options=("--no-enable-prefix-caching",)),
    "no-processor-cache": Way(options=("--mm-processor-cache-gb", "0")),
    "fp8": Way(options=("--kv-cache-dtype", "fp8_e5m2"), stock_errors=2.0),
    "offloading": Way(beside=True),
}


@dataclass(frozen=True, slots=True)
class MixedRequest:
    """One request.

    Attributes:
        parts: text, and pictures by number.
        stays: seconds until its client leaves; None for one that reads the whole answer.
    """

    number: int
    tenant: str
    parts: tuple[str | int, ...]
    strategy: str
    margin: float | None
    streamed: bool
    stays: float | None

    @property
    def new(self) -> tuple[int, ...]:
        """Pictures that no request showed before."""
        return tuple(part for part in self.parts if isinstance(part, int) and part >= FRESH)


@cache
def picture(number: int) -> Image.Image:
    """Return a picture by its number."""
    content = two_page(ItemDraw("two-page", 7, number // 2)).media[number % 2].content
    assert isinstance(content, Image.Image)
    return content


def draw_requests(count: int, seed: int) -> list[MixedRequest]:
    """Return requests of chance."""
    drawn = random.Random(seed)
    questions = [part for number in range(8) for question in two_page(ItemDraw("two-page", 7, number)).questions
                 for part in question.parts if isinstance(part, str)]  # fmt: skip
    words = sorted({word for question in questions for word in question.split()})
    leaving = set(drawn.sample(range(count), round(LEAVING * count)))
    made = []
    for number in range(count):
        tenant = drawn.choice([*TENANTS])
        pages = drawn.sample(TENANTS[tenant], drawn.randint(1, 4))
        if drawn.random() < 0.1:
            pages[drawn.randrange(len(pages))] = FRESH + number
        lead = [" ".join(drawn.choices(words, k=drawn.randint(1, 30)))] if drawn.random() < 0.6 else []
        strategy, streamed = drawn.choice(STRATEGIES), drawn.random() < 0.4 or number in leaving
        margin = drawn.choice((None, 0.0)) if strategy.startswith("query") else None
        stays = drawn.uniform(0.0, 0.16) if number in leaving else None
        parts = (*lead, *pages, drawn.choice(questions))
        made.append(MixedRequest(number, tenant, parts, strategy, margin, streamed, stays))
    return made


class ServerFault(Exception):
    """A server ended a request with an error of its own."""


class MixedClient:
    """Asks one server; several threads may share it.

    Attributes:
        refused: numbers of requests that the server ended with an error of its own, and that were sent again.
    """

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=address, timeout=300, trust_env=False)
        self.refused: list[int] = []

    def ask(self, request: MixedRequest, plugin: bool = True, tokens: int = TOKENS) -> Told | None:
        """Return the answer, None where the client left before its end.

        Raises:
            AssertionError: the server ends the request with an error each time.
        """
        body = self._body(request, plugin, tokens)
        for _ in range(ATTEMPTS):
            try:
                if request.stays is not None:
                    return self._leave(body, request.stays)
                return self._streamed(body) if request.streamed else self._whole(body)
            except ServerFault:
                self.refused.append(request.number)
        raise AssertionError(f"ended with an error {ATTEMPTS} times: {request}")

    def _whole(self, body: dict[str, Any]) -> Told:
        reply = self._http.post("/v1/chat/completions", json=body)
        check_status(reply)
        found = reply.json()
        report = (found.get("kv_transfer_params") or {}).get("emblema")
        return told_of([found["choices"][0]], "message", found["usage"], report)

    def _streamed(self, body: dict[str, Any]) -> Told:
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        with self._http.stream("POST", "/v1/chat/completions", json=body) as reply:
            check_status(reply)
            events = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
        if any("error" in event for event in events):
            raise ServerFault(str(events[-1]))
        choices = [event["choices"][0] for event in events if event["choices"]]
        return told_of(choices, "delta", events[-1]["usage"], None)

    def _leave(self, body: dict[str, Any], seconds: float) -> None:
        until = time.monotonic() + seconds
        try:
            with self._http.stream(
                "POST", "/v1/chat/completions", json=body | {"stream": True}, timeout=seconds
            ) as reply:
                for _ in reply.iter_lines():
                    if time.monotonic() > until:
                        return
        except httpx.TimeoutException:
            return

    def metric(self, name: str) -> float:
        """Return the sum of a metric's values."""
        lines = self._http.get("/metrics").text.splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        assert values, name
        return sum(values)

    def _body(self, request: MixedRequest, plugin: bool, tokens: int) -> dict[str, Any]:
        content = content_of([part if isinstance(part, str) else picture(part) for part in request.parts])
        body: dict[str, Any] = {
            "model": "reference", "messages": [{"role": "user", "content": content}], "max_tokens": tokens,
            "temperature": 0, "logprobs": True, "top_logprobs": LIKELIEST, "return_tokens_as_token_ids": True,
            "cache_salt": request.tenant,
        }  # fmt: skip
        if plugin:
            margin = {} if request.margin is None else {"margin": request.margin}
            body["kv_transfer_params"] = {"emblema": {"strategy": request.strategy, **margin}}
        return body


def told_of(
    choices: Sequence[Mapping[str, Any]], place: str, usage: Mapping[str, Any], report: Mapping[str, Any] | None
) -> Told:
    """Return an answer that came whole, or in the pieces of a stream."""
    entries = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content") or ()]
    likeliest = [{token_of(each): each["logprob"] for each in entry["top_logprobs"]} for entry in entries]
    text = "".join(choice[place].get("content") or "" for choice in choices)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    tokens = tuple(map(token_of, entries))
    return Told(text, tokens, tuple(likeliest), usage["prompt_tokens"], cached, report)


def token_of(entry: Mapping[str, Any]) -> int:
    """Return the id of a token of an answer."""
    return int(entry["token"].removeprefix("token_id:"))


def check_status(reply: httpx.Response) -> None:
    """Look whether a request was taken.

    Raises:
        ServerFault: the server failed.
        AssertionError: the request is not right.
    """
    if reply.status_code == 500:
        raise ServerFault(reply.read().decode())
    assert reply.status_code == 200, reply.read()


@contextmanager
def serving(way: Way, folder: Path, plugin: bool) -> Iterator[MixedClient]:
    """Run a server, with the plugin or without, for as long as the block runs."""
    # The later one of two equal options is taken.
    more = [*server_options(VLLM), "--dtype", "float32", *way.cell.arguments, *way.options]
    if plugin:
        own: dict[str, object] = transfer_config(folder / "store")
        if way.beside:
            from tests.vllm.host_offloading import OFFLOADING

            shared: dict[str, object] = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
            own = shared | {
                "kv_connector": "MultiConnector",
                "kv_connector_extra_config": {"connectors": [own, OFFLOADING]},
            }
        more += ["--kv-transfer-config", json.dumps(own), "--ec-transfer-config", json.dumps(ENCODINGS)]
        more += ["--worker-cls", WORKER]
    path = os.pathsep.join([str(STARTUP), str(ROOT), *filter(None, sys.path)])
    environment = way.cell.environment | {"PYTHONPATH": path, PATIENCE: str(PATIENT_SECONDS)}
    log = folder / ("plugin.log" if plugin else "stock.log")
    line = attached(command("reference", None, more=more))
    with running(line, log, free_port(), environment) as address:
        client = MixedClient(address)
        yield client
    lines = log.read_text(errors="replace").splitlines()
    broken = [line for line in lines if line.startswith(("(EngineCore", "(Worker")) and "Traceback" in line]
    assert not broken, f"{log}: {broken[0]}"
    assert len(client.refused) <= sum(DRIFT in line for line in lines), f"{log}: errors that are not vLLM's cache drift"


@dataclass
class Outcome:
    """What came of a way's requests.

    Attributes:
        resent: requests that ended with an error of vLLM's, in a drift of its caches, and were sent again.
        found: by kind of answer, how many there were; `read` ones are those of a second pass.
        worst: by kind of answer, the largest difference of a log-probability.
        different: what was not as it has to be.
        offs: differences of linked answers, and of those that were read.
    """

    requests: int
    found: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("plain", "linked", "read", "left"), 0))
    worst: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("plain", "linked", "read"), 0.0))
    ties: int = 0
    resent: int = 0
    different: list[str] = field(default_factory=list)
    offs: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, request: MixedRequest, told: Told, kind: str, off: Difference, tolerance: float) -> None:
        """Count an answer."""
        self.found[kind] += 1
        self.ties += off.text and off.tie
        if kind != "plain":
            self.offs.append(off.off)
        self.worst[kind] = max(self.worst[kind], off.off)
        if not off.fits(tolerance):
            self.different.append(f"{kind}: {request} {off} {told}")

    def check_errors(self, stock: Sequence[Difference], times: float) -> None:
        """Hold the mean error of linked answers to so many times that of a stock server's plain ones."""
        own, wanted = fmean(self.offs), fmean(each.off for each in stock)
        texts = sum(each.text for each in stock)
        told = f"mean error {own:.2e} of {len(self.offs)} linked answers, {self.ties} of other text; stock vLLM's own "
        told += f"{wanted:.2e} of {len(stock)}, {texts} of other text"
        print(told)
        if own > times * wanted:
            self.different.append(told)

    def row(self, name: str) -> str:
        """Return a row of a table."""
        worst = [f"{off:.1e}" for off in self.worst.values()]
        cells = [
            name,
            self.requests,
            *self.found.values(),
            len(self.different),
            self.ties,
            self.resent,
            *worst,
            round(self.seconds),
        ]
        return f"| {' | '.join(map(str, cells))} |"


COLUMNS = (
    "way",
    "requests",
    "plain",
    "linked",
    "read",
    "left",
    "differ",
    "ties",
    "resent",
    "off",
    "linked",
    "read",
    "seconds",
)
"""The last three before the seconds: how far log-probabilities are off at most, by kind of answer."""
HEAD = f"| {' | '.join(COLUMNS)} |\n| :-- |{' --: |' * (len(COLUMNS) - 1)}"


def learn(client: MixedClient) -> None:
    """Show each tenant's pictures until they are stored."""
    until = time.monotonic() + SETTLING_SECONDS
    left = [(tenant, number) for tenant, numbers in TENANTS.items() for number in numbers]
    while left:
        assert time.monotonic() < until, f"not stored: {left}"
        asked = [
            MixedRequest(0, tenant, (number, "which land ?"), "blind", None, False, None) for tenant, number in left
        ]
        with ThreadPoolExecutor(CLIENTS) as pool:
            told = list(pool.map(lambda request: client.ask(request, tokens=1), asked))
        left = [each for each, own in zip(left, told, strict=True) if not (own and own.report and own.report["stored"])]


def check_idle(client: MixedClient) -> None:
    """Wait until a server has no request and holds no page but those of its prefix cache, which count as free.

    Raises:
        AssertionError: it has after a minute.
    """
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    until = time.monotonic() + SETTLING_SECONDS
    while any(held := [client.metric(name) for name in names]):
        assert time.monotonic() < until, dict(zip(names, held, strict=True))
        time.sleep(0.2)


def check_tenants(client: MixedClient) -> None:
    """Ask each tenant for pictures that the other one alone has shown, and a third for all.

    Raises:
        AssertionError: rows were found.
    """
    one, two = map(set, TENANTS.values())
    for tenant, numbers in (("one", two - one), ("two", one - two), ("three", one | two)):
        for number in sorted(numbers):
            asked = MixedRequest(0, tenant, (number, "which land ?"), "blind", None, False, None)
            told = client.ask(asked, tokens=1)
            assert told is not None and told.report is not None
            assert told.cached == told.report["linked_tokens"] == 0 and not told.report["stored"], (asked, told)


def compare(
    outcome: Outcome, request: MixedRequest, told: Told, stock: Told, embedded: EmbeddedAnswers, tolerance: float
) -> None:
    """Hold an answer to what it has to be.

    Args:
        stock: what a plain answer is.
        tolerance: how far a log-probability of a linked answer may be off.
    """
    plain, report = difference(told, stock), told.report
    if report["linked_tokens"] == 0 if report is not None else plain.fits(TOLERANCE):
        outcome.note(request, told, "plain", plain, TOLERANCE)
        return
    name = request.strategy if report is None else report["strategy"]
    best = Difference(math.inf, text=True)
    for wanted in embedded.linked(told, request.parts, name, request.new):
        best = min(best, difference(told, wanted, tolerance), key=lambda each: (not each.fits(tolerance), each.off))
        if best.fits(tolerance):
            break
    outcome.note(request, told, "read" if "query" in name else "linked", best, tolerance)


def run(way: Way, folder: Path, count: int, seed: int, with_stock: bool = True) -> Outcome:
    """Ask so many requests in a way.

    Args:
        folder: for the store and the servers' logs.
        with_stock: whether plain answers are held to a stock server's; else to the embedded engine's.

    Raises:
        AssertionError: requests or pages are left, or a tenant found the other's rows.
    """
    began, outcome, requests = time.monotonic(), Outcome(count), draw_requests(count, seed)
    asked = [request for request in requests if request.stays is None]
    stock: dict[int, Told | None] = {}
    with ThreadPoolExecutor(CLIENTS) as pool:
        if with_stock:
            with serving(way, folder, plugin=False) as client:
                plain = pool.map(lambda request: client.ask(request, plugin=False), asked)
                stock = {request.number: own for request, own in zip(asked, plain, strict=True)}
        with serving(way, folder, plugin=True) as client:
            learn(client)
            answers = list(pool.map(client.ask, requests))
            check_idle(client)
            check_tenants(client)
            check_idle(client)
            outcome.resent += len(client.refused)
    pictures = {part: picture(part) for request in requests for part in request.parts if isinstance(part, int)}
    with Engine.load("reference") as engine:
        embedded = EmbeddedAnswers(engine, pictures, TOKENS)
        wanted = {each.number: stock.get(each.number) or embedded.answer(each.parts, "full") for each in asked}
        tolerance = math.inf if way.stock_errors else TOLERANCE
        for request, told in zip(requests, answers, strict=True):
            if told is None:
                outcome.found["left"] += 1
            else:
                compare(outcome, request, told, wanted[request.number], embedded, tolerance)
        if way.stock_errors:
            stock_errors = [difference(wanted[each.number], embedded.answer(each.parts, "full")) for each in asked]
            outcome.check_errors(stock_errors, way.stock_errors)
    outcome.seconds = time.monotonic() - began
    return outcome


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", default=[*WAYS], help=f"of {', '.join(WAYS)}")
    parser.add_argument("--requests", type=int, default=150, help="in each way")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)
    rows, failed = [], False
    for name in options.ways:
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        outcome = run(WAYS[name], folder, options.requests, options.seed)
        print(*outcome.different, outcome.row(name), sep="\n", flush=True)
        rows.append(outcome.row(name))
        failed = failed or bool(outcome.different)
    print(HEAD, *rows, sep="\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
