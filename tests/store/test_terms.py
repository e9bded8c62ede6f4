"""How long pieces stay, and what may not be evicted."""

from pathlib import Path
from typing import Any

import pytest

from emblema.errors import StoreError
from emblema.store import Store, Terms
from emblema.store.settings import StoreSettings
from tests.store.pieces import name, numbered
from tests.store.stores import ONE, opened
from tests.store.tiers import Clock


def test_terms_by_age_and_by_use(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, settings=StoreSettings(clock=clock)) as store:
        view = store.tenant()
        view.put(numbered(1), Terms(seconds=100))
        view.put(numbered(2), Terms(idle_seconds=100))
        view.put(numbered(3))
        view.flush()
        clock.now += 60
        assert all(view.find(name(number)) is not None for number in (1, 2, 3))
        clock.now += 60
        assert view.find(name(1)) is None and name(1) not in view
        assert view.find(name(2)) is not None
        clock.now += 101
        assert store.expire() == 1 and store.statistics.expired == 2
        assert store.disk is not None
        assert view.ids() == [name(3)] and store.disk.count() == 1
        with view.lease([name(1), name(3)]) as lease:
            assert lease.missing == (name(1),)
            lease.fill(numbered(1))
        assert name(1) not in view, "expired: used, not kept"


def test_how_a_piece_left_is_known_until_it_is_put_again(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, settings=StoreSettings(clock=clock)) as store:
        view, other = store.tenant(), store.tenant(b"other")
        view.put(numbered(1), Terms(seconds=100))
        view.put(numbered(2))
        view.flush()
        assert view.absence(name(3)).departure is None and view.absence(name(3)).models == (numbered(1).model,)
        clock.now += 101
        assert view.find(name(1)) is None and view.absence(name(1)).departure == "expired"
        assert view.delete(name(2)) and view.absence(name(2)).departure == "deleted"
        assert other.absence(name(1)).departure is None and other.absence(name(1)).models == ()
        view.put(numbered(1))
        assert view.find(name(1)) is not None
    with Store(device_bytes=2 * ONE) as store:
        view = store.tenant()
        for number in (1, 2, 3):
            view.put(numbered(number))
        assert view.absence(name(1)).departure == "evicted" and view.absence(name(4)).departure is None


def test_terms_outlast_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, settings=StoreSettings(clock=clock)) as store:
        store.tenant().put(numbered(1), Terms(seconds=50))
        store.tenant().put(numbered(2), Terms(seconds=500))
    clock.now += 60
    with opened(tmp_path, settings=StoreSettings(clock=clock)) as store:
        view = store.tenant()
        assert view.ids() == [name(2)] and view.find(name(1)) is None
        assert view.find(name(2)) is not None
        clock.now += 450
        assert view.find(name(2)) is None
        view.put(numbered(2), Terms(seconds=500))
        view.flush()
        clock.now += 100
        assert view.find(name(2)) is not None
    with opened(tmp_path, settings=StoreSettings(clock=clock)) as store:
        assert store.tenant().ids() == [name(2)], "the file is that of the second time"


def test_pins_and_priorities() -> None:
    with Store(device_bytes=3 * ONE) as store:
        view = store.tenant()
        view.put(numbered(1), Terms(pinned=True))
        view.put(numbered(2), Terms(priority=1))
        for number in range(3, 8):
            view.put(numbered(number))
        assert sorted(view.ids()) == [name(1), name(2), name(7)]
        assert view.unpin(name(1)) and view.pin(name(7)) and not view.pin(name(9))
        view.put(numbered(8))
        view.put(numbered(9))
        assert sorted(view.ids()) == [name(2), name(7), name(9)]
        assert view.delete(name(7))


def test_a_pin_is_kept_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        view = store.tenant()
        view.put(numbered(1))
        view.pin(name(1))
        view.flush()
    with opened(tmp_path) as store:
        assert store.disk is not None
        entry = store.disk.entry(name(1))
        assert entry is not None and entry.terms.pinned
        assert store.tenant().unpin(name(1))
        entry = store.disk.entry(name(1))
        assert entry is not None and not entry.terms.pinned


@pytest.mark.parametrize(
    "terms",
    [{"seconds": -1}, {"seconds": "7"}, {"idle_seconds": float("nan")}, {"seconds": 10**400}, {"seconds": 1e301},
     {"idle_seconds": float("inf")}, {"priority": 2**31}, {"priority": 0.5},
     {"pinned": "yes"}],
)  # fmt: skip
def test_terms_that_cannot_be(terms: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        Terms(**terms)
