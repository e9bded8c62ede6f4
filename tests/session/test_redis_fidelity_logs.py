"""Several servers measure for the same tenants over Redis: nothing is lost, and without Redis each goes on alone."""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from emblema.link.policy.margins import MarginSample
from emblema.session import redis_fidelity_logs
from emblema.session.redis_fidelity_logs import QUICK, RedisFidelityLogs
from tests.session.test_fidelity_logs import BAD, GOOD, OTHER, OWNER, measure, trusts
from tests.store.remote.servers import FaultyProxy, RedisServer

QUICK_REST = 0.1
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.stop()


@pytest.fixture
def prefix() -> str:
    return f"logs{next(_numbers)}"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read at each refresh."""
    monkeypatch.setattr(redis_fidelity_logs, "READ_SECONDS", 0.0)


def test_a_lane_that_one_closes_is_closed_for_all(server: RedisServer, prefix: str) -> None:
    one, other = (RedisFidelityLogs(server.url, prefix) for _ in range(2))
    assert trusts(one) and trusts(other)
    measure(one, *[BAD] * 6)
    assert not trusts(one) and not trusts(other)
    assert trusts(other, OTHER), "another tenant's is its own"
    assert not trusts(RedisFidelityLogs(server.url, prefix))


def test_servers_that_write_at_once_lose_no_measurement(server: RedisServer, prefix: str) -> None:
    servers, count = [RedisFidelityLogs(server.url, prefix) for _ in range(4)], 12

    def write(number: int) -> None:
        for _ in range(count):
            measure(servers[number], GOOD, kind=f"kind {number}")
            servers[number].of(OWNER).note_margin("m", ["page"], MarginSample(0.5, None))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    for logs in servers:
        logs.close()
    last = RedisFidelityLogs(server.url, prefix)
    stored = last.of(OWNER).to_json()
    text = str(stored)
    assert all(f"kind {number}" in text for number in range(4))
    alone = RedisFidelityLogs(server.url, prefix + "-alone")
    for number in range(4):
        for _ in range(count):
            measure(alone, GOOD, kind=f"kind {number}")
            alone.of(OWNER).note_margin("m", ["page"], MarginSample(0.5, None))
    alone.close()
    assert sorted(map(str, stored["standings"])) == sorted(map(str, alone.of(OWNER).to_json()["standings"]))
    assert stored["margins"] == alone.of(OWNER).to_json()["margins"]


@pytest.mark.slow
def test_without_the_server_each_goes_on_and_adds_later(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--appendonly", "yes")
    try:
        one, other = (RedisFidelityLogs(server.url) for _ in range(2))
        measure(one, GOOD)
        server.stop()
        began = time.monotonic()
        measure(one, *[BAD] * 6)
        assert not trusts(one)
        assert time.monotonic() - began < 5
        server.start()
        deadline = time.monotonic() + 60
        while trusts(other):
            one.save(OWNER)
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        server.stop()


def test_what_was_written_though_its_answer_was_lost_counts_once(server: RedisServer, prefix: str) -> None:
    proxy = FaultyProxy(server.port)
    try:
        logs = RedisFidelityLogs(
            f"redis://127.0.0.1:{proxy.port}/0", prefix, policy=replace(QUICK, rest_seconds=QUICK_REST)
        )
        measure(logs, GOOD)
        run = logs._replace
        answers = []

        def cutting(*given: object) -> object:
            proxy.drop_after = None if answers else 0
            answers.append(proxy.drop_after)
            return run(*given)

        logs._replace = cutting
        measure(logs, GOOD)
        proxy.heal()
        time.sleep(QUICK_REST + 0.1)
        assert answers == [0]
        logs.save(OWNER)
        assert answers == [0, None]
    finally:
        proxy.close()
    alone = RedisFidelityLogs(server.url, prefix + "-alone")
    measure(alone, GOOD, GOOD)
    assert RedisFidelityLogs(server.url, prefix).of(OWNER).to_json() == alone.of(OWNER).to_json()


@pytest.mark.parametrize("text", [b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"lanes": 3}'])
def test_a_log_that_is_none_is_replaced(server: RedisServer, prefix: str, text: bytes) -> None:
    logs = RedisFidelityLogs(server.url, prefix)
    logs._client.set(f"{logs._root}/{OWNER}", text)
    assert trusts(logs)
    measure(logs, *[BAD] * 6)
    assert not trusts(RedisFidelityLogs(server.url, prefix))
