"""Whole servers over HTTP: several processes, many clients, two servers on one store."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.load.server_arm import content_of
from benchmarks.load.servers import free_port, running, server_options
from benchmarks.load.stages import VLLM
from benchmarks.tasks.building import ItemDraw
from benchmarks.tasks.page_tasks import two_page
from emblema.vllm.serving import command

pytestmark = pytest.mark.nightly
CLIENTS = 32
PATIENCE, BETWEEN = 60.0, 0.25
"""Seconds: until a prompt is stored, and between two looks; patches are formed after 0.2 s without a step."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A server's answer; `linking` is what the plugin reports of the request."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    linking: Mapping[str, Any]


class Client:
    """Asks one server; any number of threads may share it."""

    def __init__(self, address: str) -> None:
        self.http = httpx.Client(base_url=address, timeout=300)

    def ask(
        self, content: Sequence[Mapping[str, Any]], strategy: str | None = None, tokens: int = 16, capture: bool = True
    ) -> ServerReply:
        """Ask one user's turn, greedy; `capture`, with a strategy: whether the plugin may keep what it sees."""
        turn = {"role": "user", "content": list(content)}
        body: dict[str, Any] = {"model": "reference", "messages": [turn], "max_tokens": tokens, "temperature": 0.0}
        if strategy is not None:
            body["kv_transfer_params"] = {"emblema": {"strategy": strategy, "capture": capture}}
        answer = self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        cached = (found["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        linking = (found.get("kv_transfer_params") or {}).get("emblema") or {}
        text = found["choices"][0]["message"]["content"] or ""
        return ServerReply(text, found["usage"]["prompt_tokens"], cached, linking)

    def encodings(self) -> float:
        """How many encoder outputs were handed over."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:emblema_encodings_total"))


def ready(client: Client, content: Sequence[Any], strategy: str) -> None:
    """Show a prompt until all of its pieces are stored."""
    until = time.monotonic() + PATIENCE
    while not client.ask(content, strategy, tokens=1).linking.get("stored"):
        assert time.monotonic() < until, "nothing was stored: is this a server with the emblema connector?"
        time.sleep(BETWEEN)


def asks_of(seed: int, number: int) -> list[Any]:
    """The turns that ask an item's questions, each with its pages."""
    item = two_page(ItemDraw("two-page", seed, number))
    pages = [media.content for media in item.media]
    texts = [[part for part in question.parts if isinstance(part, str)] for question in item.questions]
    return [content_of([*pages, *words]) for words in texts]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, bench: Any) -> Path:
    # One engine at a time is enough for two cores.
    bench.close()
    return tmp_path_factory.mktemp("http")


def serve(place: Path, name: str) -> Any:
    more = [*server_options(VLLM), "--dtype", "float32", "--no-enable-prefix-caching"]
    return running(
        command("reference", place / "store", "auto", more=more, least_rows=0), place / f"{name}.log", free_port()
    )


@pytest.fixture(scope="module")
def other(place: Path) -> Iterator[Client]:
    """A second server on the same store."""
    with serve(place, "other") as address:
        yield Client(address)


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[Client]:
    with serve(place, "first") as address:
        yield Client(address)


def test_an_ordinary_request_hits_the_second_time(client: Client) -> None:
    first, second = asks_of(77, 0)[:2]
    assert client.ask(first).linking["linked_tokens"] == 0
    ready(client, first, "auto")
    told = client.ask(second)
    linking = told.linking
    assert linking["strategy"].startswith("auto:leading+patch") and linking["linked_tokens"] == linking["media_tokens"]
    assert told.cached_tokens == linking["linked_tokens"] < told.prompt_tokens


def test_answers_agree_with_plain_prefill(client: Client) -> None:
    same, linked, rows = {"auto": 0, "blind": 0}, 0, 0
    asked = 0
    for number in range(100):
        asks = asks_of(5, number)
        for name in same:
            ready(client, asks[0], name)
        for content in asks[: 20 - asked]:
            plain = client.ask(content, strategy="full", capture=False)
            for name in same:
                told = client.ask(content, strategy=name, capture=False)
                same[name] += told.text.strip() == plain.text.strip()
                if name == "auto":
                    linked += told.linking["linked_tokens"]
                    rows += told.linking["media_tokens"]
                    assert told.linking["linked_tokens"] > 0
            asked += 1
        if asked == 20:
            break
    assert same["auto"] >= 19 and linked >= 0.8 * rows
    assert same["blind"] <= same["auto"]


def test_many_clients_at_once(client: Client) -> None:
    asks = [content for number in range(3) for content in asks_of(77, number)[:2]]
    for content in asks:
        ready(client, content, "auto")
    alone = [client.ask(content, capture=False).text for content in asks]

    def ask(number: int) -> ServerReply:
        return client.ask(asks[number % len(asks)], capture=False)

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(ask, range(2 * CLIENTS)))
    for number, told in enumerate(answers):
        assert told.text == alone[number % len(asks)]
        assert told.linking["linked_tokens"] > 0


def test_two_servers_share_a_store(client: Client, other: Client) -> None:
    content = asks_of(77, 4)[0]
    ready(client, content, "auto")
    here = client.ask(content, capture=False)
    # What one server made, the other links at first sight.
    told = other.ask(content, capture=False)
    assert told.linking["linked_tokens"] == here.linking["linked_tokens"] > 0
    assert told.text == here.text
    # And what its encoder made, of both pages, comes from the store too, from one process to the other.
    before = other.encodings()
    assert other.ask(content, strategy="full", capture=False).text == here.text
    assert other.encodings() == before + 2
    fresh = asks_of(77, 5)[0]
    ready(other, fresh, "auto")
    assert client.ask(fresh, capture=False).linking["linked_tokens"] > 0
