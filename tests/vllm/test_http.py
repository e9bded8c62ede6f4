"""Whole servers over HTTP: several processes, many clients, two servers on one store."""

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.server_arm import content_of
from benchmarks.load.servers import free_port, running, server_options
from benchmarks.load.stages import VLLM
from benchmarks.tasks.page_tasks import two_page
from emblema.errors import EmblemaError
from emblema.vllm.retrieving import RETRIEVAL_VARIABLE, PictureRetrieval
from emblema.vllm.serving import command
from tests.vllm.http_client import Client, ServerReply, pages_of, ready, server_counts, texts_of

CLIENTS = 32
AFTER = "which land does the house stand on ?"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, bench: Any) -> Path:
    # One engine at a time is enough for two cores.
    bench.close()
    return tmp_path_factory.mktemp("http")


def serve(place: Path, name: str) -> Any:
    more = [*server_options(VLLM), "--dtype", "float32", "--no-enable-prefix-caching"]
    return running(
        command("reference", place / "store", "auto", more=more, weigh=False), place / f"{name}.log", free_port()
    )


def library_pages() -> list[Any]:
    """A page to be shown and two to be found."""
    return [*pages_of(two_page(78, 0, "emblema"))[:1], *pages_of(two_page(78, 1, "emblema"))[:2]]


@pytest.fixture(scope="module")
def other(place: Path) -> Iterator[Client]:
    """A second server on the same store, whose model may ask for two pictures."""
    library = place / "library"
    library.mkdir()
    for name, page in zip(("tent", "lake"), library_pages()[1:], strict=True):
        page.save(library / f"{name}.png")
    (library / "lake.txt").write_text("deep water")
    more = [*server_options(VLLM), "--dtype", "float32", "--no-enable-prefix-caching"]
    line = command("reference", place / "store", "auto", more=more, retrieving=True, weigh=False)
    asking = {RETRIEVAL_VARIABLE: PictureRetrieval(library=str(library)).to_json()}
    with running(line, place / "other.log", free_port(), asking) as address:
        yield Client(address, "reference")


def post(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """A request as it is, and the whole answer."""
    return client.post(body)


def events(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a streamed answer."""
    request = urllib.request.Request(
        f"{client.address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        lines = [line.removeprefix(b"data: ").strip() for line in reply if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


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
    same, linked, rows = {"auto": 0, "blind": 0}, 0, 0
    asked = 0
    for number in range(100):
        item = two_page(5, number, "emblema")
        asks = [content_of([*pages_of(item), *texts_of(item, index)]) for index in range(len(item.questions))]
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
    asks = [content for number in range(3) for content in contents(number)[:2]]
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
    content = contents(4)[0]
    ready(client, content, "auto")
    here = client.ask(content, capture=False)
    # What one server made, the other links at first sight.
    told = other.ask(content, capture=False)
    assert told.linking["linked_tokens"] == here.linking["linked_tokens"] > 0
    assert told.text == here.text
    # And what its encoder made, of both pages, comes from the store too, from one process to the other.
    before = server_counts(other).get("emblema_encodings", 0)
    assert other.ask(content, strategy="full", capture=False).text == here.text
    assert server_counts(other)["emblema_encodings"] == before + 2
    fresh = contents(5)[0]
    ready(other, fresh, "auto")
    assert client.ask(fresh, capture=False).linking["linked_tokens"] > 0


@pytest.mark.parametrize("asked", ["tent", "lake"])
def test_a_picture_that_the_model_asks_for_is_set_in_and_the_reply_goes_on(other: Client, asked: str) -> None:
    shown, *library = library_pages()
    body = {
        "model": "reference",
        "messages": [{"role": "user", "content": content_of([shown, f"which land does the {asked} stand on ?"])}],
        "max_tokens": 6,
        "temperature": 0.0,
        "ignore_eos": True,
        "kv_transfer_params": {"emblema": {"strategy": "blind", "retrieval": False}},
    }
    word = post(other, body | {"max_tokens": 1})["choices"][0]["message"]["content"]
    # By hand: the conversation so far, and the page in a turn of its own.
    page = content_of([library[asked == "lake"], AFTER])
    turns = [*body["messages"], {"role": "assistant", "content": word}, {"role": "user", "content": page}]
    by_hand = body | {"messages": turns, "max_tokens": 5}
    until = time.monotonic() + 60
    while not (linked := post(other, by_hand)["kv_transfer_params"]["emblema"])["stored"]:
        assert time.monotonic() < until
    wanted = word + post(other, by_hand)["choices"][0]["message"]["content"]
    # Nothing has taught the bundled model to ask: the first word it says is taken for a request.
    asking = {"strategy": "blind", "retrieval": {"start": None, "end": word, "after": AFTER}}
    body["kv_transfer_params"] = {"emblema": asking}
    reply = post(other, body)
    found = reply["kv_transfer_params"]["emblema"]["found"]
    assert reply["choices"][0]["message"]["content"] == wanted != word
    assert reply["usage"]["completion_tokens"] == 6 and reply["choices"][0]["finish_reason"] == "length"
    assert [answered["items"] for answered in found] == [[f"{asked}.png"]]
    assert found[0]["linking"]["linked_tokens"] == linked["linked_tokens"]
    streamed = events(other, body | {"stream": True, "stream_options": {"include_usage": True}})
    choices = [event["choices"][0] for event in streamed if event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == wanted
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert sum("role" in choice["delta"] for choice in choices) == 1 and len({event["id"] for event in streamed}) == 1
    assert streamed[-2]["kv_transfer_params"]["emblema"]["found"][0]["items"] == [f"{asked}.png"]
    assert streamed[-1]["usage"]["completion_tokens"] == 6


def test_a_request_in_vain_and_one_too_many_are_plain_text(other: Client) -> None:
    body: dict[str, Any] = {
        "model": "reference",
        "messages": [{"role": "user", "content": content_of([library_pages()[0], "which land is that ?"])}],
        "max_tokens": 6,
        "temperature": 0.0,
        "ignore_eos": True,
        "kv_transfer_params": {"emblema": {"strategy": "full", "retrieval": False}},
    }
    plain = post(other, body)["choices"][0]["message"]["content"]
    word = post(other, body | {"max_tokens": 1})["choices"][0]["message"]["content"]
    asking = {"strategy": "full", "retrieval": {"start": "no one says this", "end": word}}
    reply = post(other, body | {"kv_transfer_params": {"emblema": asking}})
    assert reply["choices"][0]["message"]["content"] == plain
    assert reply["kv_transfer_params"]["emblema"]["found"] == []
    with pytest.raises(EmblemaError, match="400.*shop"):
        post(other, body | {"kv_transfer_params": {"emblema": {"retrieval": {"shop": 1}}}})
