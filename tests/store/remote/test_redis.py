"""What is particular to Redis: expiry and eviction by the server, damage inside it, passwords."""

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import emblema
from emblema.errors import LoadError, StoreError
from emblema.store.record import Terms
from emblema.store.remote import RedisTier
from emblema.store.remote.redis import scrub_address
from tests.store.remote.conftest import QUICK, make_redis
from tests.store.remote.records import ALICE, digest, record, same
from tests.store.remote.servers import RedisServer, absent

redis = pytest.importorskip("redis")
PASSWORD = "correct horse/battery"


@pytest.fixture
def tier(redis_port: int, prefix: str) -> Iterator[RedisTier]:
    made = make_redis(redis_port, prefix)
    yield made
    made.close()


@pytest.fixture
def raw(redis_port: int) -> Iterator["redis.Redis"]:
    with redis.Redis(port=redis_port) as client:
        yield client


def test_keys_lie_as_they_are_specified(tier: RedisTier, raw: "redis.Redis", prefix: str) -> None:
    page, patch = record("page"), record("patch", chunks=[digest("page")])
    tier.write(page, Terms())
    tier.write(patch, Terms())
    keys = {key.decode() for key in raw.scan_iter(f"{prefix}/*")}
    assert keys == {
        f"{prefix}/2/{ALICE}/{page.header.id}",
        f"{prefix}/2/{ALICE}/{patch.header.id}",
        f"{prefix}/2/{ALICE}/{page.header.id}.patches",
        f"{prefix}/2/shared/{page.header.id}.owners",
    }
    assert tier.delete(page.header.id, ALICE)
    assert not list(raw.scan_iter(f"{prefix}/*"))


def test_the_server_lets_a_record_expire(tier: RedisTier, raw: "redis.Redis", prefix: str) -> None:
    piece = record("page", created=time.time())
    tier.write(piece, Terms(seconds=100))
    key = f"{prefix}/2/{ALICE}/{piece.header.id}"
    assert 60_000 < raw.pttl(key) <= 100_000
    tier.write(piece, Terms())
    assert raw.pttl(key) == -1
    tier.write(piece, Terms(idle_seconds=0.2))
    time.sleep(0.25)
    assert not raw.exists(key)


def test_reading_begins_an_idle_time_anew(tier: RedisTier, raw: "redis.Redis", prefix: str) -> None:
    piece = record("page")
    tier.write(piece, Terms(seconds=10_000, idle_seconds=100))
    key = f"{prefix}/2/{ALICE}/{piece.header.id}"
    raw.pexpire(key, 50_000)
    assert same(tier.open(piece.header.id, ALICE), piece)
    assert 60_000 < raw.pttl(key) <= 100_000


DAMAGE = {
    "emptied of its end": lambda raw, key, other: raw.set(key, raw.get(key)[:-1]),
    "cut in the head": lambda raw, key, other: raw.set(key, raw.get(key)[:200]),
    "grown": lambda raw, key, other: raw.append(key, b"x"),
    "zeroed": lambda raw, key, other: raw.setrange(key, 0, bytes(raw.strlen(key))),
    "a part zeroed": lambda raw, key, other: raw.setrange(key, 6000, bytes(4096)),
    "another's part": lambda raw, key, other: raw.setrange(key, 6000, raw.getrange(other, 6000, 9999)),
    "another's beginning": lambda raw, key, other: raw.setrange(key, 0, raw.getrange(other, 0, 4095)),
    "another type": lambda raw, key, other: (raw.unlink(key), raw.hset(key, "head", b"text")),
    "another record": lambda raw, key, other: raw.copy(other, key, replace=True),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_in_the_server_is_never_served(
    tier: RedisTier, raw: "redis.Redis", prefix: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    piece, other = record("page"), record("other")
    for made in (piece, other):
        tier.write(made, Terms())
    key = f"{prefix}/2/{ALICE}/{piece.header.id}"
    DAMAGE[kind](raw, key, f"{prefix}/2/{ALICE}/{other.header.id}")
    with pytest.raises(LoadError):
        reader = tier.open(piece.header.id, ALICE)
        assert reader is not None
        same(reader, piece)
    if kind == "another type":
        with pytest.raises(StoreError):
            tier.write(piece, Terms())
        return
    assert tier.quarantine(piece.header.id, ALICE, "it did not verify")
    assert "it did not verify" in caplog.text
    assert tier.open(piece.header.id, ALICE) is None
    tier.write(piece, Terms())
    assert same(tier.open(piece.header.id, ALICE), piece)
    assert same(tier.open(other.header.id, ALICE), other)


def test_a_record_deleted_or_replaced_as_it_is_read(tier: RedisTier, raw: "redis.Redis", prefix: str) -> None:
    piece = record("page", layers=20)
    tier.write(piece, Terms())
    key = f"{prefix}/2/{ALICE}/{piece.header.id}"
    for change in (lambda: tier.delete(piece.header.id, ALICE), lambda: raw.setrange(key, 4096, bytes(100_000))):
        tier.write(piece, Terms())
        reader = tier.open(piece.header.id, ALICE)
        assert reader is not None
        change()
        with pytest.raises(LoadError):
            reader.read("layers.19.keys")


def test_closing_lets_go_of_the_connections(redis_port: int, prefix: str, raw: "redis.Redis") -> None:
    before = len(raw.client_list())
    tier = make_redis(redis_port, prefix)
    tier.open(digest("page"), ALICE)
    assert len(raw.client_list()) == before + 1
    tier.close()
    assert len(raw.client_list()) == before


def test_a_full_server_refuses_and_keeps_nothing(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    try:
        tier = make_redis(server.port, "test")
        small, large = record("small"), record("large", layer_bytes=2_000_000)
        tier.write(small, Terms())
        with pytest.raises(StoreError, match="refused"):
            tier.write(large, Terms())
        assert tier.open(large.header.id, ALICE) is None
        assert same(tier.open(small.header.id, ALICE), small)
        with redis.Redis(port=server.port) as raw:
            assert raw.dbsize() == 1
        assert tier._server.caller.breaker.closed
    finally:
        server.stop()


def test_what_a_server_evicts_is_a_miss(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru")
    try:
        tier = make_redis(server.port, "test")
        pieces = [record(f"page {index}", layer_bytes=200_000) for index in range(20)]
        kept = 0
        for piece in pieces:
            # A server this small may throw out what is just being written.
            with contextlib.suppress(StoreError):
                tier.write(piece, Terms())
                kept += 1
        found = [tier.open(piece.header.id, ALICE) for piece in pieces]
        assert 0 < sum(reader is not None for reader in found) < kept
        assert all(reader is None or same(reader, piece) for reader, piece in zip(found, pieces, strict=True))
    finally:
        server.stop()


def test_a_server_that_was_started_again_is_found_again(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        tier, piece = make_redis(server.port, "test", policy=QUICK), record("page")
        tier.write(piece, Terms())
        server.stop()
        with pytest.raises(LoadError):
            tier.open(piece.header.id, ALICE)
        server.start()
        time.sleep(QUICK.rest_seconds)
        assert tier.open(piece.header.id, ALICE) is None
        tier.write(piece, Terms())
        assert same(tier.open(piece.header.id, ALICE), piece)
    finally:
        server.stop()


@pytest.mark.parametrize("given", ["wrong secret", PASSWORD])
def test_passwords_are_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture, given: str) -> None:
    caplog.set_level(logging.DEBUG)
    server = RedisServer(tmp_path, "--requirepass", PASSWORD)
    try:
        quoted = given.replace(" ", "%20").replace("/", "%2F")
        tier = RedisTier(f"redis://default:{quoted}@127.0.0.1:{server.port}/0", policy=QUICK)
        piece, shown = record("page"), [repr(tier)]
        if given == PASSWORD:
            tier.write(piece, Terms())
            assert same(tier.open(piece.header.id, ALICE), piece)
            server.stop()
        for action in (lambda: tier.open(piece.header.id, ALICE), lambda: tier.write(piece, Terms())):
            with pytest.raises(StoreError) as caught:
                action()
            assert caught.value.__cause__ is None
            assert caught.value.__context__ is None or caught.value.__suppress_context__
            shown += [str(caught.value), repr(caught.value)]
        assert not [text for text in (*shown, caplog.text) if given in text or quoted in text]
    finally:
        server.stop()


def test_secrets_are_taken_out_of_what_a_library_says() -> None:
    url = "redis://user:p%40ss@host:1/0?ssl_password=inner"
    said = scrub_address("no way for user:p%40ss, p@ss, p%40ss, ssl_password=inner at host", url)
    assert said == "no way for ***, ***, ***, *** at host"


@pytest.mark.parametrize(
    "url", ["", "http://localhost", "redis://user:hidden@host:port/0", "redis://:hidden@localhost:99999999/0"]
)
def test_what_is_no_address_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(StoreError, match="redis://") as caught:
        RedisTier(url)
    assert "hidden" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("part_bytes", [0, -1, 4095, 2**40])
def test_part_sizes_beyond_the_limits_are_refused(part_bytes: int) -> None:
    with pytest.raises(StoreError, match="Parts of"):
        RedisTier("redis://localhost", part_bytes=part_bytes)


@pytest.mark.parametrize("prefix", ["", "/", "a//b", "../a", "a b", "a*", "ä", "a/"])
def test_prefixes_that_are_none_are_refused(prefix: str) -> None:
    with pytest.raises(StoreError, match="prefix"):
        RedisTier("redis://localhost", prefix)


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StoreError, match=r"pip install emblema\[redis\]"):
        RedisTier("redis://localhost")


def test_importing_the_tiers_imports_neither_client_nor_torch() -> None:
    program = "import sys, emblema.store.remote; print(sorted({'redis', 'obstore', 'torch'} & set(sys.modules)))"
    source = str(Path(emblema.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": source}
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_an_absent_server_fails_where_servers_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMBLEMA_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="gone"):
        absent("gone")
    monkeypatch.setenv("EMBLEMA_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="gone"):
        absent("gone")
