"""Networks that fail: every read ends soon, in the right bytes, a miss or a LoadError; nothing else."""

import random
import time
from collections.abc import Callable, Iterator

import pytest

from emblema.errors import LoadError, StoreError
from emblema.store.record import Record, Terms
from emblema.store.remote import BucketTier, OutageError, RedisTier
from tests.store.remote.conftest import QUICK, Make
from tests.store.remote.records import ALICE, BOB, digest, record, same, size
from tests.store.remote.servers import FaultyProxy, free_port

Tier = RedisTier | BucketTier
# Three calls follow each other at most: reaching the server, a first part, a second one.
BOUND = 3 * (QUICK.total_seconds + QUICK.connect_seconds + QUICK.reply_seconds)


@pytest.fixture
def piece(tier: Tier) -> Record:
    made = record("page", layers=4, layer_bytes=30_000)
    tier.write(made, Terms())
    return made


@pytest.fixture
def behind(make: Make, proxy: FaultyProxy) -> Iterator[Tier]:
    """A tier whose server is behind the proxy."""
    made = make(port=proxy.port, policy=QUICK)
    yield made
    made.close()


def hang(proxy: FaultyProxy) -> None:
    proxy.hang = True


def refuse(proxy: FaultyProxy) -> None:
    proxy.refuse = True
    proxy.cut()


def trickle(proxy: FaultyProxy) -> None:
    proxy.trickle = 0.05


def drop_at_once(proxy: FaultyProxy) -> None:
    proxy.drop_after = 0


def drop_in_a_value(proxy: FaultyProxy) -> None:
    proxy.drop_after = 2500


OUTAGES = [hang, refuse, pytest.param(trickle, marks=pytest.mark.slow), drop_at_once, drop_in_a_value]


def seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


@pytest.mark.nightly
@pytest.mark.parametrize("fault", OUTAGES)
def test_an_outage_is_short_and_passes(
    behind: Tier, proxy: FaultyProxy, piece: Record, fault: Callable[[FaultyProxy], None]
) -> None:
    assert same(behind.open(piece.header.id, ALICE), piece)
    # It opens and stays so until it is told otherwise, however slow this machine is.
    breaker = behind._server.caller.breaker
    breaker.rest_seconds = 3600
    fault(proxy)
    began = time.monotonic()
    while breaker.closed:
        with pytest.raises(OutageError):
            behind.open(piece.header.id, ALICE)
        assert time.monotonic() - began < 3 * BOUND

    # Nobody waits for a server that is not asked.
    connections = proxy.connections()
    assert behind.open(piece.header.id, ALICE) is None
    assert behind.open(piece.header.id, ALICE) is None
    assert proxy.connections() == connections

    proxy.heal()
    proxy.cut()
    breaker.rest_seconds = 0
    assert same(behind.open(piece.header.id, ALICE), piece)
    assert breaker.closed


@pytest.mark.nightly
@pytest.mark.parametrize("fault", OUTAGES)
def test_an_outage_in_the_middle_of_a_record(
    behind: Tier, proxy: FaultyProxy, piece: Record, fault: Callable[[FaultyProxy], None]
) -> None:
    reader = behind.open(piece.header.id, ALICE)
    assert reader is not None
    assert bytes(reader.read("token_ids").data) == bytes(piece.arrays["token_ids"].data)
    fault(proxy)
    began = time.monotonic()
    with pytest.raises(OutageError):
        reader.read("layers.3.keys")
    assert time.monotonic() - began < BOUND
    proxy.heal()
    proxy.cut()
    time.sleep(QUICK.rest_seconds)
    assert bytes(reader.read("layers.3.keys").data) == bytes(piece.arrays["layers.3.keys"].data)


@pytest.mark.parametrize("fault", [pytest.param(hang, marks=pytest.mark.slow), refuse])
def test_an_outage_never_passes_for_a_write_or_a_deletion(
    behind: Tier, tier: Tier, proxy: FaultyProxy, piece: Record, fault: Callable[[FaultyProxy], None]
) -> None:
    fault(proxy)
    other = record("other", layer_bytes=20_000)
    with pytest.raises(StoreError):
        behind.write(other, Terms())
    time.sleep(QUICK.rest_seconds)
    with pytest.raises(StoreError):
        behind.delete(piece.header.id, ALICE)
    assert tier.open(other.header.id, ALICE) is None
    assert same(tier.open(piece.header.id, ALICE), piece)
    proxy.heal()
    proxy.cut()
    time.sleep(QUICK.rest_seconds)
    behind.write(other, Terms())
    assert same(tier.open(other.header.id, ALICE), other)


def test_a_server_that_is_not_there(make: Make) -> None:
    tier = make(port=free_port(), policy=QUICK)
    assert seconds(lambda: pytest.raises(OutageError, tier.open, digest("page"), ALICE)) < BOUND
    with pytest.raises(StoreError):
        tier.write(record("page"), Terms())


def test_one_cut_connection_is_repaired(behind: Tier, proxy: FaultyProxy, piece: Record) -> None:
    reader = behind.open(piece.header.id, ALICE)
    proxy.cut()
    assert same(reader, piece)


def test_another_keys_bytes_are_refused(behind: Tier, tier: Tier, proxy: FaultyProxy, piece: Record) -> None:
    other = record("other", layers=4, layer_bytes=30_000)
    tier.write(other, Terms())
    proxy.swap = (piece.header.id.encode(), other.header.id.encode())
    with pytest.raises(LoadError) as caught:
        behind.open(piece.header.id, ALICE)
    assert not isinstance(caught.value, OutageError)


def test_another_owners_bytes_are_refused(behind: Tier, tier: Tier, proxy: FaultyProxy, piece: Record) -> None:
    tier.write(record("page", BOB, layers=4, layer_bytes=30_000), Terms())
    proxy.swap = (ALICE.encode(), BOB.encode())
    with pytest.raises(LoadError):
        behind.open(piece.header.id, ALICE)


def test_another_keys_bytes_in_the_middle(behind: Tier, tier: Tier, proxy: FaultyProxy, piece: Record) -> None:
    other = record("other", layers=4, layer_bytes=30_000)
    tier.write(other, Terms())
    reader = behind.open(piece.header.id, ALICE)
    assert reader is not None
    proxy.swap = (piece.header.id.encode(), other.header.id.encode())
    with pytest.raises(LoadError):
        reader.read("layers.3.keys")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_are_never_served(make: Make, proxy: FaultyProxy, piece: Record, seed: int) -> None:
    numbers = random.Random(seed)
    for _ in range(12):
        tier = make(port=proxy.port, policy=QUICK)
        proxy.flip_at = numbers.choice([numbers.randrange(400), numbers.randrange(size(piece))])
        try:
            reader = tier.open(piece.header.id, ALICE)
            # A flip in what is said about the answer may do no harm, or make it a miss.
            assert reader is None or same(reader, piece)
        except LoadError:
            pass
        tier.close()
