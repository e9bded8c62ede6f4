"""A tenant's media are decoded beside another's slow ones, whatever kind they are of."""

import asyncio
import threading
from typing import Any

import pytest

from emblema.media.limits import MediaLimits
from emblema.serve import media_reading
from emblema.serve.held_bytes import ByteBounds, HeldBytes
from emblema.serve.keys import Tenant
from emblema.serve.media_reading import MediaReader
from emblema.serve.work_pools import WorkPools

ALICE, BOB = Tenant("alice", b"alice"), Tenant("bob", b"bob")
BOUNDS = ByteBounds(2**30, 2**40, 2**40)


@pytest.mark.parametrize("slow", ["image", "document"])
@pytest.mark.parametrize("quick", ["image", "document", None])
def test_a_picture_waits_for_no_slow_one_of_another(
    slow: str, quick: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, busy = threading.Event(), threading.Semaphore(0)

    def decoded(data: bytes, kind: str, **options: Any) -> str:
        if data == b"slow":
            busy.release()
            assert hold.wait(60)
        return kind

    monkeypatch.setattr(media_reading, "load_media", decoded)
    monkeypatch.setattr(media_reading, "media_kind", lambda data, limits: "image")
    pools, held = WorkPools(), HeldBytes(BOUNDS)
    reader = MediaReader(MediaLimits(), pools, held)

    async def use() -> None:
        holdings = [held.open(ALICE.owner) for _ in range(40)]
        waiting = [asyncio.ensure_future(reader.load(ALICE, b"slow", slow, each)) for each in holdings]
        while not busy.acquire(blocking=False):
            await asyncio.sleep(0.001)
        async with asyncio.timeout(20):
            with held.open(BOB.owner) as holding:
                for _ in range(5):
                    assert await reader.load(BOB, b"quick", quick, holding) == (quick or "image")
        assert not any(task.done() for task in waiting)
        hold.set()
        assert set(await asyncio.gather(*waiting)) == {slow}
        for each in holdings:
            each.drop_decoded()
        assert held.total == 0
        pools.close()

    asyncio.run(use())
