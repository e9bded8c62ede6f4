"""The bundled model, loaded once a process, and a few pictures of its world."""

from collections.abc import Iterator

import pytest

from benchmarks.tasks import Episode, generate
from emblema.engine.engine import Engine
from emblema.kv.chunk import Chunk


@pytest.fixture(scope="session")
def reference() -> Iterator[Engine]:
    """An engine on the bundled model."""
    with Engine.load("reference") as engine:
        yield engine


@pytest.fixture(scope="session")
def episode() -> Episode:
    """Legends and a map, with questions."""
    return next(iter(generate("maps", 2, 1)))


@pytest.fixture
def pages(reference: Engine, episode: Episode) -> list[Chunk]:
    """The episode's pages as chunks, legends first."""
    chunks = [reference.add(page.image()) for page in episode.pages]
    return [chunk for chunk in chunks if isinstance(chunk, Chunk)]
