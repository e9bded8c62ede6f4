"""What the tiers promise, against their real servers."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.store.disk.entry import terms_of
from emblema.store.format import verify
from emblema.store.record import SHARED, Terms
from emblema.store.remote import BucketTier, RedisTier
from tests.store.remote.conftest import SERVERS, Make
from tests.store.remote.records import ALICE, BOB, Counted, digest, record, same, size

Tier = RedisTier | BucketTier


@pytest.fixture(params=["redis", "s3", "folder"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Make, int]:
    """How to make a tier on a server, or in a folder by the same library as in a bucket; and the port."""
    if request.param == "folder":
        return lambda port, prefix, **options: BucketTier(
            tmp_path.as_uri(), prefix, **{"part_bytes": 4096, **options}
        ), 0
    return SERVERS[request.param](request)


@pytest.mark.parametrize("layer_bytes", [0, 1, 4000, 4096, 50_000])
def test_what_is_written_is_read(tier: Tier, layer_bytes: int) -> None:
    piece = record(f"page {layer_bytes}", layer_bytes=layer_bytes)
    tier.write(piece, Terms())
    counted = Counted(tier)
    reader = tier.open(piece.header.id, ALICE)
    assert reader is not None
    assert (reader.header.id, reader.header.owner, reader.header.meta["name"]) == (
        piece.header.id,
        ALICE,
        f"page {layer_bytes}",
    )
    assert same(reader, piece)
    reader.close()
    assert size(piece) <= counted.bytes_read <= size(piece) + 256, "each byte comes once, and its terms with them"


def test_what_is_not_there_is_a_miss(tier: Tier) -> None:
    assert tier.open(digest("nothing"), ALICE) is None
    assert not tier.delete(digest("nothing"), ALICE)


def test_tensors_are_read_in_any_order_and_by_many_threads(tier: Tier) -> None:
    piece = record("page", layers=12, layer_bytes=9000)
    tier.write(piece, Terms())
    reader = tier.open(piece.header.id, ALICE)
    assert reader is not None
    names = list(piece.arrays) * 3
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda name: bytes(reader.read(name).data), reversed(names)))
    assert read == [bytes(piece.arrays[name].data) for name in reversed(names)]


def test_the_first_layer_is_here_before_the_last_is_asked_for(make: Make) -> None:
    piece = record("page", layers=20, layer_bytes=40_000)
    tier = make()
    tier.write(piece, Terms())
    counted = Counted(tier)
    reader = tier.open(piece.header.id, ALICE)
    assert reader is not None
    opened = counted.bytes_read
    reader.read("layers.0.keys")
    assert opened <= 4096
    assert counted.bytes_read <= 40_000 + 4 * 4096
    verify(reader)
    assert counted.bytes_read < 1.2 * size(piece)


def test_two_tenants_never_meet(tier: Tier) -> None:
    mine, theirs = record("page", ALICE), record("page", BOB, layers=1)
    tier.write(mine, Terms())
    assert tier.open(mine.header.id, BOB) is None
    assert tier.open(mine.header.id, SHARED) is None
    tier.write(theirs, Terms())
    assert same(tier.open(mine.header.id, ALICE), mine)
    assert same(tier.open(theirs.header.id, BOB), theirs)
    assert tier.delete(mine.header.id, BOB)
    assert same(tier.open(mine.header.id, ALICE), mine)
    assert not tier.delete(mine.header.id, SHARED)
    assert tier.open(mine.header.id, ALICE) is not None


def test_two_prefixes_never_meet(make: Make, prefix: str) -> None:
    piece = record("page")
    make().write(piece, Terms())
    assert make(prefix=f"{prefix}/inner").open(piece.header.id, ALICE) is None


def test_deleting_a_chunk_deletes_its_patches(tier: Tier) -> None:
    left, right, other = (record(name) for name in ("left", "right", "other"))
    both = record("patch 1", chunks=[right.header.id, left.header.id])
    one = record("patch 2", chunks=[other.header.id])
    for piece in (left, right, other, both, one):
        tier.write(piece, Terms())
    assert tier.delete(left.header.id, ALICE)
    assert tier.open(left.header.id, ALICE) is None
    assert tier.open(both.header.id, ALICE) is None
    assert same(tier.open(one.header.id, ALICE), one)
    assert same(tier.open(right.header.id, ALICE), right)
    assert tier.delete(right.header.id, ALICE)
    assert not tier.delete(right.header.id, ALICE)


def test_deleting_a_shared_chunk_deletes_every_tenants_patches(tier: Tier) -> None:
    page = record("page", SHARED)
    patches = [record(f"patch of {owner}", owner, chunks=[page.header.id]) for owner in (ALICE, BOB, SHARED)]
    for piece in (page, *patches):
        tier.write(piece, Terms())
    assert tier.delete(page.header.id, ALICE), "a tenant deletes what is its own"
    assert tier.open(patches[0].header.id, ALICE) is None
    assert same(tier.open(patches[1].header.id, BOB), patches[1])
    assert same(tier.open(page.header.id, SHARED), page)
    assert tier.delete(page.header.id, SHARED)
    assert all(tier.open(piece.header.id, piece.header.owner) is None for piece in (page, *patches))


def test_what_verifies_is_not_quarantined(tier: Tier) -> None:
    page = record("page")
    tier.write(page, Terms())
    assert not tier.quarantine(page.header.id, ALICE, "somebody said so")
    assert not tier.quarantine(digest("nothing"), ALICE, "somebody said so")
    assert same(tier.open(page.header.id, ALICE), page)


def test_what_has_expired_is_not_here(tier: Tier) -> None:
    now = time.time()
    past = record("past", created=now - 100)
    tier.write(past, Terms(seconds=50))
    assert tier.open(past.header.id, ALICE) is None
    future = record("future", created=now)
    tier.write(future, Terms(seconds=50))
    assert same(tier.open(future.header.id, ALICE), future)


def test_what_expired_can_be_kept_again(tier: Tier) -> None:
    old = record("page", created=time.time() - 100)
    tier.write(old, Terms(seconds=50))
    new = record("page")
    tier.write(new, Terms(seconds=50))
    assert same(tier.open(new.header.id, ALICE), new)


def test_a_clock_that_is_past_the_end_sees_nothing(make: Make) -> None:
    piece = record("page")
    make().write(piece, Terms(seconds=500))
    assert make(clock=lambda: time.time() + 1000).open(piece.header.id, ALICE) is None


def test_a_patch_does_not_outlast_its_chunk(make: Make) -> None:
    page = record("page")
    patch = record("patch", chunks=[page.header.id])
    tier = make()
    tier.write(page, Terms(seconds=500))
    tier.write(patch, Terms())
    later = make(clock=lambda: time.time() + 1000)
    assert same(tier.open(patch.header.id, ALICE), patch)
    assert later.open(patch.header.id, ALICE) is None


def test_a_record_that_is_there_stays(tier: Tier) -> None:
    first, second = record("page"), record("page", layers=1)
    tier.write(first, Terms())
    reader = tier.open(first.header.id, ALICE)
    tier.write(second, Terms())
    assert same(reader, first)
    assert same(tier.open(first.header.id, ALICE), first)


@pytest.mark.parametrize("seconds", [1e18, 1e300])
def test_terms_beyond_the_calendar_are_for_ever(tier: Tier, seconds: float) -> None:
    piece = record("page")
    tier.write(piece, Terms(seconds=seconds, idle_seconds=seconds))
    assert same(tier.open(piece.header.id, ALICE), piece)


def test_new_terms_take_the_place_of_the_old(tier: Tier) -> None:
    piece, counted = record("page"), Counted(tier)
    tier.write(piece, Terms(seconds=1e6))
    tier.write(piece, Terms(seconds=1e6))
    assert counted.puts == 1, "what is there already with the same terms is not sent again"
    tier.write(piece, Terms(seconds=1e5))
    reader = tier.open(piece.header.id, ALICE)
    assert reader is not None
    assert terms_of(reader.header, Terms()) == Terms(seconds=1e5)
    assert same(reader, piece)


def test_a_record_larger_than_the_limit_is_refused(make: Make) -> None:
    tier = make(largest_bytes=10_000)
    piece = record("page")
    with pytest.raises(CapacityError, match="largest_bytes"):
        tier.write(piece, Terms())
    make().write(piece, Terms())
    with pytest.raises(LoadError):
        tier.open(piece.header.id, ALICE)


@pytest.mark.parametrize("id", ["", "0" * 63, "G" * 64, "A" * 64, "../" * 21 + "a", "0" * 63 + "\n"])
def test_what_is_no_id_is_no_key(tier: Tier, id: str) -> None:
    for action in (lambda: tier.open(id, ALICE), lambda: tier.open(ALICE, id), lambda: tier.delete(id, ALICE)):
        with pytest.raises(StoreError):
            action()


def test_many_write_and_read_one_record_at_once(make: Make) -> None:
    tier = make()
    piece = record("page", layer_bytes=30_000)

    def work(index: int) -> bool:
        if index % 2:
            tier.write(piece, Terms())
            return True
        reader = tier.open(piece.header.id, ALICE)
        return reader is None or same(reader, piece)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(24)))
    assert same(tier.open(piece.header.id, ALICE), piece)
