"""When pieces expire."""

import json
from pathlib import Path

import pytest
from xxhash import xxh3_128

from emblema.store.disk import DiskTier
from emblema.store.record import Terms
from tests.store.disk.records import ALICE, MEBIBYTE, Clock, id_of, put, record, there


@pytest.mark.parametrize(("terms", "used"), [(Terms(seconds=10.0), True), (Terms(idle_seconds=10.0), False)])
def test_what_has_expired_is_not_there_and_goes(
    tier: DiskTier, clock: Clock, tmp_path: Path, terms: Terms, used: bool
) -> None:
    put(tier, "a", terms)
    tier.write(record("patch", chunks=[id_of("a")]), Terms())
    put(tier, "b")
    clock.now = 1009.0
    if used:
        tier.touch([id_of("a")])
    assert tier.entry(id_of("a")) is not None
    clock.now = 1010.0
    assert tier.entry(id_of("a")) is None
    assert tier.open(id_of("a"), ALICE) is None
    assert id_of("a") not in {entry.id for entry in tier.entries()}
    assert tier.expire() == 2
    assert there(tier) == {"b"}


def test_use_keeps_what_would_expire_idle(tier: DiskTier, clock: Clock, tmp_path: Path) -> None:
    put(tier, "a", Terms(idle_seconds=10.0))
    for _ in range(5):
        clock.now += 9
        assert tier.entry(id_of("a")) is not None
        tier.touch([id_of("a")])
        assert tier.expire() == 0
    tier.close()
    tier = DiskTier(tmp_path, MEBIBYTE, clock=clock)
    assert tier.entry(id_of("a")) is not None
    clock.now += 10
    assert tier.expire() == 1


def test_what_is_in_use_expires_later(tmp_path: Path, clock: Clock) -> None:
    used = {id_of("a")}
    tier = DiskTier(tmp_path, MEBIBYTE, clock=clock, in_use=lambda: used)
    put(tier, "a", Terms(seconds=1.0))
    clock.now += 2
    assert tier.expire() == 0
    used.clear()
    assert tier.expire() == 1


def test_the_age_at_writing_counts(tier: DiskTier, clock: Clock) -> None:
    clock.now = 1006.0
    put(tier, "a", Terms(seconds=10.0), created=1000.0)
    put(tier, "b", Terms(seconds=10.0), created=9000.0)
    clock.now = 1011.0
    assert tier.entry(id_of("a")) is None
    assert tier.entry(id_of("b")) is not None
    clock.now = 1016.0
    assert tier.entry(id_of("b")) is None


DAY = 86400.0


def forge(tier: DiskTier, written: object) -> None:
    """Write the file of piece "a" again as its header were signed with another `written`."""
    path = tier.piece_path(id_of("a"))
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    outer = json.loads(data[8 : 8 + length])
    fields = json.loads(outer["__metadata__"]["emblema"])
    fields["meta"]["terms"]["written"] = written
    inner = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    outer["__metadata__"] = {"emblema": inner, "xxh3_128": xxh3_128(inner.encode()).hexdigest()}
    text = json.dumps(outer, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % 64)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize("written", [1e300, 1e18, 10**400])
def test_a_forged_moment_in_one_file_stops_no_write_and_ends_no_piece(tmp_path: Path, written: object) -> None:
    clock = Clock(1e9)
    with_terms = Terms(seconds=DAY)
    tier = DiskTier(tmp_path, MEBIBYTE, clock=clock)
    put(tier, "a", created=1e9)
    put(tier, "b", with_terms, created=1e9)
    forge(tier, written)
    tier.close()
    tier = DiskTier(tmp_path, MEBIBYTE, clock=clock)
    put(tier, "c", with_terms, created=1e9)
    assert tier.expire() == 0 and tier.entry(id_of("b")) is not None
    tier.close()
    tier.piece_path(id_of("a")).unlink(missing_ok=True)
    tier = DiskTier(tmp_path, MEBIBYTE, clock=clock)
    put(tier, "d", with_terms, created=1e9)
    clock.now += DAY - 1
    assert {name for name in "bcd" if tier.entry(id_of(name)) is not None} == set("bcd")
    tier.close()
