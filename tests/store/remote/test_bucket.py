"""What is particular to S3: objects that are made once, terms beside them, damage in the bucket, secrets."""

import logging
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from emblema.errors import LoadError, StoreError
from emblema.store.format import buffers
from emblema.store.record import Record, Terms
from emblema.store.remote import BucketTier
from tests.store.corpus import open_bytes
from tests.store.remote.conftest import QUICK, SECRET, make_s3
from tests.store.remote.records import ALICE, digest, record, same
from tests.store.remote.servers import free_port

obstore = pytest.importorskip("obstore")


@pytest.fixture
def port(s3_endpoint: str) -> int:
    return int(s3_endpoint.rpartition(":")[2])


@pytest.fixture
def tier(port: int, prefix: str) -> Iterator[BucketTier]:
    made = make_s3(port, prefix)
    yield made
    made.close()


@pytest.fixture
def raw(s3_endpoint: str) -> object:
    from obstore.store import S3Store

    options = {"endpoint": s3_endpoint, "access_key_id": "tester", "secret_access_key": SECRET, "region": "us-east-1"}
    return S3Store("emblema-test", config=options, client_options={"allow_http": True})


def listed(raw: object, prefix: str) -> set[str]:
    return {entry["path"] for batch in obstore.list(raw, prefix) for entry in batch}


def test_keys_lie_as_they_are_specified(tier: BucketTier, raw: object, prefix: str) -> None:
    page, patch = record("page"), record("patch", chunks=[digest("page")])
    tier.write(page, Terms())
    tier.write(patch, Terms())
    assert listed(raw, prefix) == {
        f"{prefix}/2/{ALICE}/{page.header.id}",
        f"{prefix}/2/{ALICE}/{patch.header.id}",
        f"{prefix}/2/{ALICE}/{page.header.id}.patches/{patch.header.id}",
        f"{prefix}/2/shared/{page.header.id}.owners/{ALICE}",
    }
    assert tier.delete(page.header.id, ALICE)
    assert listed(raw, prefix) == set()


def test_an_object_is_the_records_file(tier: BucketTier, raw: object, prefix: str) -> None:
    piece = record("page")
    tier.write(piece, Terms())
    found = bytes(obstore.get(raw, f"{prefix}/2/{ALICE}/{piece.header.id}").bytes())
    assert same(open_bytes(found, piece.header.id), piece)


def file_of(piece: Record) -> bytes:
    return b"".join(buffers(piece))


DAMAGE: dict[str, Callable[[bytes, bytes], bytes]] = {
    "empty": lambda data, other: b"",
    "one byte": lambda data, other: data[:1],
    "another's": lambda data, other: other,
    "half another's": lambda data, other: data[: len(data) // 2] + other[len(data) // 2 :],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_in_the_bucket_is_never_served(
    tier: BucketTier, raw: object, prefix: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    piece, other = record("page"), record("other")
    key = f"{prefix}/2/{ALICE}/{piece.header.id}"
    obstore.put(raw, key, DAMAGE[kind](file_of(piece), file_of(other)))
    with pytest.raises(LoadError):
        reader = tier.open(piece.header.id, ALICE)
        assert reader is not None
        same(reader, piece)
    assert tier._server.caller.breaker.closed
    assert tier.quarantine(piece.header.id, ALICE, "it did not verify")
    assert "it did not verify" in caplog.text
    assert tier.open(piece.header.id, ALICE) is None
    tier.write(piece, Terms())
    assert same(tier.open(piece.header.id, ALICE), piece)


def test_what_cannot_be_read_does_not_keep_its_successor_out(tier: BucketTier, raw: object, prefix: str) -> None:
    piece = record("page")
    obstore.put(raw, f"{prefix}/2/{ALICE}/{piece.header.id}", b"rubbish")
    tier.write(piece, Terms())
    assert same(tier.open(piece.header.id, ALICE), piece)


def test_a_record_deleted_or_replaced_as_it_is_read(tier: BucketTier, raw: object, prefix: str) -> None:
    for change in (
        lambda key: obstore.delete(raw, key),
        lambda key: obstore.put(raw, key, file_of(record("page", layers=20, layer_bytes=6000))),
    ):
        piece = record("page", layers=20)
        tier.write(piece, Terms())
        reader = tier.open(piece.header.id, ALICE)
        assert reader is not None
        change(f"{prefix}/2/{ALICE}/{piece.header.id}")
        with pytest.raises(LoadError):
            reader.read("layers.19.keys")


def test_an_idle_record_expires_unless_it_is_used(port: int, prefix: str) -> None:
    offset = 0.0
    tier = make_s3(port, prefix, clock=lambda: time.time() + offset)
    piece = record("page")
    # S3 keeps whole seconds: the times are far apart beside that and beside a slow machine.
    tier.write(piece, Terms(idle_seconds=600))
    offset = 400.0
    assert same(tier.open(piece.header.id, ALICE), piece)
    offset = 10_000.0
    assert tier.open(piece.header.id, ALICE) is None
    offset = 0.0
    assert tier.open(piece.header.id, ALICE) is None, "what has expired does not come back with the clock"


def test_use_begins_an_idle_time_anew(port: int, prefix: str, raw: object) -> None:
    tier, piece = make_s3(port, prefix, clock=lambda: time.time() + 50), record("page")
    tier.write(piece, Terms(idle_seconds=100))
    assert same(tier.open(piece.header.id, ALICE), piece)
    assert f"{prefix}/2/{ALICE}/{piece.header.id}.used" in listed(raw, prefix)
    assert tier.delete(piece.header.id, ALICE)
    assert listed(raw, prefix) == set()


def test_a_bucket_that_is_not_there(port: int, s3_endpoint: str) -> None:
    options = {"endpoint": s3_endpoint, "access_key_id": "tester", "secret_access_key": SECRET, "region": "us-east-1"}
    tier = BucketTier("s3://no-such-bucket", options=options)
    assert tier.open(digest("page"), ALICE) is None
    with pytest.raises(StoreError, match="refused"):
        tier.write(record("page"), Terms())
    assert tier._server.caller.breaker.closed


def test_secrets_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    endpoint = f"http://admin:{SECRET}@127.0.0.1:{free_port()}"
    options = {"endpoint": endpoint, "access_key_id": "AKIDEXAMPLE", "secret_access_key": SECRET, "region": "x"}
    tier = BucketTier("s3://emblema-test", options=options, policy=QUICK)
    shown = [repr(tier)]
    for action in (
        lambda: tier.open(digest("page"), ALICE),
        lambda: tier.write(record("page"), Terms()),
        lambda: BucketTier("s3://bucket", options=options | {"nonsense": SECRET}),
        lambda: BucketTier(f"s3://key:{SECRET}@bucket"),
    ):
        with pytest.raises(StoreError) as caught:
            action()
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None or caught.value.__suppress_context__
        shown.append(str(caught.value))
    assert not [text for text in (*shown, caplog.text) if SECRET in text or "AKIDEXAMPLE" in text]


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=r"pip install emblema\[s3\]"):
        BucketTier("s3://bucket")


def test_the_old_name_says_the_new_one() -> None:
    with pytest.raises(ImportError, match="use BucketTier"):
        from emblema.store.remote import S3Tier  # noqa: F401
