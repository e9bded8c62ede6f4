"""What a request was answered with is let go with it, not at some later collection of cycles."""

import gc
from collections.abc import Iterator
from queue import Queue

import pytest

from benchmarks.tasks import Episode
from emblema import Engine, Store
from emblema.engine.generation import GenerateRequest, Generation
from emblema.engine.scheduler import Scheduler
from emblema.errors import EmblemaError
from emblema.link.context import LinkContext
from emblema.models.tables import KVTable
from emblema.session.decoding import Sampling
from emblema.session.replies import Piece

QUESTION = "on which land does the moon stand ?"
LONG = Sampling(max_new_tokens=400, temperature=50.0, seed=1)


def held() -> int:
    """Tables and look-ups of requests in the process."""
    return sum(type(each) in (KVTable, LinkContext) for each in gc.get_objects())


@pytest.fixture
def before() -> Iterator[int]:
    """How many there were; while a test runs no cycle is collected."""
    gc.collect()
    gc.disable()
    yield held()
    gc.enable()


@pytest.fixture
def engine(reference: Engine) -> Engine:
    return reference.on(Store())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "prefix", "full", "blind", "patch-25%", "cacheblend-15", "mpic-32"])
def test_answers_leave_nothing(engine: Engine, episode: Episode, before: int, strategy: str) -> None:
    parts = [page.image() for page in episode.pages]
    for order in (parts, parts[::-1], parts):
        engine.generate([*order, QUESTION], strategy, max_new_tokens=2)
    assert held() == before


def test_requests_that_are_left_or_fail_leave_nothing(
    engine: Engine, episode: Episode, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, pieces = Scheduler(engine), Queue[Piece | Exception]()
    parts = [*(page.image() for page in episode.pages), QUESTION]
    left = Generation(GenerateRequest(parts, "blind", LONG), pieces.put)
    scheduler.submit(engine, left)
    assert isinstance(pieces.get(timeout=60), Piece)
    left.cancel()
    del left

    def failing(table: KVTable, layer: int) -> None:
        raise EmblemaError("a layer could not be read")

    while scheduler.running:
        scheduler.call(engine, lambda: None).result()
    monkeypatch.setattr(KVTable, "_ready", failing)
    scheduler.submit(engine, Generation(GenerateRequest(parts, "blind"), pieces.put))
    while not isinstance(pieces.get(timeout=60), EmblemaError):
        pass
    scheduler.close()
    assert held() == before
