"""Parts made ready before they are asked about: rows and patches of their order, durable."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.tasks import Episode
from emblema import Engine, Store
from emblema.engine.async_engine import AsyncEngine
from emblema.engine.warming import warm
from emblema.errors import PromptError
from tests.engine.engines import Calls, encoder_of
from tests.engine.test_store import engine_on, pictures

QUESTION = "on which land does the moon stand ?"


@pytest.mark.slow
@pytest.mark.parametrize("earlier", ["nothing", "full"])
def test_the_first_question_finds_rows_and_patches(
    reference: Engine, episode: Episode, tmp_path: Path, earlier: str
) -> None:
    parts = asyncio.run(warmed(reference, episode, tmp_path, earlier))
    with Calls(encoder_of(reference)) as calls, engine_on(reference, tmp_path / "kept") as again:
        found = [again.store.get(part) for part in parts]
        assert again.prefill(["a third", *found, QUESTION]).usage.lane == "auto:patch" and calls.count == 0


async def warmed(reference: Engine, episode: Episode, tmp_path: Path, earlier: str) -> list[str]:
    with Store(tmp_path / "kept") as store:
        engine = AsyncEngine(engine_on(reference, store))
        parts = [await engine.add(picture) for picture in pictures(episode)]
        if earlier == "full":
            await engine.prefill(parts, "full")
        made = await warm(engine, ["some pages", *parts])
        assert made.tokens == sum(part.tokens for part in parts)
        assert made.pieces.keys() > {part.id for part in parts} and len(made.pieces) == 2 * len(parts)
        assert all(engine.store.pin(piece) for piece in made.pieces)
        usage = (await engine.prefill(["another opening", *parts, QUESTION])).usage
        assert usage.lane == "auto:patch" and usage.patched_tokens == made.tokens
        await engine.close()
    return [part.id for part in parts]


def test_what_does_not_fit_is_refused(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    async def fill() -> None:
        with Store(tmp_path / "kept") as store:
            engine = AsyncEngine(engine_on(reference, store))
            page = await engine.add(pictures(episode)[0])
            try:
                await warm(engine, [page] * (reference.adapter.context_length // page.tokens + 1))
            finally:
                await engine.close()

    with pytest.raises(PromptError, match="context"):
        asyncio.run(fill())
