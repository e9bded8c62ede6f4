"""When pieces expire, and what a clock that jumps does to that."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.store.clock import SteadyClock
from emblema.store.disk import DiskTier
from emblema.store.disk.index import remove_index
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
    assert tier.statistics.expired == 2


def test_use_keeps_what_would_expire_idle(tier: DiskTier, clock: Clock, tmp_path: Path) -> None:
    put(tier, "a", Terms(idle_seconds=10.0))
    for _ in range(5):
        clock.now += 9
        assert tier.entry(id_of("a")) is not None
        tier.touch([id_of("a")])
        assert tier.expire() == 0
    tier.close()
    remove_index(tmp_path / "index.sqlite")
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


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("lost_index", [False, True])
def test_a_clock_that_jumps_back(tmp_path: Path, clock: Clock, restart: bool, lost_index: bool) -> None:
    """Nothing expires by it, nothing comes back, and what is used later stays longer."""
    tier = DiskTier(tmp_path, MEBIBYTE, clock=clock)
    put(tier, "a", Terms(seconds=100.0))
    put(tier, "b", Terms(seconds=10.0, priority=9))
    put(tier, "c")
    clock.now = 1050.0
    assert tier.entry(id_of("b")) is None
    put(tier, "d")
    clock.now = 500.0
    if restart:
        tier.close()
        if lost_index:
            remove_index(tmp_path / "index.sqlite")
        tier = DiskTier(tmp_path, MEBIBYTE, clock=clock)
    assert tier.entry(id_of("a")) is not None
    assert tier.entry(id_of("b")) is None
    put(tier, "e", created=500.0)
    tier.touch([id_of("c")])
    # The steady time goes on at the clock's pace: 49 more seconds, then the 100 are over.
    clock.now = 549.0
    assert tier.entry(id_of("a")) is not None
    clock.now = 551.0
    assert tier.entry(id_of("a")) is None
    assert tier.expire() == 2
    assert there(tier) == {"c", "d", "e"}
    tier.evict(ALICE, 1)
    assert there(tier) == {"c", "e"}


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_steady_time_never_goes_back_and_never_stands(moments: list[float]) -> None:
    clock = Clock(0.0)
    steady = SteadyClock(clock)
    before = steady.now()
    for moment in moments:
        clock.now = moment
        now = steady.now()
        assert now >= before
        clock.now += 7.0
        assert steady.now() == pytest.approx(now + 7.0)
        before = steady.now()
