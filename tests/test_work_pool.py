"""Work beside the model: turns by tenant, places that nobody has alone, and nothing begun that nobody waits for."""

import asyncio
import gc
import random
import threading
import time
import weakref
from collections import Counter
from contextlib import suppress

import pytest

from emblema.errors import BusyError, EmblemaError
from emblema.work_pool import PoolSize, TenantTurns, WorkPool, run_alone


async def until_free(turns: TenantTurns) -> None:
    """Wait until all places are given back, which is a moment after what took them is done."""
    async with asyncio.timeout(10):
        while turns.taken or turns.waiting:
            await asyncio.sleep(0.001)


def test_a_tenant_waits_for_none_of_anothers_work() -> None:
    """However much of it there is, and whichever way it ends."""

    async def use() -> None:
        pool, hold = WorkPool("test", PoolSize(4, 3)), threading.Event()
        alice = [asyncio.ensure_future(pool.run("alice", hold.wait)) for _ in range(50)]
        await asyncio.sleep(0.05)
        assert pool.turns.taken == 3, "one place is left"
        async with asyncio.timeout(10):
            assert [await pool.run("bob", lambda number=number: number) for number in range(20)] == list(range(20))
            with pytest.raises(ZeroDivisionError):
                await pool.run("bob", lambda: 1 // 0)
        hold.set()
        assert all(await asyncio.gather(*alice))
        await until_free(pool.turns)
        pool.close()

    asyncio.run(use())


def test_tenants_take_turns_and_bounds_hold() -> None:
    rng, order, lock = random.Random(1), [], threading.Lock()
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def work(owner: str) -> None:
        with lock:
            order.append(owner)
            running[owner] += 1
            running["all"] += 1
            for name in (owner, "all"):
                most[name] = max(most[name], running[name])
        time.sleep(rng.random() * 0.002)
        with lock:
            running[owner] -= 1
            running["all"] -= 1

    async def use() -> None:
        pool = WorkPool("test", PoolSize(3, 2))
        owners = ["a"] * 60 + ["b"] * 10 + ["c"] * 5
        await asyncio.gather(*(pool.run(owner, work, owner) for owner in owners))
        pool.close()

    asyncio.run(use())
    assert most["all"] == 3 and max(most[owner] for owner in "abc") == 2
    assert max(place for place, owner in enumerate(order) if owner == "c") < 25, "five of c come within five rounds"
    assert Counter(order) == {"a": 60, "b": 10, "c": 5}


def test_what_nobody_waits_for_is_not_begun() -> None:
    async def use() -> None:
        pool, hold, begun = WorkPool("test", PoolSize(1, 1)), threading.Event(), []
        first = asyncio.ensure_future(pool.run("a", hold.wait))
        left = [asyncio.ensure_future(pool.run("a", begun.append, number)) for number in range(5)]
        await asyncio.sleep(0)
        for task in left[:4]:
            task.cancel()
        await asyncio.gather(*left[:4], return_exceptions=True)
        hold.set()
        await asyncio.gather(first, left[4])
        assert begun == [4]
        await until_free(pool.turns)
        pool.close()

    asyncio.run(use())


def test_too_much_of_one_is_refused_and_others_go_on() -> None:
    async def use() -> None:
        pool, hold = WorkPool("test", PoolSize(2, 1, waiting=3)), threading.Event()
        held = [asyncio.ensure_future(pool.run("a", hold.wait)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await pool.run("a", hold.wait)
        assert await pool.run("b", lambda: 1) == 1
        hold.set()
        await asyncio.gather(*held)
        assert await pool.run("a", lambda: 2) == 2
        pool.close()

    asyncio.run(use())


def test_places_are_given_back_however_their_holders_end() -> None:
    async def use() -> None:
        turns, rng = TenantTurns("test", PoolSize(2, 2)), random.Random(2)

        async def hold(owner: str) -> None:
            async with turns.place(owner):
                await asyncio.sleep(rng.random() * 0.003)
                if rng.random() < 0.3:
                    raise ValueError

        tasks = [asyncio.ensure_future(hold(rng.choice("abc"))) for _ in range(200)]
        for task in rng.sample(tasks, 60):
            await asyncio.sleep(0.0005)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until_free(turns)

    asyncio.run(use())


def test_a_closed_pool_gives_work_up() -> None:
    async def use() -> None:
        pool = WorkPool("test", PoolSize(1, 1))
        pool.close()
        with pytest.raises(EmblemaError, match="closed"):
            await pool.run("a", lambda: 1)

    asyncio.run(use())


def test_what_is_done_once_has_a_thread_of_its_own() -> None:
    name = asyncio.run(run_alone("once", lambda: threading.current_thread().name))
    assert name == "emblema-once"


def test_work_that_failed_holds_nothing_it_worked_on() -> None:
    """What failed is let go with its error, not when cycles are sought: media are large."""

    class Media:
        """Something large."""

    async def use() -> None:
        pool = WorkPool("test", PoolSize(1, 1))

        def fail(media: Media) -> None:
            raise ValueError

        media = Media()
        kept = weakref.ref(media)
        with suppress(ValueError):
            await pool.run("a", fail, media)
        del media
        await pool.run("a", lambda: None)
        assert kept() is None
        pool.close()

    gc.disable()
    try:
        asyncio.run(use())
    finally:
        gc.enable()
