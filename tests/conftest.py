"""The bundled model, loaded once a process, and a few pictures of its world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from benchmarks.tasks import Episode, generate
from emblema.kv.chunk import Chunk

if TYPE_CHECKING:
    from emblema import Engine


@pytest.fixture(scope="session")
def reference() -> Iterator[Engine]:
    """An engine on the bundled model."""
    # Not at the top: torchvision's operators have to be declared before transformers is imported (tests.families).
    from emblema import Engine

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


@pytest.fixture
def planners_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every planner of a test: each has a thread."""
    from emblema.vllm.planner import RequestPlanner

    made: list[RequestPlanner] = []
    start = RequestPlanner.__init__

    def noted(own: RequestPlanner, *given: object, **named: object) -> None:
        start(own, *given, **named)  # type: ignore[arg-type]
        made.append(own)

    monkeypatch.setattr(RequestPlanner, "__init__", noted)
    yield
    for each in made:
        each.close()
