"""Many clients at once inside vLLM: each gets the tokens that it gets alone."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from benchmarks.models.delta import write_lists
from tests.serve.engines import ServedEngine, served
from tests.serve.test_concurrency import NAME, MixedRequests, check_mixed, differences, mixed, together

OPTIONS = (
    "--served-model-name", NAME, "--dtype", "float32", "--max-model-len", "4096", "--enforce-eager",
    "--kv-cache-memory-bytes", str(512 * 2**20), "--max-logprobs", "20",
)  # fmt: skip

LINKED = ("blind", "mpic-32", "patch-25%")
"""Strategies that take rows inside vLLM; the others of the mix are computed plainly."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, bench: Any) -> Iterator[ServedEngine]:
    """A server of a model that answers with lists."""
    bench.close()
    folder = tmp_path_factory.mktemp("lists")
    model = write_lists(folder / NAME)
    with served("vllm-serve", folder, *OPTIONS, model=str(model)) as running:
        yield running


def store_all(client: OpenAI, requests: MixedRequests, numbers: list[int]) -> None:
    """Send requests until all that their strategies take is stored: what is taken from then on stays the same."""
    until = time.monotonic() + 120
    while numbers:
        assert time.monotonic() < until, numbers
        numbers = [number for number in numbers if not report(client, requests, number)["stored"]]


def report(client: OpenAI, requests: MixedRequests, number: int) -> dict[str, Any]:
    """What the plugin says of a request."""
    given: Any = requests.messages(number)
    options: dict[str, Any] = {"max_tokens": 1, "extra_body": {"strategy": requests.strategy(number)}}
    reply = client.chat.completions.create(model=NAME, messages=given, temperature=0, **options)
    told: dict[str, Any] = (reply.model_extra or {})["kv_transfer_params"]["emblema"]
    return told


@pytest.mark.nightly
def test_each_of_many_gets_what_it_gets_alone(server: ServedEngine) -> None:
    client, count = server.client(), 200
    requests = mixed(client)
    linked = [number for number in range(count) if requests.strategy(number) in LINKED and requests.pictures(number)]
    store_all(client, requests, linked)
    alone = [requests.ask(client, number) for number in range(count)]
    assert not differences(alone, together(client, requests, 64, count))
    check_mixed(alone)
    assert {strategy: taken(client, requests, linked, strategy) for strategy in LINKED} == dict.fromkeys(LINKED, True)


def taken(client: OpenAI, requests: MixedRequests, numbers: list[int], strategy: str) -> bool:
    """Whether a strategy's requests take rows."""
    number = next(number for number in numbers if requests.strategy(number) == strategy)
    return bool(report(client, requests, number)["linked_tokens"])
