"""Whole servers over HTTP: several processes, many clients, two servers on one store."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from emblema.bench.tasks.two_page import two_page
from emblema.bench.vllm.client import Client, Told, content_of
from emblema.bench.vllm.measure import agreement, pages_of, ready, texts_of
from emblema.vllm.serving import command, device_options, free_port, running

CLIENTS = 32


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, bench: Any) -> Path:
    # One engine at a time is enough for two cores.
    bench.close()
    return tmp_path_factory.mktemp("http")


def serve(place: Path, name: str) -> Any:
    more = [*device_options()[1], "--dtype", "float32", "--no-enable-prefix-caching"]
    return running(command("reference", place / "store", "auto", more=more), place / f"{name}.log", free_port())


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[Client]:
    with serve(place, "first") as address:
        yield Client(address, "reference")


def contents(number: int) -> list[Any]:
    item = two_page(77, number, "emblema")
    return [content_of([*pages_of(item), *texts_of(item, index)]) for index in range(len(item.questions))]


def test_an_ordinary_request_hits_the_second_time(client: Client) -> None:
    first, second = contents(0)[:2]
    assert client.ask(first).linking["linked_tokens"] == 0
    ready(client, first, "auto")
    told = client.ask(second)
    linking = told.linking
    assert linking["strategy"].startswith("auto:patch") and linking["linked_tokens"] == linking["media_tokens"]
    assert told.cached_tokens == linking["linked_tokens"] < told.prompt_tokens


def test_answers_agree_with_plain_prefill(client: Client) -> None:
    auto, blind = agreement(client, ("auto", "blind"), 20, 5, lambda done: None)
    assert auto.agreeing >= 19 and auto.linked_rows >= 0.8 * auto.picture_rows and auto.fallbacks == 0
    assert blind.agreeing <= auto.agreeing


def test_many_clients_at_once(client: Client) -> None:
    asks = [content for number in range(3) for content in contents(number)[:2]]
    for content in asks:
        ready(client, content, "auto")
    alone = [client.ask(content, capture=False).text for content in asks]

    def one(number: int) -> Told:
        return client.ask(asks[number % len(asks)], capture=False)

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(one, range(2 * CLIENTS)))
    for number, told in enumerate(answers):
        assert told.text == alone[number % len(asks)]
        assert told.linking["linked_tokens"] > 0


def test_two_servers_share_a_store(client: Client, place: Path) -> None:
    content = contents(4)[0]
    ready(client, content, "auto")
    here = client.ask(content, capture=False)
    with serve(place, "second") as address:
        other = Client(address, "reference")
        # What one server made, the other links at first sight.
        told = other.ask(content, capture=False)
        assert told.linking["linked_tokens"] == here.linking["linked_tokens"] > 0
        assert told.text == here.text
        fresh = contents(5)[0]
        ready(other, fresh, "auto")
        assert client.ask(fresh, capture=False).linking["linked_tokens"] > 0
