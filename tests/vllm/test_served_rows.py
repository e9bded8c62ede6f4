"""Rows and encoder runs counted at the worker: as planned, and none for known pictures. The scheduler is stock."""

from collections.abc import Iterator
from typing import Any

import pytest

from emblema import Engine
from emblema.served.spans import CachedSpans
from tests.vllm.cells import Cell
from tests.vllm.row_meter import RowMeter

pytestmark = pytest.mark.cells


@pytest.fixture(scope="module")
def served(bench: Any, subject: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary)


@pytest.fixture
def meter(served: Any) -> Iterator[RowMeter]:
    meter = RowMeter(served.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker)
    yield meter
    meter.detach()


def forget(served: Any) -> None:
    served.settle()
    served.forget_prefixes()
    served.llm.llm_engine.reset_encoder_cache()


def test_the_scheduler_is_vllms_own(served: Any, cell: Cell) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    assert type(served.scheduler) is (AsyncScheduler if cell.scheduling == "async" else Scheduler)


@pytest.mark.parametrize("pictures", [1, 3, 8])
def test_rows_are_computed_as_the_plan_says(
    served: Any, subject: Any, engine: Engine, meter: RowMeter, pictures: int, record_property: Any
) -> None:
    given = subject.prompt(pictures, seed=300 + pictures)
    served.ask(given.token_ids, given.pictures)
    for strategy in ("full", "blind", "mpic-4", "mpic-32"):
        forget(served)
        meter.forget()
        served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        ((name, found),) = meter.requests.items()
        chunks = [engine.add(picture) for picture in given.pictures]
        plan = engine.prefill(given.parts(chunks), strategy, template=False).plan
        spans = CachedSpans.of(plan).spans
        taken = {row for start, stop in spans for row in range(start, stop)}
        rows = len(engine.prompt(given.parts(chunks), template=False).token_ids)
        assert found.taken(rows) == tuple(span for span in spans), (strategy, name)
        # A step that ends with a taken row computes it all the same.
        ends = sum(stop - 1 in taken for _, stop in found.scheduled)
        assert found.count == rows - len(taken) + ends
        record_property(f"{pictures} pictures {strategy}", f"{found.count} of {rows} rows, {ends} ends of steps")


def test_no_tower_runs_for_known_pictures(served: Any, subject: Any, meter: RowMeter) -> None:
    given = subject.prompt(3, seed=320)
    served.ask(given.token_ids, given.pictures)
    forget(served)
    # Each once for the prompt, and once for the chunk that is prefilled alone.
    assert sum(step.encoded for step in meter.steps) == 6
    for strategy in ("blind", "mpic-4", "full", "mpic-32"):
        meter.forget()
        served.ask(given.token_ids, given.pictures, {"strategy": strategy}, tokens=3)
        forget(served)
        assert meter.steps and sum(step.encoded for step in meter.steps) == 0, strategy
