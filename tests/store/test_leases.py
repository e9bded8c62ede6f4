"""Prompts hold their chunks, in order of arrival, within the budget."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emblema.errors import CapacityError
from emblema.store import Store
from tests.store.pieces import is_numbered, name, numbered
from tests.store.stores import ONE, opened
from tests.store.tiers import wait_until


def test_a_hundred_prompts_over_twenty_chunks_with_room_for_five(tmp_path: Path) -> None:
    """The rows are right, nothing in use is evicted, nobody waits for ever."""
    wrong: list[int] = []
    most = threading.Lock(), [0]
    with opened(tmp_path, device_bytes=5 * ONE) as store:
        view = store.tenant()
        for number in range(20):
            view.put(numbered(number))
        view.flush()

        def prompt(seed: int) -> None:
            numbers = {(seed * 7 + step * 3) % 20 for step in range(1 + seed % 5)}
            with view.lease([name(number) for number in numbers], timeout=60) as lease:
                with most[0]:
                    most[1][0] = max(most[1][0], store.statistics.leased_bytes)
                for number in numbers:
                    if not is_numbered(number, lease.rows[name(number)]):
                        wrong.append(number)
                    if name(number) not in {piece.id for piece in store.cache.table if piece.leases}:
                        wrong.append(number)
                if seed % 10 == 0:
                    time.sleep(0.01)

        with ThreadPoolExecutor(100) as pool:
            list(pool.map(prompt, range(100)))
        assert not wrong
        assert 0 < most[1][0] <= 5 * ONE
        wait_until(lambda: store.statistics.bytes <= 5 * ONE)
        assert store.statistics.leased_bytes == 0 and store.statistics.load_failures == 0
        with pytest.raises(CapacityError, match="6 chunks need"), view.lease([name(number) for number in range(6)]):
            pass


def test_a_small_lease_does_not_overtake_a_large_one_that_waits(tmp_path: Path) -> None:
    with Store(tmp_path / "store", device_bytes=3 * ONE) as store, ThreadPoolExecutor(2) as pool:
        view = store.tenant()
        for number in range(5):
            view.put(numbered(number))
        view.flush()
        order: list[str] = []

        def take(what: str, numbers: list[int]) -> None:
            with view.lease([name(number) for number in numbers], timeout=10):
                order.append(what)

        with view.lease([name(0)]):
            large = pool.submit(take, "large", [1, 2, 3])
            wait_until(lambda: len(store.cache.waiting) == 1)
            small = pool.submit(take, "small", [4])
            wait_until(lambda: len(store.cache.waiting) == 2)
            with view.lease([name(0)]):
                assert order == [], "what needs nothing new passes"
        large.result(10)
        small.result(10)
        assert order == ["large", "small"]
