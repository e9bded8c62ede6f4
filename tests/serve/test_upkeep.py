"""What is done again and again survives whatever it raises, and says so."""

import asyncio
import logging

import pytest

from emblema.errors import StoreError
from emblema.serve.upkeep import Upkeep


def test_a_loop_goes_on_and_tells_once(caplog: pytest.LogCaptureFixture) -> None:
    upkeep, calls = Upkeep(), []
    errors = [StoreError("the disk"), KeyError("id"), ValueError("json"), None, ZeroDivisionError(), None]

    async def work() -> None:
        calls.append(1)
        error = errors[len(calls) - 1] if len(calls) <= len(errors) else None
        if error is not None:
            raise error

    async def use() -> None:
        upkeep.begin("sweep", upkeep.repeat("sweep", work, 0.001))
        while len(calls) < 3:
            assert set(upkeep.failing) <= {"sweep"}
            await asyncio.sleep(0.0005)
        while len(calls) < 10:
            await asyncio.sleep(0.001)
        assert upkeep.failing == {} and upkeep.failures == {"sweep": 4}
        await upkeep.close()
        seen = len(calls)
        await asyncio.sleep(0.01)
        assert len(calls) == seen

    with caplog.at_level(logging.INFO, "emblema.serve"):
        asyncio.run(use())
    said = [record.message.split(":")[0] for record in caplog.records if record.message.startswith("sweep")]
    assert said == ["sweep fails, it is tried again and again", "sweep works again"] * 2


def test_work_that_is_done_once_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        upkeep = Upkeep()

        async def failing() -> None:
            raise KeyError("chunks")

        upkeep.begin("prefill", failing())
        await asyncio.sleep(0.01)
        assert upkeep.failures == {"prefill": 1}
        await upkeep.close()

    asyncio.run(use())
    assert any("prefill failed" in record.message and record.exc_info for record in caplog.records)
