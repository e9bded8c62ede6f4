"""A clock that is set back, leaps, or is told of moments that no clock shows."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128

from emblema import Store
from emblema.errors import StoreError
from emblema.store.clock import LEAP, MOST_AHEAD, PATIENCE, SteadyClock
from emblema.store.disk import DiskTier
from emblema.store.record import Terms
from emblema.store.settings import StoreSettings
from tests.store.disk.records import MEBIBYTE, Clock, id_of, put
from tests.store.pieces import chunk, name

DAY = 86400.0


class Watch:
    """A system clock that can be set, beside the time that really passes."""

    def __init__(self) -> None:
        self.system = self.passed = 1e9
        self.steady = SteadyClock(lambda: self.system, lambda: self.passed)

    def wait(self, seconds: float) -> None:
        self.system, self.passed = self.system + seconds, self.passed + seconds

    def since(self, began: float) -> float:
        return self.steady.now() - began


@pytest.mark.parametrize("leap", [2 * LEAP, 2 * DAY, 1e11, -2 * LEAP, -2 * DAY])
@pytest.mark.parametrize("stays", [0.0, 30.0, PATIENCE - 1])
def test_a_clock_that_is_wrong_for_a_moment_changes_nothing(leap: float, stays: float) -> None:
    watch = Watch()
    began, right = watch.steady.now(), watch.system
    watch.system += leap
    assert watch.since(began) == 0
    watch.wait(stays)
    assert watch.since(began) == pytest.approx(stays)
    assert watch.steady.steady(began) == pytest.approx(began, abs=1e-3) or leap < 0
    watch.system = right + stays
    assert watch.since(began) == pytest.approx(stays)
    watch.wait(DAY)
    assert watch.since(began) == pytest.approx(DAY + stays)
    assert watch.steady.system() == watch.system


def test_a_leap_that_lasts_is_believed() -> None:
    """The clock was behind when the process began, and was set right."""
    watch = Watch()
    began = watch.steady.now()
    watch.system += 20 * DAY
    watch.steady.now()
    watch.wait(PATIENCE - 1)
    assert watch.since(began) == pytest.approx(PATIENCE - 1)
    watch.wait(1)
    assert watch.since(began) == pytest.approx(20 * DAY + PATIENCE) and watch.steady.system() == watch.system


def test_what_passed_while_nobody_looked_counts() -> None:
    """Idle or suspended for days: no leap, as the other clock went on as well."""
    watch = Watch()
    began = watch.steady.now()
    watch.wait(20 * DAY)
    assert watch.since(began) == 20 * DAY


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e5)), max_size=20))
def test_steady_time_never_goes_back_nor_falls_behind_what_passes(steps: list[tuple[float, float]]) -> None:
    watch = Watch()
    before = watch.steady.now()
    for jump, seconds in steps:
        watch.system += jump
        now = watch.steady.now()
        assert before <= now
        watch.wait(seconds)
        before = watch.steady.now()
        assert before - now >= seconds - 1e-3


@pytest.mark.parametrize("moment", [math.inf, 1e300, 1e9 + MOST_AHEAD + 1])
def test_a_moment_that_no_clock_shows_is_not_believed(moment: float) -> None:
    watch = Watch()
    watch.steady.reach(moment)
    assert watch.steady.now() == 1e9
    watch.steady.reach(1e9 + MOST_AHEAD)
    watch.steady.reach(1e9 + 2 * MOST_AHEAD)
    assert watch.steady.now() == 1e9 + MOST_AHEAD, "one day ahead, and not a day further with each moment"


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


def test_an_index_that_was_taken_ahead_is_taken_back(tmp_path: Path) -> None:
    """As an earlier version left it after a forged moment."""
    tier = DiskTier(tmp_path, MEBIBYTE, clock=Clock(1e9))
    put(tier, "b", Terms(seconds=DAY), created=1e9)
    with tier.files.change() as index:
        index.set_latest(1e300)
    with tier.files.idle():
        tier.files._index._writer.execute("BEGIN")
        tier.files._index.set_latest(1e300)
        tier.files._index._writer.execute("COMMIT")
    tier.close()
    tier = DiskTier(tmp_path, MEBIBYTE, clock=Clock(1e9))
    put(tier, "c", created=1e9)
    assert tier.entry(id_of("b")) is not None and tier.files.read(lambda index: index.latest()) < 2e9


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_ahead_for_a_moment_ends_no_piece(tmp_path: Path, restart: bool) -> None:
    """Neither in memory nor on disk, though the store looks, writes and sweeps in that moment."""
    clock = Clock(1e9)
    settings = StoreSettings(clock=clock)

    def opened() -> Store:
        return Store(DiskTier(tmp_path, MEBIBYTE, clock=clock), settings=settings)

    store = opened()
    store.tenant().put(chunk(name(1)), Terms(seconds=DAY))
    store.flush()
    clock.now += 2 * DAY
    store.tenant().put(chunk(name(2)), Terms(seconds=DAY))
    assert store.tenant().find(name(1)) is not None and store.expire() == 0
    store.flush()
    clock.now -= 2 * DAY
    if restart:
        store.close()
        store = opened()
    clock.now += LEAP
    for number in (1, 2):
        assert store.tenant().find(name(number)) is not None
    for _ in range(24):
        clock.now += LEAP
        store.expire()
    assert all(store.tenant().find(name(number)) is None for number in (1, 2)), "a day later they end"
    store.close()


@pytest.mark.parametrize("seconds", [10**400, 1e301, math.inf, math.nan, -1])
def test_a_term_that_no_sum_could_hold_is_refused(seconds: float) -> None:
    for terms in ({"seconds": seconds}, {"idle_seconds": seconds}):
        with pytest.raises(StoreError, match="out of range"):
            Terms(**terms)
